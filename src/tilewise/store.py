"""Zarr data: read boxes into buffers, write whole write units, create the template of an output.

Region reads and writes go straight through zarr, which costs a tenth of the same through xarray.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import zarr
import zarr.errors
import zarr.registry
from zarr.core.buffer.cpu import NDBuffer

from tilewise import cf
from tilewise.coordinates import Array, ArrayRef, Coordinate
from tilewise.errors import (
    DimensionError,
    OutputExistsError,
    ParameterError,
    UnsupportedStoreError,
)
from tilewise.fields import OutputSpec, itemsize
from tilewise.sources import Input, Source


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where and how outputs are written: a Zarr v3 group with one array an output.

    Attributes
    ----------
    store
        Path of the group.
    chunks, shards
        Cells by dimension; dimensions left out take the input's chunk (tile dimensions) or their whole size.
        Without `shards` the output is not sharded.
    dtype
        Dtype of the floating outputs, where it is not to be the declared one.
    codec
        "zstd", "gzip", "blosc", "none", or a codec as Zarr v3 metadata writes it:
        {"name": "zstd", "configuration": {"level": 9}}.
    attrs
        Attributes by output name, such as {"solution": {"units": "mm/year"}}.
    """

    store: str
    chunks: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] | None = None
    dtype: str | None = None
    codec: str | Mapping[str, Any] = "zstd"
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Paths become text; sizes that no chunk can have are refused."""
        if isinstance(self.store, Path):
            object.__setattr__(self, "store", str(self.store))
        for name in ("chunks", "shards"):
            for dim, size in (getattr(self, name) or {}).items():
                if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                    raise ParameterError(
                        f"output.{name} of {dim!r} is not a size",
                        got=repr(size),
                        expected="a whole number of cells, at least 1",
                        do=f"mend output.{name}.{dim}",
                    )
        if self.dtype is not None:
            itemsize(self.dtype)


@dataclass(frozen=True)
class Target:
    """An output array before it exists: its spec and how it is cut into chunks and shards."""

    spec: OutputSpec
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    array: ArrayRef

    @property
    def unit(self) -> tuple[int, ...]:
        """Cells of one write unit: the box that two writers must never share."""
        return self.shards or self.chunks

    @property
    def unit_nbytes(self) -> int:
        """Bytes of one write unit."""
        return math.prod(self.unit) * itemsize(self.spec.dtype)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk."""
        return math.prod(self.chunks) * itemsize(self.spec.dtype)


def lay_out(
    output: Output, specs: Iterable[OutputSpec], sources: Iterable[Source], tile_dims: Sequence[str]
) -> tuple[Target, ...]:
    """Chunks and shards of every output.

    Raises
    ------
    DimensionError
        `output.chunks` or `output.shards` name a dimension that no output has, or a shard is not whole chunks.
    """
    specs = tuple(specs)
    known = {dim for spec in specs for dim in spec.dims}
    for name in ("chunks", "shards"):
        for dim in getattr(output, name) or {}:
            if dim not in known:
                raise DimensionError(
                    f"output.{name} names {dim!r}, which no output has",
                    expected="one of " + ", ".join(sorted(known)),
                    do=f"mend output.{name}",
                )
    default = _input_chunks(sources, tile_dims)
    return tuple(_target(output, spec, default) for spec in specs)


def _input_chunks(sources: Iterable[Source], tile_dims: Sequence[str]) -> dict[str, int]:
    """Chunk along each tile dimension of the first input that has it."""
    found: dict[str, int] = {}
    for source in sources:
        for dim, chunk in zip(source.spec.dims, source.chunks, strict=True):
            if dim in tile_dims:
                found.setdefault(dim, chunk)
    return found


