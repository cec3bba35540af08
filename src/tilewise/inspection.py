"""What workers that somebody else has started are asked before they are trusted: versions, memory, what they see."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewise import access, cf, hosting, machine
from tilewise._version import __version__
from tilewise.baseline import measure_baseline
from tilewise.cluster import Ceiling, Device, Layout
from tilewise.coordinates import ArrayRef
from tilewise.errors import ClusterError, ParameterError
from tilewise.locking import Lease

# --- versions

#: Libraries of which dask.distributed reports the version, without any code of ours on the worker.
LIBRARIES = tuple(name for name in cf.library_versions() if name != "python")


def version_asker() -> Callable[[], str]:
    """A function that travels by value, so that it runs where tilewise is missing: the version of tilewise, or ""."""

    def version_of_tilewise() -> str:
        try:
            return str(importlib.import_module("tilewise").__version__)
        except ImportError:
            return ""

    return version_of_tilewise


def check_pythons(theirs: Mapping[str, str]) -> None:
    """Refuse another minor version of Python, by who has it: code does not travel between them.

    Raises
    ------
    ClusterError
        There is one; the message names it and both versions.
    """
    mine = cf.library_versions()["python"]
    for who, python in theirs.items():
        if _minor(python) != _minor(mine):
            raise ClusterError(
                f"{who} runs another version of Python",
                got=python,
                expected=mine,
                do="start scheduler and workers in an environment like the client's",
            )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def check_tilewise(theirs: Mapping[str, str]) -> None:
    """Refuse another version of tilewise, or none (""), by who has it.

    Raises
    ------
    ClusterError
        There is one; the message names it.
    """
    for who, version in theirs.items():
        if version != __version__:
            raise ClusterError(
                f"{who} has {'another version of tilewise' if version else 'no tilewise'}",
                got=version,
                expected=__version__,
                do=f"install tilewise {__version__} there",
            )


def version_warnings(theirs: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
    """A sentence for every library, by who has it, of another version than here.

    >>> version_warnings({"worker tcp://a:1": {"numpy": "0.1"}})[0].startswith("worker tcp://a:1 has numpy 0.1, ")
    True
    """
    mine = cf.library_versions()
    return tuple(
        f"{who} has {name} {version}, the client {mine[name]}: results may differ from those of one set of libraries"
        for who, versions in theirs.items()
        for name, version in versions.items()
        if version != mine[name]
    )


def packages(reported: Mapping[str, str | None]) -> dict[str, str]:
    """Versions of python and of `LIBRARIES` among those that dask.distributed reports.

    >>> packages({"python": "3.11.2.final.0", "torch": None, "tornado": "6"})
    {'torch': 'absent', 'python': '3.11.2'}
    """
    found = {name: reported[name] or "absent" for name in LIBRARIES if name in reported}
    return {**found, "python": ".".join(str(reported["python"]).split(".")[:3])}


# --- numbers


@dataclass(frozen=True)
class Facts:
    """What a worker is and has: where it runs, threads, bytes, and CUDA devices."""

    process: tuple[str, int]
    nthreads: int
    limit: int
    pause: int
    available: int
    baseline: int
    cuda: int


async def ask(cuda: bool, remote: Sequence[str], dask_worker: Any) -> Facts:
    """Facts of a worker, found beside its event loop.

    `cuda`: whether its devices are of interest; `remote`: URLs that it will open.
    """
    limit = int(dask_worker.memory_manager.memory_limit or 0)
    pause = dask_worker.memory_manager.memory_pause_fraction
    return Facts(
        process=(socket.gethostname(), os.getpid()),
        nthreads=dask_worker.state.nthreads,
        limit=limit,
        pause=int(limit * pause) if pause else limit,
        available=machine.available_memory(),
        baseline=await asyncio.to_thread(_baseline, remote),
        cuda=await asyncio.to_thread(_cuda_devices) if cuda else 0,
    )


def _baseline(remote: Sequence[str]) -> int:
    """The baseline; its warm-up sets and restores torch's threads as a tile does, so that it has to be a guest too."""
    importlib.import_module("dask.array")  # the blocks of a Dask graph come by functions of it
    with hosting.hosted(f"asked-{uuid.uuid4().hex[:12]}", slots=0):
        hosting.know_thread()
        return measure_baseline(remote)


def _cuda_devices() -> int:
    torch = importlib.import_module("torch")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


