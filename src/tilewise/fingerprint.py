"""What the bits of an output depend on, so that a run goes on only with what it would have begun itself.

Not among it are budget, workers and cluster: a run may go on with others. Libraries and the CPU are told apart too, but
do not keep a run from going on.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewise import cf, places
from tilewise._version import __version__
from tilewise.coordinates import ArrayRef
from tilewise.errors import and_more
from tilewise.job import Job, kernel_dict
from tilewise.labelled import labelled
from tilewise.memory import Workload
from tilewise.outputs import Target, compressors
from tilewise.sources import Input, Source

#: Differences that are shown; the others are counted.
_SHOWN = 3


def fingerprint(work: Workload, job: Job) -> dict[str, Any]:
    """What the bits of the output depend on, as JSON data.

    Kernel and parameters; inputs by place and metadata, those in memory by their values; outputs as they are laid out.
    The code of a kernel and the numbers in stores are not looked at. Tile, panel and kind of device are not among
    it: they are those of the run that is resumed.
    """
    found = {
        "kernel": kernel_dict(job.kernel),
        "inputs": {name: _input(name, source, job.inputs[name]) for name, source in work.sources.items()},
        "outputs": {target.spec.name: _output(target, job) for target in work.targets},
    }
    plain: dict[str, Any] = json.loads(cf.to_json(found))
    return plain


def _input(name: str, source: Source, given: Input) -> dict[str, Any]:
    spec = source.spec
    found = {
        "dims": spec.dims,
        "shape": spec.shape,
        "dtype": spec.dtype,
        "chunks": source.chunks,
        "decoding": [asdict(decoding) if decoding else None for decoding in source.decodings],
    }
    if given.in_memory:
        return {**found, "values": _values(name, given)}
    return {**found, "arrays": [_place(array) for array in source.arrays], "shard": source.shard}


def _place(array: ArrayRef) -> str:
    """Where an array lies, however its place is written."""
    store = array.store if places.is_url(array.store) else str(Path(array.store).resolve())
    return str(replace(array, store=store))


def _values(name: str, given: Input) -> str:
    """A name for values and coordinates in memory that others have not; that of a lazy array is Dask's own."""
    from dask.base import is_dask_collection, tokenize

    data = labelled(name, given)
    found = {"": data.variable.data, **{str(n): c.variable.data for n, c in sorted(data.coords.items(), key=str)}}
    known = {n: a.name if is_dask_collection(a) else np.asarray(a) for n, a in found.items()}
    return str(tokenize(known))


def _output(target: Target, job: Job) -> dict[str, Any]:
    spec = target.spec
    return {
        "dims": spec.dims,
        "shape": spec.shape,
        "dtype": target.dtype,
        "chunks": target.chunks,
        "shards": target.shards,
        "codec": compressors(job.output.codec),
        "fill": target.fill,
        "packing": asdict(target.packing) if target.packing else None,
        "attrs": job.output.attrs.get(spec.name, {}),
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Where two fingerprints differ, by dotted keys; None where they are equal.

    >>> difference({"kernel": {"ord": 2}, "panel": 64}, {"kernel": {"ord": 1}, "panel": 64})
    'kernel.ord was 2, is 1'
    """
    found = list(_differences("", old, new))
    return "; ".join(found[:_SHOWN]) + and_more(max(0, len(found) - _SHOWN)) if found else None


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(f"{key}.{name}".lstrip("."), old.get(name, "absent"), new.get(name, "absent"))
    elif old != new:
        yield f"{key} was {_text(old)}, is {_text(new)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def environment(capability: str) -> dict[str, str]:
    """What may change the last bits though the job is the same: libraries, and what the CPU can do.

    Parameters
    ----------
    capability
        As torch names the instructions that it uses on the workers: torch.backends.cpu.get_cpu_capability().
    """
    return {
        "tilewise": __version__,
        **cf.library_versions(),
        "machine": platform.machine(),
        "CPU capability": capability,
    }


def environment_changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each thing of the environment that has changed.

    >>> environment_changes({"torch": "2.4", "numpy": "2.0"}, {"torch": "2.5", "numpy": "2.0"})
    ('torch was 2.4, is 2.5: tiles that are done now may differ in the last bits from those of before',)
    """
    if not old:
        return ("the libraries and the CPU of the earlier run are not known: tiles that are done now may differ",)
    return tuple(
        f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')}: tiles that are done now may differ in "
        "the last bits from those of before"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    )
