"""Bytes of a worker process, predicted line by line from specs and chunks alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewise import places
from tilewise.decoding import PANEL_BYTES
from tilewise.fields import itemsize
from tilewise.foreign import CACHE_BYTES
from tilewise.kernels.base import Kernel, Signature
from tilewise.machine import ARENAS, TRIM_THRESHOLD
from tilewise.outputs import Target
from tilewise.packing import PANEL_BYTES as PACKING_BYTES
from tilewise.sources import Source
from tilewise.store import PIECE_BYTES, READ_CHUNKS

#: Chunks that zarr reads, decodes or encodes at a time within one slot; the worker set-up sets zarr to it.
CONCURRENCY = 2
#: Bytes that zarr holds for each chunk of one request: 2.7 KiB were seen, and as much again for one within a shard.
REQUEST_BYTES = 8 << 10
#: Bytes that an arena of the allocator may keep of what was freed: the trim threshold that the worker set-up gives it,
#: and the largest to which glibc raises it by itself.
ALLOCATOR_KEEPS = TRIM_THRESHOLD


@dataclass(frozen=True)
class Memory:
    """Predicted bytes of one worker process, line by line; `peak` is their sum.

    Attributes
    ----------
    baseline
        A worker with everything imported and one warm-up tile done.
    shared
        Inputs without tile dimensions, and the larger of the kernel's state and the peak of preparing it.
    boxes, outputs
        Buffers of one slot: input boxes as the kernel reads them, and outputs.
    transient
        The largest of decoding an input, the kernel's workspace, and encoding an output, of one slot.
    slots
        Tiles in work at a time within the process.
    settled
        Whether the allocator has been given a number of arenas; else every tile in work may fill one.
    """

    baseline: int
    shared: int
    boxes: int
    outputs: int
    transient: int
    slots: int
    settled: bool = True

    @property
    def allocator(self) -> int:
        """What the allocator may keep of freed memory."""
        return (ARENAS if self.settled else 1 + self.slots) * ALLOCATOR_KEEPS

    @property
    def per_slot(self) -> int:
        """Bytes that every slot needs."""
        return self.boxes + self.outputs + self.transient

    @property
    def peak(self) -> int:
        """Predicted peak of the process."""
        return self.baseline + self.shared + self.slots * self.per_slot + self.allocator


@dataclass(frozen=True)
class Workload:
    """What is to be planned: a kernel's signature with the inputs found and the outputs laid out for it."""

    kernel: Kernel
    signature: Signature
    sources: Mapping[str, Source]
    targets: tuple[Target, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """Cells along each tile dimension."""
        sizes = self.signature.sizes
        return tuple(sizes[dim] for dim in self.signature.tile_dims)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the inputs that are read tile by tile, decoded as they are stored."""
        streamed = (self.sources[name] for name in self.signature.streamed)
        return sum(math.prod(source.spec.shape) * source.stored_itemsize for source in streamed)

    @property
    def write_bytes(self) -> int:
        """Bytes of the outputs, before they are encoded."""
        return sum(math.prod(target.spec.shape) * itemsize(target.dtype) for target in self.targets)

    @property
    def unit(self) -> tuple[int, ...]:
        """Smallest tile: whole write units of every output along every tile dimension."""
        axes = [dict(zip(t.spec.dims, t.unit, strict=True)) for t in self.targets]
        return tuple(
            min(math.lcm(*(axis[dim] for axis in axes)), size)
            for dim, size in zip(self.signature.tile_dims, self.size, strict=True)
        )

    @property
    def aligned(self) -> tuple[int, ...]:
        """Smallest tile that is also whole chunks of the largest input that is chunked along the dimension."""
        streamed = sorted((self.sources[n] for n in self.signature.streamed), key=lambda s: s.spec.nbytes, reverse=True)
        shape = []
        for dim, unit, size in zip(self.signature.tile_dims, self.unit, self.size, strict=True):
            chunk = next(
                (dict(zip(s.spec.dims, s.chunks, strict=True))[dim] for s in streamed if dim in s.spec.dims), 1
            )
            shape.append(min(math.lcm(unit, chunk), size))
        return tuple(shape)

    def memory(self, tile: Sequence[int], *, baseline: int, slots: int, panel: int, settled: bool = True) -> Memory:
        """Predicted bytes of a worker process for tiles of this shape."""
        signature = self.signature
        sizes = {**signature.sizes, **dict(zip(signature.tile_dims, tile, strict=True))}
        boxes = {n: _box_nbytes(signature.fields[n].dims, sizes, signature.reads[n]) for n in signature.streamed}
        footprint = self.kernel.footprint(signature)
        shared = sum(_box_nbytes(signature.fields[n].dims, sizes, signature.reads[n]) for n in signature.shared)
        decode_shared = max((_decode_nbytes(self.sources[n], None) for n in signature.shared), default=0)
        return Memory(
            baseline=baseline,
            shared=shared + max(footprint.state, footprint.peak, decode_shared),
            boxes=sum(boxes.values()),
            outputs=sum(_box_nbytes(t.spec.dims, {**t.spec.sizes, **sizes}, t.spec.dtype) for t in self.targets),
            transient=max(
                max((_decode_nbytes(self.sources[n], sizes) for n in boxes), default=0),
                self.kernel.workspace(signature, sizes, panel=panel),
                max(_encode_nbytes(t) for t in self.targets),
            ),
            slots=slots,
            settled=settled,
        )


def _box_nbytes(dims: Sequence[str], sizes: Mapping[str, int], dtype: str) -> int:
    return math.prod(sizes[dim] for dim in dims) * itemsize(dtype)


def _decode_nbytes(source: Source, sizes: Mapping[str, int] | None) -> int:
    """Bytes that reading needs beside the buffer it fills: what zarr has in flight, compressed and decoded.

    A codec never makes a chunk noticeably larger, so that the compressed bytes are bounded by the decoded ones.
    Of a shard zarr holds the compressed bytes and the decoded part that is wanted, at most the shard.
    """
    if any(ref.format != "zarr" for ref in source.arrays):
        return _piece_nbytes(source)
    copies = 2 + _arrives_in_pieces(source)
    flight = CONCURRENCY * copies * source.chunk_nbytes + _piece_nbytes(source)
    cells = source.spec.shape if sizes is None else tuple(sizes[dim] for dim in source.spec.dims)
    # A box that is not aligned touches one chunk more along each dimension.
    touched = math.prod(n // c + 2 for n, c in zip(cells, source.chunks, strict=True))
    if source.shard is None:
        whole = source.spec.nbytes
        request = min(READ_CHUNKS, touched) * REQUEST_BYTES
        return min(flight, copies * max(whole, source.chunk_nbytes) + _piece_nbytes(source)) + request
    inner = math.prod(source.shard) // math.prod(source.chunks)
    flight += min(max(READ_CHUNKS, inner), touched) * REQUEST_BYTES
    wanted = source.shard_nbytes
    if sizes is not None:
        part = [min(sizes[dim], n) for dim, n in zip(source.spec.dims, source.shard, strict=True)]
        wanted = math.prod(part) * itemsize(source.spec.dtype)
    return CONCURRENCY * ((copies - 1) * source.shard_nbytes + wanted) + flight


def _arrives_in_pieces(source: Source) -> bool:
    """Whether compressed bytes come over a network: they are there in pieces, and joined."""
    return any(places.is_url(ref.store) for ref in source.arrays)


def _piece_nbytes(source: Source) -> int:
    """Bytes of the stored numbers that are read in one piece, where they lie in a buffer of their own for a while."""
    foreign = [ref for ref in source.arrays if ref.format != "zarr"]
    if not source.decodings and not foreign:
        return 0
    unit = math.prod(source.shard or source.chunks) * source.stored_itemsize
    piece = min(max(PIECE_BYTES, unit), max(unit, source.spec.nbytes))
    return piece * (2 if foreign else 1) + PANEL_BYTES + len(foreign) * CACHE_BYTES


def _encode_nbytes(target: Target) -> int:
    """Bytes that zarr needs to write one write unit: contiguous copies, compressed bytes, and a shard put together."""
    copies = 3 + places.is_url(target.array.store)  # what is sent is a copy of its own
    packed = target.unit_nbytes + PACKING_BYTES if target.packing else 0
    if target.shards is None:
        return packed + copies * target.unit_nbytes
    inner = math.prod(target.shards) // math.prod(target.chunks)
    return packed + copies * target.unit_nbytes + CONCURRENCY * 2 * target.chunk_nbytes + inner * REQUEST_BYTES


def megabytes(count: int) -> str:
    """Bytes as a person reads them, rounded up.

    >>> megabytes(3 << 20), megabytes(50_000_000_000)
    ('3 MiB', '46.6 GiB')
    """
    if count < 10 << 30:
        return f"{-(-count >> 20)} MiB"
    return f"{-(-count * 10 >> 30) / 10:.1f} GiB"
