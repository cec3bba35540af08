"""Write units as they are stored: whether each is there, and whether it can be decoded.

A unit is fetched once, as bytes, and decoded from memory: what is missing is then no fill value, and what is found is
about these very bytes.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, cast

import numpy as np
import zarr
import zarr.storage
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync

from tilewise import access
from tilewise.coordinates import Array, ArrayRef
from tilewise.errors import MissingStoreError
from tilewise.outputs import Target

#: Codecs that find a changed byte by themselves.
_CHECKED = ("gzip", "crc32c")
#: Codecs that make bytes of numbers, or put them into another order.
_ARRANGING = ("bytes", "transpose", "vlen-utf8")
_ANEW = "run the job again with --overwrite"
#: What the index of a shard says of a chunk that is not in it.
_ABSENT = np.uint64(2**64 - 1)
#: Bytes of the checksum behind the index of a shard.
_CRC = 4


@dataclass(frozen=True)
class Flaw:
    """What is wrong with one write unit: its key within the output, and what was found."""

    kind: Literal["missing", "damaged"]
    key: str
    what: str


class Units:
    """The write units of one stored array; safe to share among threads.

    Attributes
    ----------
    name
        Path of the array within its store.
    dims
        Its dimension names.
    """

    def __init__(self, ref: ArrayRef) -> None:
        self.name = ref.path
        self._ref = ref
        self._store = access.zarr_store(ref.store, read_only=True)
        metadata = self._fetch("zarr.json")
        if metadata is None:
            raise MissingStoreError("an output has no metadata", got=ref, do=_ANEW)
        self._metadata = metadata
        self._mine = threading.local()
        self._array = self._opened({})
        self._codecs = json.loads(metadata.to_bytes())["codecs"]
        sharded = self._codecs[0]["name"] == "sharding_indexed"
        self._sharding: dict[str, Any] = self._codecs[0]["configuration"] if sharded else {}
        self.dims = tuple(str(dim) for dim in self._array.metadata.dimension_names or ())  # type: ignore[union-attr]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each dimension."""
        return tuple(self._array.shape)

    @property
    def unit(self) -> tuple[int, ...]:
        """Cells of one write unit."""
        return tuple(self._array.shards or self._array.chunks)

    @property
    def unchecked(self) -> str:
        """The codec, where it has no checksum, so that a changed byte may look like another value; else ""."""
        codecs = self._sharding.get("codecs", self._codecs)
        if any(_is_checked(codec) for codec in codecs):
            return ""
        return ", ".join(codec["name"] for codec in codecs if codec["name"] not in _ARRANGING) or "none"

    def other_than(self, target: Target) -> str:
        """How the array is laid out in another way than it was to be; "" where it is not."""
        is_now = (self.dims, self.shape, str(self._array.dtype), tuple(self._array.chunks), self._array.shards)
        was = (target.spec.dims, target.spec.shape, target.dtype, target.chunks, target.shards)
        names = ("dims", "shape", "dtype", "chunks", "shards")
        unlike = [f"{n} {a}, not {b}" for n, a, b in zip(names, is_now, was, strict=True) if a != b]
        return "; ".join(unlike)

    def within(self, box: Sequence[slice]) -> Iterator[tuple[int, ...]]:
        """Numbers, along each dimension, of the units that a box touches."""
        edges = zip(box, self.unit, strict=True)
        yield from product(*(range(s.start // size, -(-s.stop // size)) for s, size in edges))

    def flaws(self, place: Sequence[int]) -> tuple[tuple[Flaw, ...], int]:
        """What is wrong with one unit, and the bytes of it; a second look settles what may have been a torn read."""
        found, nbytes = self._look(place)
        return self._look(place) if found else (found, nbytes)

    def _look(self, place: Sequence[int]) -> tuple[tuple[Flaw, ...], int]:
        key = self._array.metadata.encode_chunk_key(tuple(place))
        raw = self._fetch(key)
        shown = f"{self.name}/{key}" if self.name else key
        if raw is None:
            return (Flaw("missing", shown, "it is not there"),), 0
        array = self._holding(key, raw)
        box = [slice(i * u, min((i + 1) * u, n)) for i, u, n in zip(place, self.unit, self.shape, strict=True)]
        error = _decoding_error(array, box)
        if error:
            return tuple(Flaw("damaged", shown, text) for text in self._inner_errors(array, box, error)), len(raw)
        if len(raw) < self._index_nbytes:
            # zarr reads an empty shard as fill values.
            return (Flaw("damaged", shown, f"{len(raw)} bytes are less than the index of a shard"),), len(raw)
        absent = self._absent(raw.to_bytes(), box)
        return tuple(Flaw("missing", shown, f"chunk {inner} of the shard is not there") for inner in absent), len(raw)

    def _inner_errors(self, array: zarr.Array[Any], box: Sequence[slice], error: str) -> Iterator[str]:
        """Which chunks of a shard cannot be decoded; of a chunk, or where its index is damaged, the error itself."""
        if array.shards is None:
            yield f"it cannot be decoded: {error}"
            return
        errors = {inner: _decoding_error(array, part) for inner, part in self._inner(box)}
        if all(errors.values()):
            yield f"it cannot be decoded: {error}"
            return
        yield from (f"chunk {inner} of the shard cannot be decoded: {text}" for inner, text in errors.items() if text)

    def _inner(self, box: Sequence[slice]) -> Iterator[tuple[tuple[int, ...], list[slice]]]:
        """Chunks within a unit that hold cells of the array: their number in it, and their box."""
        counts = [range(-(-(s.stop - s.start) // chunk)) for s, chunk in zip(box, self._array.chunks, strict=True)]
        for inner in product(*counts):
            starts = [s.start + i * chunk for s, i, chunk in zip(box, inner, self._array.chunks, strict=True)]
            ends = [min(a + chunk, s.stop) for a, s, chunk in zip(starts, box, self._array.chunks, strict=True)]
            yield inner, [slice(a, b) for a, b in zip(starts, ends, strict=True)]

    def _absent(self, raw: bytes, box: Sequence[slice]) -> Iterator[tuple[int, ...]]:
        """Chunks that the index of a shard does not have: zarr reads them as the fill value, without a word."""
        if self._array.shards is None:
            return
        counts = [shard // chunk for shard, chunk in zip(self._array.shards, self._array.chunks, strict=True)]
        at_start = self._sharding.get("index_location") == "start"
        index = raw[: self._index_nbytes] if at_start else raw[-self._index_nbytes :]
        offsets = np.frombuffer(index[:-_CRC], dtype="<u8").reshape(*counts, 2)[..., 0]
        yield from (inner for inner, _ in self._inner(box) if offsets[inner] == _ABSENT)

    @property
    def _index_nbytes(self) -> int:
        """Bytes of the index of a shard, with its checksum."""
        if self._array.shards is None:
            return 0
        return 16 * math.prod(self._array.shards) // math.prod(self._array.chunks) + _CRC

    def _fetch(self, key: str) -> Buffer | None:
        path = f"{self._ref.path}/{key}" if self._ref.path else key
        with access.reaching(self._ref.store):
            found: Buffer | None = sync(self._store.get(path, default_buffer_prototype()))
        return found

    def _holding(self, key: str, raw: Buffer) -> zarr.Array[Any]:
        """This thread's array of one write unit alone: to open one takes longer than to decode a small unit."""
        mine = self._mine.__dict__
        if not mine:
            mine["units"] = {}
            mine["array"] = self._opened(mine["units"])
        units, array = mine["units"], mine["array"]
        units.clear()
        units |= {"zarr.json": self._metadata, key: raw}
        return cast("zarr.Array[Any]", array)

    def _opened(self, units: dict[str, Buffer]) -> zarr.Array[Any]:
        """The array with the write units of a mapping, which may change."""
        units["zarr.json"] = self._metadata
        with access.quiet():
            return zarr.open_array(zarr.storage.MemoryStore(units, read_only=True), mode="r")

    def read(self, box: Sequence[slice]) -> Array:
        """Stored numbers of a box."""
        with access.reaching(self._ref.store), access.quiet():
            array = zarr.open_array(self._store, path=self._ref.path, mode="r")
            return np.asarray(array[tuple(box)])


def _is_checked(codec: Mapping[str, Any]) -> bool:
    return codec["name"] in _CHECKED or bool(codec.get("configuration", {}).get("checksum"))


def _decoding_error(array: zarr.Array[Any], box: Sequence[slice]) -> str:
    try:
        array[tuple(box)]
    except Exception as error:  # noqa: BLE001 - whatever a codec raises over these bytes is what is wrong with them
        return f"{type(error).__name__}: {error}"
    return ""
