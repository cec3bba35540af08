"""Outputs before they exist: where they go, how they are cut into chunks and shards, and what they may not replace."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zarr.registry
from zarr.abc.codec import BytesBytesCodec

from tilewise import places
from tilewise.coordinates import ArrayRef
from tilewise.errors import DimensionError, ParameterError, UnsupportedStoreError
from tilewise.fields import OutputSpec, itemsize
from tilewise.packing import Encoding, check_packable, encoding
from tilewise.sources import Source


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
        {"name": "zstd", "configuration": {"level": 9}}. zstd and gzip write a checksum into every chunk.
    attrs
        Attributes by output name, such as {"solution": {"units": "mm/year"}}.
    encoding
        How outputs are packed, by output name: {"solution": {"dtype": "int16", "scale_factor": 0.01}}. A value that
        the dtype cannot hold is written as the missing value, its status becomes non_finite, and the report counts it.
    """

    store: str
    chunks: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] | None = None
    dtype: str | None = None
    codec: str | Mapping[str, Any] = "zstd"
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    encoding: Mapping[str, Encoding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Paths become text; places that cannot be written and sizes that no chunk can have are refused."""
        if isinstance(self.store, Path):
            object.__setattr__(self, "store", str(self.store))
        if isinstance(self.store, str):
            object.__setattr__(self, "store", places.local_path(self.store))
            places.check_writable(self.store, "output.store")
        for name in ("chunks", "shards"):
            sizes = getattr(self, name)
            if not isinstance(sizes, Mapping) and sizes is not None:
                raise ParameterError(
                    f"output.{name} names no dimensions",
                    got=repr(sizes),
                    expected="cells by dimension, such as {'y': 512}",
                    do=f"name the dimensions in output.{name}",
                )
            for dim, size in (sizes or {}).items():
                if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                    raise ParameterError(
                        f"output.{name} of {dim!r} is not a size",
                        got=repr(size),
                        expected="a whole number of cells, at least 1",
                        do=f"mend output.{name}.{dim}",
                    )
        if self.dtype is not None:
            itemsize(self.dtype)
        packed = {name: encoding(given, name) for name, given in self.encoding.items()}
        object.__setattr__(self, "encoding", packed)


@dataclass(frozen=True)
class Target:
    """An output array before it exists: its spec, how it is cut into chunks and shards, and how it is packed."""

    spec: OutputSpec
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    array: ArrayRef
    packing: Encoding | None = None

    @property
    def dtype(self) -> str:
        """Dtype of the stored numbers."""
        return self.packing.dtype if self.packing else self.spec.dtype

    @property
    def fill(self) -> Any:
        """Stored number of a cell that was not computed."""
        return self.packing.fill if self.packing else self.spec.fill

    @property
    def unit(self) -> tuple[int, ...]:
        """Cells of one write unit: the box that two writers must never share."""
        return self.shards or self.chunks

    @property
    def unit_nbytes(self) -> int:
        """Bytes of one write unit."""
        return math.prod(self.unit) * itemsize(self.dtype)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk."""
        return math.prod(self.chunks) * itemsize(self.dtype)


def lay_out(
    output: Output, specs: Iterable[OutputSpec], sources: Iterable[Source], tile_dims: Sequence[str]
) -> tuple[Target, ...]:
    """Chunks and shards of every output.

    Raises
    ------
    DimensionError
        `output.chunks` or `output.shards` name a dimension that no output has, or a shard is not whole chunks.
    ParameterError
        `output.attrs` name an output that there is not.
    """
    specs = tuple(specs)
    _check_attrs(output, [spec.name for spec in specs])
    known = {dim for spec in specs for dim in spec.dims}
    for name in ("chunks", "shards"):
        for dim in getattr(output, name) or {}:
            if dim not in known:
                raise DimensionError(
                    f"output.{name} names {dim!r}, which no output has",
                    expected="one of " + ", ".join(sorted(known)),
                    do=f"mend output.{name}",
                )
    _check_encoding(output, specs)
    default = _default_chunks(output, specs, sources, tile_dims)
    return tuple(_target(output, spec, default) for spec in specs)


def _check_encoding(output: Output, specs: Sequence[OutputSpec]) -> None:
    by_name = {spec.name: spec for spec in specs}
    for name in output.encoding:
        _check_name("encoding", name, list(by_name))
        check_packable(by_name[name])


def _check_attrs(output: Output, names: Sequence[str]) -> None:
    for name, attrs in output.attrs.items():
        if not isinstance(attrs, Mapping):
            raise ParameterError(
                f"output.attrs of {name!r} are not attributes by name",
                got=repr(attrs),
                expected="such as {'units': 'm'}",
                do=f"mend output.attrs.{name}",
            )
        _check_name("attrs", name, names)


def _check_name(key: str, name: str, names: Sequence[str]) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    raise ParameterError(
        f"output.{key} names {name!r}, which is no output",
        expected="one of " + ", ".join(names),
        do=f"write {near[0]} instead of output.{key}.{name}" if near else f"mend output.{key}.{name}",
    )


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
    if output.shards is not None and spec.dims:  # a single value is one chunk, which zarr writes in no shard
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
    return Target(
        spec, chunks, shards, ArrayRef(places.absolute(output.store), spec.name), output.encoding.get(spec.name)
    )


#: Written unless the job says otherwise: with a checksum in every chunk, so that a changed byte is found when it is
#: read. Level 0 is zstd's own default.
_DEFAULTS: dict[str, dict[str, Any]] = {"zstd": {"level": 0, "checksum": True}}


def compressors(codec: str | Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The codec as Zarr v3 metadata; zstd writes checksums unless it is told not to.

    Raises
    ------
    UnsupportedStoreError
        Zarr has no such codec here.

    >>> compressors("zstd")
    ({'configuration': {'level': 0, 'checksum': True}, 'name': 'zstd'},)
    """
    if codec == "none":
        return ()
    found: dict[str, Any] = {"configuration": {}} | ({"name": codec} if isinstance(codec, str) else dict(codec))
    if isinstance(found["configuration"], Mapping):
        found["configuration"] = {**_DEFAULTS.get(str(found.get("name")), {}), **found["configuration"]}
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
