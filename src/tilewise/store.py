"""Zarr data: read boxes into buffers, write whole write units, create the template of an output.

Region reads and writes go straight through zarr, which costs a tenth of the same through xarray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer.cpu import NDBuffer

from tilewise import access, cf
from tilewise.coordinates import Array, ArrayRef, Coordinate
from tilewise.decoding import Decoding
from tilewise.foreign import ForeignArray
from tilewise.guarded import UnreadWrites
from tilewise.linalg.blocks import boxes
from tilewise.outputs import Output, Target, compressors
from tilewise.packing import PANEL, Encoding
from tilewise.sources import Source

#: Chunks that one request to zarr may touch.
READ_CHUNKS = 1024
#: Stored bytes that are read in one piece where they are decoded, unless one chunk has more.
PIECE_BYTES = 16 << 20


def create(output: Output, targets: Iterable[Target], sources: Sequence[Source], attrs: Mapping[str, Any]) -> None:
    """Write the template of an output: group, arrays without data, coordinates, attributes.

    Nothing may be there any more: `clear` has seen to that.
    """
    with access.reaching(output.store):
        _create(output, targets, sources, attrs)


def _create(output: Output, targets: Iterable[Target], sources: Sequence[Source], attrs: Mapping[str, Any]) -> None:
    group = zarr.create_group(access.zarr_store(output.store, read_only=False), zarr_format=3, attributes=dict(attrs))
    coordinates: dict[str, Coordinate] = {}
    for source in sources:
        for name, coordinate in source.coordinates.items():
            coordinates.setdefault(name, coordinate)
    written: set[str] = set()
    for target in targets:
        own = [c for c in coordinates.values() if set(c.dims) <= set(target.spec.dims)]
        _create_array(group, output, target, own)
        for coordinate in own:
            if coordinate.name not in written:
                _copy_coordinate(group, coordinate)
                written.add(coordinate.name)
    with access.quiet():
        zarr.consolidate_metadata(group.store)


def _create_array(group: zarr.Group, output: Output, target: Target, coordinates: Sequence[Coordinate]) -> None:
    spec = target.spec
    attrs = {**spec.attrs, **output.attrs.get(spec.name, {})}
    if target.packing:
        attrs |= {**target.packing.attrs, **encoded_fill(target.fill, target.dtype)}
    extra = [c.name for c in coordinates if c.dims != (c.name,)]
    if extra:
        attrs["coordinates"] = " ".join(extra)
    grids = [c.name for c in coordinates if c.is_grid_mapping]
    if grids:  # what is computed at every pixel lies on the grid of the pixels
        attrs.setdefault("grid_mapping", grids[0])
    group.create_array(
        spec.name,
        shape=spec.shape,
        chunks=target.chunks,
        shards=target.shards,
        dtype=target.dtype,
        fill_value=target.fill,
        compressors=compressors(output.codec),
        dimension_names=spec.dims,
        attributes=attrs,
        config={"write_empty_chunks": True},
    )


def _copy_coordinate(group: zarr.Group, coordinate: Coordinate) -> None:
    """Copy the stored numbers of a coordinate, with what they mean: its packing and its missing value."""
    source = coordinate.array.open()
    dtype = source.dtype if source.dtype.kind in "OT" else source.dtype.newbyteorder("=")
    fill = coordinate.attrs.get("_FillValue")
    with access.quiet():
        array = group.create_array(
            coordinate.name,
            shape=source.shape,
            chunks=source.chunks,
            dtype=dtype,
            compressors=compressors("zstd"),
            dimension_names=coordinate.dims,
            attributes={**cf.kept_attrs(coordinate.attrs), **encoded_fill(fill, dtype)},
            config={"write_empty_chunks": True},
        )
    whole = tuple(slice(0, n) for n in source.shape)
    for part in write_units(whole, source.chunks):
        array[part] = source[part]


def encoded_fill(fill: Any, dtype: Any) -> dict[str, Any]:
    """`_FillValue` as an attribute of Zarr format 3, in the form that xarray writes and reads; none where none fits.

    >>> encoded_fill(-1, "int16"), encoded_fill(float("nan"), "int16"), encoded_fill(float("nan"), "float32")
    ({'_FillValue': -1}, {}, {'_FillValue': 'AAAAAAAA+H8='})
    """
    from xarray.backends.zarr import FillValueCoder

    try:
        return {} if fill is None else {"_FillValue": FillValueCoder.encode(fill, np.dtype(dtype))}
    except (TypeError, ValueError):
        return {}


def open_target(target: ArrayRef) -> zarr.Array[Any]:
    """The array of an output, for writing: all-fill chunks are written, so that they differ from missing ones."""
    store = UnreadWrites(access.zarr_store(target.store, read_only=False))
    array = zarr.open_array(store, path=target.path, mode="r+")
    # open_array takes a config only for an array that it creates.
    return array.with_config({"write_empty_chunks": True})


def read_box(
    arrays: Sequence[zarr.Array[Any] | ForeignArray],
    stacked: bool,
    box: Sequence[slice],
    out: Array,
    decodings: Sequence[Decoding | None] = (),
) -> None:
    """Read a box into `out`, decoded and converted to its dtype piece by piece; stacked arrays fill its first axis."""
    decodings = decodings or (None,) * len(arrays)
    if not stacked:
        _read(arrays[0], decodings[0], box, out)
        return
    first, *rest = box
    for row, (array, decoding) in enumerate(zip(arrays[first], decodings[first], strict=True)):
        _read(array, decoding, rest, out[row])


def _read(array: zarr.Array[Any] | ForeignArray, decoding: Decoding | None, box: Sequence[slice], out: Array) -> None:
    """Read a box a bounded number of chunks at a time: zarr holds some KiB for every chunk of one request."""
    unit = array.shards or array.chunks
    for part in aligned_parts(box, unit, _most(array, decoding)):
        local = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
        if decoding is None:
            array.get_basic_selection(part, out=NDBuffer.from_numpy_array(out[local]))
            continue
        stored = np.empty([p.stop - p.start for p in part], dtype=decoding.stored)
        array.get_basic_selection(part, out=NDBuffer.from_numpy_array(stored))
        decoding.decode(stored, out[local])


def _most(array: zarr.Array[Any] | ForeignArray, decoding: Decoding | None) -> int:
    """Chunks, or shards, of one request: what is decoded, or copied, is held twice meanwhile."""
    chunks, shards = array.chunks, array.shards
    most = READ_CHUNKS if shards is None else max(1, READ_CHUNKS * math.prod(chunks) // math.prod(shards))
    if decoding is None and not isinstance(array, ForeignArray):
        return most
    return max(1, min(most, PIECE_BYTES // (math.prod(shards or chunks) * array.dtype.itemsize)))


def aligned_parts(box: Sequence[slice], unit: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Parts of a box, each of at most `most` chunks of shape `unit`, cut along their edges.

    >>> list(aligned_parts((slice(1, 10),), (4,), 2))
    [(slice(1, 8, None),), (slice(8, 10, None),)]
    """
    first = [s.start // u for s, u in zip(box, unit, strict=True)]
    count = [-(-s.stop // u) - a for s, u, a in zip(box, unit, first, strict=True)]
    for block in boxes(count, most):
        yield tuple(
            slice(max(s.start, (a + b.start) * u), min(s.stop, (a + b.stop) * u))
            for s, u, a, b in zip(box, unit, first, block, strict=True)
        )


def _nothing() -> None:
    """Nobody has to be asked."""


def write_box(
    array: zarr.Array[Any],
    box: Sequence[slice],
    values: Array,
    packing: Encoding | None = None,
    before: Callable[[], object] = _nothing,
) -> None:
    """Write a box, packed where asked, one write unit at a time; `before` is called before each of them.

    A write unit that is given whole is encoded as it is: zarr would first fill a fresh chunk for each chunk of a
    larger region. Peak memory is one write unit, however large the box.
    """
    unit = array.shards or array.chunks
    for part in write_units(box, unit):
        local = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
        before()
        array.set_basic_selection(part, packed(view(values, local), packing) if packing else view(values, local))


def packed(values: Array, packing: Encoding) -> Array:
    """The numbers that are stored for values, panel by panel, so that temporaries stay small."""
    stored = np.empty(values.shape, dtype=packing.dtype)
    for box in boxes(values.shape, PANEL):
        stored[box] = packing.pack(view(values, box))
    return stored


def view(values: Array, box: Sequence[slice]) -> Array:
    """The part of an array in a box, as an array in every case: an array without axes would give its value.

    >>> view(np.array(3.0), ())
    array(3.)
    """
    index: tuple[Any, ...] = (*box, ...)
    part: Array = values[index]
    return part


def write_units(box: Sequence[slice], unit: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Parts of a box, each within one write unit.

    >>> list(write_units((slice(4, 10),), (4,)))
    [(slice(4, 8, None),), (slice(8, 10, None),)]
    """
    axes = [
        [slice(a, min(a + size, s.stop)) for a in range(s.start, s.stop, size)]
        for s, size in zip(box, unit, strict=True)
    ]
    yield from product(*axes)


def concrete(box: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
    """The same box without open ends.

    >>> concrete((slice(None), slice(2, 5)), (3, 9))
    (slice(0, 3, None), slice(2, 5, None))
    """
    return tuple(slice(*s.indices(size)[:2]) for s, size in zip(box, shape, strict=True))
