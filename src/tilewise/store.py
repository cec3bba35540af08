"""Zarr data: read boxes into buffers, write whole write units, create the template of an output.

Region reads and writes go straight through zarr, which costs a tenth of the same through xarray.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import zarr
import zarr.errors
import zarr.registry
from zarr.core.buffer.cpu import NDBuffer

from tilewise import cf, places
from tilewise.coordinates import Array, ArrayRef, Coordinate
from tilewise.folders import Folder
from tilewise.linalg.blocks import boxes
from tilewise.outputs import Output, Target, compressors
from tilewise.sources import Source

#: Chunks that one request to zarr may touch.
READ_CHUNKS = 1024


def create(output: Output, targets: Iterable[Target], sources: Sequence[Source], attrs: Mapping[str, Any]) -> None:
    """Write the template of an output: group, arrays without data, coordinates, attributes.

    A store that was there is removed first: what may be removed has been settled by `check_output`.
    """
    Folder(output.store).remove()
    with places.reaching(output.store):
        _create(output, targets, sources, attrs)


def _create(output: Output, targets: Iterable[Target], sources: Sequence[Source], attrs: Mapping[str, Any]) -> None:
    group = zarr.create_group(places.zarr_store(output.store, read_only=False), zarr_format=3, attributes=dict(attrs))
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
    with quiet():
        zarr.consolidate_metadata(group.store)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence two warnings of zarr about what other readers may not know.

    Consolidated metadata may be ignored by them, and xarray warns where it is missing; text labels are a dtype that
    zarr-python and xarray share, if not yet one of the Zarr v3 specification.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.UnstableSpecificationWarning)
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part", zarr.errors.ZarrUserWarning)
        yield


def _create_array(group: zarr.Group, output: Output, target: Target, coordinates: Sequence[Coordinate]) -> None:
    spec = target.spec
    attrs = {**spec.attrs, **output.attrs.get(spec.name, {})}
    extra = [c.name for c in coordinates if c.dims != (c.name,)]
    if extra:
        attrs["coordinates"] = " ".join(extra)
    group.create_array(
        spec.name,
        shape=spec.shape,
        chunks=target.chunks,
        shards=target.shards,
        dtype=spec.dtype,
        fill_value=spec.fill,
        compressors=compressors(output.codec),
        dimension_names=spec.dims,
        attributes=attrs,
        config={"write_empty_chunks": True},
    )


def _copy_coordinate(group: zarr.Group, coordinate: Coordinate) -> None:
    source = coordinate.array.open()
    with quiet():
        array = group.create_array(
            coordinate.name,
            shape=source.shape,
            chunks=source.chunks,
            dtype=source.dtype if source.dtype.kind in "OT" else source.dtype.newbyteorder("="),
            dimension_names=coordinate.dims,
            attributes=cf.kept_attrs(dict(source.attrs)),
            config={"write_empty_chunks": True},
        )
    whole = tuple(slice(0, n) for n in source.shape)
    for part in write_units(whole, source.chunks):
        array[part] = source[part]


def open_target(target: ArrayRef) -> zarr.Array[Any]:
    """The array of an output, for writing: all-fill chunks are written, so that they differ from missing ones."""
    array = zarr.open_array(places.zarr_store(target.store, read_only=False), path=target.path, mode="r+")
    # open_array takes a config only for an array that it creates.
    return array.with_config({"write_empty_chunks": True})


def read_box(arrays: Sequence[zarr.Array[Any]], stacked: bool, box: Sequence[slice], out: Array) -> None:
    """Read a box into `out`, converted to its dtype chunk by chunk; stacked arrays fill its first axis."""
    if not stacked:
        _read(arrays[0], box, out)
        return
    first, *rest = box
    for row, array in enumerate(arrays[first]):
        _read(array, rest, out[row])


def _read(array: zarr.Array[Any], box: Sequence[slice], out: Array) -> None:
    """Read a box a bounded number of chunks at a time: zarr holds some KiB for every chunk of one request."""
    chunks, shards = array.chunks, array.shards
    most = READ_CHUNKS if shards is None else max(1, READ_CHUNKS * math.prod(chunks) // math.prod(shards))
    for part in aligned_parts(box, shards or chunks, most):
        local = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
        array.get_basic_selection(part, out=NDBuffer.from_numpy_array(out[local]))


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


def write_box(array: zarr.Array[Any], box: Sequence[slice], values: Array) -> None:
    """Write a box, one write unit at a time.

    A write unit that is given whole is encoded as it is: zarr would first fill a fresh chunk for each chunk of a
    larger region. Peak memory is one write unit, however large the box.
    """
    unit = array.shards or array.chunks
    for part in write_units(box, unit):
        local = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
        array[part] = values[local]


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
