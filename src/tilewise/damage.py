"""Which input, and which chunk of it, could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer.cpu import NDBuffer

from tilewise.coordinates import Array, ArrayRef
from tilewise.errors import DamagedDataError, StoreAccessError, TilewiseError
from tilewise.foreign import ForeignArray
from tilewise.sources import Source
from tilewise.store import aligned_parts
from tilewise.trouble import Trouble, trouble_of

Stored = zarr.Array[Any] | ForeignArray


def unreadable(
    name: str, source: Source, arrays: Sequence[Stored], box: Sequence[slice], error: Exception
) -> TilewiseError:
    """What to raise from an error of reading a box of an input: it names the input, and its chunk where one is damaged.

    Parameters
    ----------
    arrays
        Those of the source, open.
    box
        What was to be read, one slice for each dimension of the input.
    """
    got = f"{type(error).__name__}: {error}" if not isinstance(error, TilewiseError) else f"{error.what}; {error.got}"
    if trouble_of(error, "read") is not Trouble.UNREADABLE:
        what = f"input {name!r} cannot be read at {_cells(source.spec.dims, box)}"
        if isinstance(error, TilewiseError):
            return type(error)(what, got=got, expected=error.expected, do=error.do)
        return StoreAccessError(what, got=got, do="mend the store, or access to it")
    chunk = next(_damaged(source, arrays, box), "")
    return DamagedDataError(
        f"input {name!r} is damaged: {chunk or _cells(source.spec.dims, box)} cannot be decoded",
        got=got,
        do="write or copy that chunk again" if chunk else "look for a damaged chunk",
    )


def _damaged(source: Source, arrays: Sequence[Stored], box: Sequence[slice]) -> Iterator[str]:
    """Chunks in a box that cannot be read, as they are looked for."""
    spots = zip(source.arrays, arrays, strict=True)
    dims, inner = source.spec.dims, tuple(box)
    if source.stacked:
        spots = zip(source.arrays[box[0]], arrays[box[0]], strict=True)
        dims, inner = dims[1:], inner[1:]
    for ref, array in spots:
        for part in aligned_parts(inner, array.chunks, 1):
            if not _is_readable(array, part):
                yield f"{_key(ref, array, part)} ({_cells(dims, part)})"


def _is_readable(array: Stored, part: tuple[slice, ...]) -> bool:
    cells: Array = np.empty([p.stop - p.start for p in part], dtype=array.dtype)
    try:
        array.get_basic_selection(part, out=NDBuffer.from_numpy_array(cells))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever a codec raises: the first error is what is told
        return False
    return True


def _key(ref: ArrayRef, array: Stored, part: Sequence[slice]) -> str:
    if isinstance(array, ForeignArray):
        return str(ref)
    unit = array.shards or array.chunks
    key = array.metadata.encode_chunk_key(tuple(p.start // u for p, u in zip(part, unit, strict=True)))
    return f"{'shard' if array.shards else 'chunk'} {ref}/{key}"


def _cells(dims: Sequence[str], box: Sequence[slice]) -> str:
    return ", ".join(f"{dim}={s.start}:{s.stop}" for dim, s in zip(dims, box, strict=True)) or "its one value"
