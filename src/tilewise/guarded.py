"""Zarr stores with a guard: what is read came whole, and what is written is never read before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore, ZipStore

#: Of a chunk that Blosc has encoded: its own length is the last of the numbers that it begins with.
_BLOSC_LENGTH = slice(12, 16)


class TornReadError(Exception):
    """A store gave fewer bytes than there are: its chunk is cut off, or was being written."""


class WholeReads(WrapperStore[Store]):
    """A store whose chunks come whole, or not at all.

    Blosc believes the length that a chunk begins with, and reads on behind the end of one that is cut off: what lies
    there in memory becomes numbers, or the process dies. Other codecs refuse what is too short.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.inner = store
        #: Whether chunks are encoded by Blosc.
        self.blosc = False

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Bytes of a key; None where it is not there.

        Raises
        ------
        TornReadError
            Fewer than were asked for, or than a chunk says that it has.
        """
        found = await super().get(key, prototype, byte_range)
        self._check(key, found, byte_range)
        return found

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Bytes of several keys, as `get` gives them."""
        asked = list(key_ranges)
        found = await super().get_partial_values(prototype, asked)
        for (key, byte_range), value in zip(asked, found, strict=True):
            self._check(key, value, byte_range)
        return found

    def _check(self, key: str, found: Buffer | None, byte_range: ByteRequest | None) -> None:
        if found is None:
            return
        expected = 0
        if isinstance(byte_range, RangeByteRequest):
            expected = byte_range.end - byte_range.start
        elif byte_range is None and self.blosc and not key.rpartition("/")[2].startswith((".z", "zarr.json")):
            # What has not even this number is too short for whatever it is.
            whole = len(found) >= _BLOSC_LENGTH.stop
            expected = int.from_bytes(found[_BLOSC_LENGTH].to_bytes(), "little") if whole else _BLOSC_LENGTH.stop
        if len(found) < expected:
            raise TornReadError(f"{key} is cut off: {len(found)} bytes of {expected}")


class UnreadWrites(WrapperStore[Store]):
    """A store of an output whose chunks and shards are written whole, so that zarr need not read them first.

    It reads every shard before it writes it. One that a crash has torn could then never be written again, and
    an old one would need memory that no plan knows of.
    """

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Metadata; of all else, nothing."""
        return await super().get(key, prototype, byte_range) if key.endswith("zarr.json") else None


def open_whole(store: Store, path: str) -> zarr.Array[Any]:
    """An array for reading, whose chunks come whole or not at all."""
    guarded = WholeReads(store)
    array = zarr.open_array(guarded, path=path, mode="r")
    # Within a shard every chunk is asked for by its length.
    guarded.blosc = array.shards is None and _ends_with_blosc(array)
    return array


def close_archive(array: zarr.Array[Any]) -> None:
    """Close the zip archive behind an array, where it lies in one: other stores hold nothing open."""
    store = array.store_path.store
    store = store.inner if isinstance(store, WholeReads) else store
    if isinstance(store, ZipStore):
        store.close()


def _ends_with_blosc(array: zarr.Array[Any]) -> bool:
    last = array.compressors[-1:]
    return any(isinstance(codec, BloscCodec) or getattr(codec, "codec_id", "") == "blosc" for codec in last)
