"""Outputs before they exist: where they go, how they are cut into chunks and shards, and what they may not replace."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zarr.registry
from zarr.abc.codec import BytesBytesCodec

from tilewise import places
from tilewise.coordinates import ArrayRef
from tilewise.errors import DimensionError, OutputExistsError, ParameterError, UnsupportedStoreError
from tilewise.fields import OutputSpec, itemsize
from tilewise.folders import Folder
from tilewise.sources import Input, Source


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where and how outputs are written: a Zarr v3 group with one array an output.

    Attributes
    ----------
    store
        Path or URL of the group.
    chunks, shards
        Cells by dimension. Tile dimensions left out take the input's chunk, halved while a chunk would exceed
        64 MiB; other dimensions are whole.
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
        """Paths become text; places that cannot be written and sizes that no chunk can have are refused."""
        if isinstance(self.store, Path):
            object.__setattr__(self, "store", str(self.store))
        if isinstance(self.store, str):
            object.__setattr__(self, "store", places.local_path(self.store))
            places.check_writable(self.store, "output.store")
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
    default = _default_chunks(output, specs, sources, tile_dims)
    return tuple(_target(output, spec, default) for spec in specs)


#: Decoded bytes above which a default chunk is halved: a point set against a primitive set makes chunks of both.
CHUNK_BYTES = 64 << 20


def _default_chunks(
    output: Output, specs: Sequence[OutputSpec], sources: Iterable[Source], tile_dims: Sequence[str]
) -> dict[str, int]:
    """Chunk along each tile dimension: that of the first input that has it, halved where the chunks get too large.

    One choice for all outputs, made for the largest, so that their write units are the same boxes.
    """
    found = dict(output.chunks)
    for source in sources:
        for dim, chunk in zip(source.spec.dims, source.chunks, strict=True):
            if dim in tile_dims:
                found.setdefault(dim, chunk)
    free = [dim for dim in tile_dims if dim not in output.chunks]
    largest = max(specs, key=lambda spec: spec.nbytes)

    def nbytes() -> int:
        return math.prod(min(found.get(d, n), n) for d, n in largest.sizes.items()) * itemsize(largest.dtype)

    while nbytes() > CHUNK_BYTES and any(found[dim] > 1 for dim in free):
        widest = max(free, key=lambda dim: min(found[dim], largest.sizes[dim]))
        found[widest] = -(-min(found[widest], largest.sizes[widest]) // 2)
    return found


def _target(output: Output, spec: OutputSpec, default: Mapping[str, int]) -> Target:
    chunks = tuple(min(default.get(dim, size), size) for dim, size in spec.sizes.items())
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
        found_class = zarr.registry.get_codec_class(str(found.get("name")))
        if not issubclass(found_class, BytesBytesCodec):
            raise TypeError(f"{found.get('name')} does not compress bytes")
        found_class.from_dict(dict(found))
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
    StoreAccessError
        Its remote place cannot be reached.
    """
    if not output.store:
        raise UnsupportedStoreError("output.store is empty", expected="a path", do="name a folder to write to")
    refuse_overlap("the output", output.store, inputs)
    folder = Folder(output.store)
    if folder.path is not None:
        _check_permission(folder.path)
    if not folder.exists():
        return
    if not overwrite:
        raise OutputExistsError(f"{output.store} already exists", do="choose another output.store, or pass --overwrite")
    if not _is_store(folder):
        raise OutputExistsError(
            f"{output.store} exists and is no Zarr store, or holds other files, so it is not overwritten",
            do="choose another output.store",
        )


def _check_permission(path: Path) -> None:
    parent = next(folder for folder in path.resolve().parents if folder.exists())
    if not os.access(parent, os.W_OK) or path.is_symlink():
        raise OutputExistsError(
            f"{path} cannot be written",
            got=f"{parent}",
            expected="a folder to write in, and no link",
            do="choose another output.store",
        )


def refuse_overlap(what: str, store: str, inputs: Iterable[Input]) -> None:
    """Refuse a folder that is an input, or lies inside one or around one."""
    for source in inputs:
        if isinstance(source.store, str) and places.overlap(store, source.store):
            raise OutputExistsError(
                f"{what} and an input are the same store, or one lies inside the other",
                got=f"{store}, input {source.store}",
                do="choose another place",
            )


_MARKS = ("zarr.json", ".zgroup", ".zarray")
_METADATA = (*_MARKS, ".zattrs", ".zmetadata")


def _is_store(folder: Folder) -> bool:
    """Whether a folder is empty, or a Zarr store with nothing beside it."""
    if folder.is_file():
        return False
    names = folder.names()
    if not names:
        return True
    mark = next((name for name in _MARKS if name in names), None)
    if mark is None:
        return False
    try:
        found = json.loads(folder.read_text(mark) or "")
    except ValueError:
        return False
    if not isinstance(found, dict) or "zarr_format" not in found:
        return False
    if mark == ".zarray" or found.get("node_type") == "array":
        return True
    return all(n in _METADATA or _is_node(folder.child(n)) for n in names)


def _is_node(folder: Folder) -> bool:
    return any(folder.read_text(mark) is not None for mark in _MARKS)