async def aside(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Result of a call in a worker, beside its event loop and its tasks."""
    return await asyncio.to_thread(function, *args)


def lay_out(kind: str, facts: Mapping[str, Facts], threads: int | None, device: Device) -> Layout:
    """Numbers of workers that run already, by address.

    Raises
    ------
    ParameterError
        More tiles at a time are asked for than a worker has threads, or CUDA where a worker has none.
    """
    for worker, fact in facts.items():
        if threads is not None and threads > fact.nthreads:
            raise ParameterError(
                f"cluster.threads is more than worker {worker} has",
                got=threads,
                expected=f"at most {fact.nthreads}",
                do="set cluster.threads to that, or start workers with more threads",
            )
    processes: dict[tuple[str, int], list[str]] = {}
    for worker, fact in facts.items():
        processes.setdefault(fact.process, []).append(worker)
    groups = [[facts[worker] for worker in workers] for workers in processes.values()]
    limited = {
        min(workers): (sum(facts[w].limit for w in workers), sum(facts[w].pause for w in workers))
        for workers in processes.values()
        if all(facts[w].limit for w in workers)
    }
    least = min(limited, key=lambda worker: limited[worker][1], default=None)
    most = threads or max(fact.nthreads for fact in facts.values())
    return Layout(
        kind=kind,
        processes=len(processes),
        slots=max(sum(min(most, fact.nthreads) for fact in group) for group in groups),
        device=_device(device, facts),
        room=int(machine.DEFAULT_SHARE * min(_room(group, groups) for group in groups)),
        baseline=max(fact.baseline for fact in facts.values()),
        ceiling=Ceiling(least, *limited[least]) if least else None,
    )


def _room(group: Sequence[Facts], groups: Iterable[Sequence[Facts]]) -> int:
    """Bytes that a process may have: its limit, or its part of what is available where it runs."""
    if all(fact.limit for fact in group):
        return sum(fact.limit for fact in group)
    host = group[0].process[0]
    return group[0].available // sum(other[0].process[0] == host for other in groups)


def _device(device: Device, facts: Mapping[str, Facts]) -> str:
    if device not in ("auto", "cpu", "cuda"):
        raise ParameterError("device is unknown", got=repr(device), expected="auto | cpu | cuda", do="mend device")
    without = [worker for worker, fact in facts.items() if not fact.cuda]
    if device == "cuda" and without:
        raise ParameterError(
            f"device is cuda and torch finds no CUDA device on worker {without[0]}",
            do="set device to cpu or auto, or start every worker where there is one",
        )
    return "cpu" if device == "cpu" or without else "cuda"


def cuda_numbers(facts: Mapping[str, Facts]) -> dict[str, int]:
    """Which CUDA device of its host each worker takes: those of a host take turns."""
    taken: dict[str, int] = {}
    numbers = {}
    for worker, fact in sorted(facts.items()):
        host = fact.process[0]
        numbers[worker] = taken.get(host, 0) % max(1, fact.cuda)
        taken[host] = taken.get(host, 0) + 1
    return numbers


# --- what they see


def unseen_inputs(arrays: Sequence[ArrayRef]) -> tuple[str, list[tuple[str, str]]]:
    """This host, and the arrays that cannot be opened here with the reason: metadata only."""
    found = []
    for array in arrays:
        try:
            array.open()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being opened is the answer
            found.append((str(array), f"{type(error).__name__}: {error}"))
    return socket.gethostname(), found


def unseen_sidecar(place: str, run: str) -> tuple[str, list[tuple[str, str]]]:
    """This host, and the sidecar if its lock, which every tile asks, does not name the run."""
    try:
        Lease(place, run).check()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being read is the answer
        return socket.gethostname(), [(place, f"{type(error).__name__}: {error}")]
    return socket.gethostname(), []


def cpu_capability() -> str:
    """The vector instructions that torch uses here, on which bits depend."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def unseen_output(store: str, runs: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """This host, and the output if it is not here the one that the run has just made."""
    import zarr

    try:
        opened = access.zarr_store(store, read_only=True)
        attrs: dict[str, Any] = dict(zarr.open_group(opened, mode="r").attrs)
        made = attrs.get("tilewise", {}).get("run")
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being opened is the answer
        return socket.gethostname(), [(store, f"{type(error).__name__}: {error}")]
    return socket.gethostname(), [] if made in runs else [(store, "another store, which this run has not made")]


def refuse_unseen(what: str, answers: Mapping[str, tuple[str, list[tuple[str, str]]]]) -> None:
    """Refuse a store that the client sees and a worker does not.

    Raises
    ------
    ClusterError
        There is one; the message names the worker, its host, and the path.
    """
    for worker, (host, missing) in answers.items():
        if missing:
            path, reason = missing[0]
            raise ClusterError(
                f"{what} {path} cannot be opened by worker {worker} on {host}",
                got=reason,
                do="put it on a file system that all workers see, or use a URL",
            )