def _target(output: Output, spec: OutputSpec, default: Mapping[str, int]) -> Target:
    sizes = spec.sizes
    chunks = tuple(min(output.chunks.get(dim, default.get(dim, size)), size) for dim, size in sizes.items())
    shards = None
    if output.shards is not None:
        wanted = tuple(output.shards.get(dim, chunk) for dim, chunk in zip(spec.dims, chunks, strict=True))
        # A shard larger than the array is the same as one of just enough chunks.
        shards = tuple(min(size, -(-n // c) * c) for size, n, c in zip(wanted, spec.shape, chunks, strict=True))
        for dim, shard, chunk in zip(spec.dims, shards, chunks, strict=True):
            if shard % chunk:
                raise DimensionError(
                    f"the shard of {spec.name!r} along {dim!r} is not a whole number of chunks",
                    got=f"{shard} for chunks of {chunk}",
                    expected=f"a multiple of {chunk}",
                    do=f"set output.shards.{dim} to {max(1, shard // chunk) * chunk}",
                )
    return Target(spec, chunks, shards, ArrayRef(output.store, spec.name))


def compressors(codec: str | Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The codec as Zarr v3 metadata.

    Raises
    ------
    UnsupportedStoreError
        Zarr has no such codec here.

    >>> compressors("zstd")
    ({'configuration': {}, 'name': 'zstd'},)
    """
    if codec == "none":
        return ()
    found: dict[str, Any] = {"configuration": {}} | ({"name": codec} if isinstance(codec, str) else dict(codec))
    try:
        zarr.registry.get_codec_class(str(found.get("name"))).from_dict(dict(found))
    except (KeyError, ValueError, TypeError) as error:
        raise UnsupportedStoreError(
            f"codec {codec!r} cannot be used",
            got=error,
            expected="zstd, gzip, blosc, none, or a codec as Zarr v3 metadata writes it",
            do="mend output.codec",
        ) from error
    return (found,)


def check_output(output: Output, inputs: Iterable[Input], *, overwrite: bool) -> None:
    """Refuse to write over an input, or over anything at all unless asked to.

    Raises
    ------
    OutputExistsError
        The output is an input, lies inside one or around one, exists, or is no Zarr store.
    """
    out = Path(output.store).resolve()
    for source in inputs:
        if not isinstance(source.store, str) or "://" in source.store:
            continue
        path = Path(source.store).resolve()
        if path == out or path in out.parents or out in path.parents:
            raise OutputExistsError(
                "the output and an input are the same store, or one lies inside the other",
                got=f"output {output.store}, input {source.store}",
                do="choose another output.store",
            )
    if not out.exists():
        return
    if not overwrite:
        raise OutputExistsError(f"{output.store} already exists", do="choose another output.store, or pass --overwrite")
    if any(out.iterdir() if out.is_dir() else [out]) and not any((out / name).exists() for name in _MARKS):
        raise OutputExistsError(
            f"{output.store} exists and is no Zarr store, so it is not overwritten", do="choose another output.store"
        )


_MARKS = ("zarr.json", ".zgroup", ".zarray")


def create(output: Output, targets: Iterable[Target], sources: Sequence[Source], attrs: Mapping[str, Any]) -> None:
    """Write the template of an output: group, arrays without data, coordinates, attributes.

    A local store that was there is removed first: what may be removed has been settled by `check_output`.
    """
    if Path(output.store).exists():
        shutil.rmtree(output.store)
    group = zarr.create_group(output.store, zarr_format=3, attributes=dict(attrs))
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
        zarr.consolidate_metadata(output.store)


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
    array = zarr.open_array(target.store, path=target.path, mode="r+")
    # open_array takes a config only for an array that it creates.
    return array.with_config({"write_empty_chunks": True})


def read_box(arrays: Sequence[zarr.Array[Any]], stacked: bool, box: Sequence[slice], out: Array) -> None:
    """Read a box into `out`, converted to its dtype chunk by chunk; stacked arrays fill its first axis."""
    if not stacked:
        arrays[0].get_basic_selection(tuple(box), out=NDBuffer.from_numpy_array(out))
        return
    first, *rest = box
    for row, array in enumerate(arrays[first]):
        array.get_basic_selection(tuple(rest), out=NDBuffer.from_numpy_array(out[row]))


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
