"""Inputs as they are found: stores, variables, dimension names and coordinates. Metadata only."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import zarr
import zarr.errors

from tilewise import cf, nodes, places
from tilewise.coordinates import ArrayRef, Coordinate
from tilewise.errors import (
    CoordinateError,
    DimensionError,
    DTypeError,
    MissingStoreError,
    MissingVariableError,
    UnsupportedStoreError,
)
from tilewise.fields import FieldSpec, itemsize, result_dtype


@dataclass(frozen=True, kw_only=True)
class Input:
    """Where a field is read from.

    Attributes
    ----------
    store
        Path or URL of a Zarr group or of a bare array (v2 or v3), or path of a zip archive of one; or in-memory
        data: a numpy array (with `dims`) or an xarray DataArray.
    variable
        Array within the group. May be left out where the group has one of the input's name, or just one.
    variables, stack
        Several arrays of one shape, stacked along a new dimension named `stack`.
    dims
        Names of the axes, where the store has none; where it has some, these replace them.
    """

    store: Any
    variable: str | None = None
    variables: tuple[str, ...] | None = None
    stack: str | None = None
    dims: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Lists become tuples; contradictions are refused."""
        for name in ("variables", "dims"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.store, Path):
            object.__setattr__(self, "store", str(self.store))
        if isinstance(self.store, str):
            object.__setattr__(self, "store", places.local_path(self.store))
            places.without_credentials(self.store, "the store of an input")
        if self.variable is not None and self.variables is not None:
            raise DimensionError(
                "an input names both one variable and several",
                got=f"variable {self.variable!r} and variables {self.variables}",
                do="keep one of the two",
            )
        if (self.variables is None) != (self.stack is None):
            raise DimensionError(
                "several variables need the name of the dimension they are stacked along, and the reverse",
                got=f"variables {self.variables}, stack {self.stack!r}",
                do="give both variables and stack",
            )

    @property
    def in_memory(self) -> bool:
        """Whether the data is here already, and has to be written down before it can be streamed."""
        return not isinstance(self.store, str)


@dataclass(frozen=True)
class Source:
    """An input that has been found: its spec, the arrays it is read from and how they are chunked.

    `chunks` and `read_unit` have an entry for each dimension of the spec; `read_unit` is what one read decodes in
    one piece (a chunk), `shard` what zarr loads whole when all of it is wanted.
    """

    spec: FieldSpec
    arrays: tuple[ArrayRef, ...]
    stacked: bool
    chunks: tuple[int, ...]
    shard: tuple[int, ...] | None
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one decoded chunk."""
        return math.prod(self.chunks) * itemsize(self.spec.dtype)

    @property
    def shard_nbytes(self) -> int:
        """Bytes of one decoded shard, 0 where the store is not sharded."""
        return math.prod(self.shard) * itemsize(self.spec.dtype) if self.shard else 0


def find(name: str, source: Input) -> Source:
    """Metadata of an input; no data is read.

    Raises
    ------
    MissingStoreError, MissingVariableError, UnsupportedStoreError, DTypeError, DimensionError, StoreAccessError
        There is nothing to read, or it cannot be read as numbers with named dimensions.
    """
    with places.reaching(str(source.store)):
        return _find(name, source, places.absolute(str(source.store)))


def _find(name: str, source: Input, store: str) -> Source:
    wanted = source.variables or ((source.variable,) if source.variable else ())
    node = _open_node(name, store, wanted)
    if isinstance(node, zarr.Array) and node.path:  # an array of a store whose root is no node
        return _describe(name, source, [_inner(name, store, path) for path in wanted], store, None)
    if isinstance(node, zarr.Array):
        if source.variable or source.variables:
            raise MissingVariableError(
                f"{source.store} is a bare array and has no variables",
                got=source.variable or source.variables or "",
                do=f"leave variable out of inputs.{name}",
            )
        return _describe(name, source, [node], store, None)
    names = source.variables or (source.variable or _only_variable(name, store, node),)
    arrays = [_member(name, store, node, variable) for variable in names]
    return _describe(name, source, arrays, store, node)


def _open_node(name: str, store: str, wanted: Sequence[str] = ()) -> zarr.Array[Any] | zarr.Group:
    """The root, or where that is no node the first one on the way to what is wanted."""
    if places.is_url(store):
        places.load([store])  # one request by itself: of several at once, zarr leaves those that fail second behind
    elif not places.is_url(store) and not places.exists(store):
        raise MissingStoreError(
            f"input {name!r} is not there", got=store, expected="a Zarr group or array", do=f"check inputs.{name}.store"
        )
    try:
        return zarr.open(places.zarr_store(store, read_only=True), mode="r")
    except (FileNotFoundError, zarr.errors.NodeNotFoundError) as error:
        found = nodes.first_on_the_way(store, wanted[0]) if wanted else None
        if found is None:
            raise _no_store(name, store) from error
        return found
    except _UNREADABLE as error:
        raise _unsupported(f"input {name!r} ({store})", error) from error


def _no_store(name: str, store: str) -> MissingStoreError:
    inner = nodes.uppermost(store)
    return MissingStoreError(
        f"input {name!r} is not a Zarr store" + (", but stores lie within it" if inner else ""),
        got=store + (f", which holds {', '.join(inner[:10])}" if inner else ""),
        expected="a group or array of Zarr format 2 or 3",
        do=f"begin inputs.{name}.variable with one of these" if inner else f"check inputs.{name}.store",
    )


def _inner(name: str, store: str, path: str) -> zarr.Array[Any]:
    found = nodes.first_on_the_way(store, path)
    if isinstance(found, zarr.Array) and found.path == path.strip("/"):
        return found
    raise MissingVariableError(f"{store} has no array {path!r}", do=f"mend inputs.{name}.variables")


#: What zarr raises for metadata, codecs and dtypes that it cannot take, and archives that are damaged.
_UNREADABLE = (ValueError, KeyError, TypeError, NotImplementedError, ImportError, BadZipFile, zlib.error)


def _unsupported(what: str, error: Exception) -> UnsupportedStoreError:
    return UnsupportedStoreError(
        f"{what} cannot be opened: {type(error).__name__}",
        got=error,
        do="rewrite it with a codec and dtype that zarr-python knows",
    )


def _member(name: str, store: str, group: zarr.Group, variable: str) -> zarr.Array[Any]:
    try:
        found = group[variable.removeprefix(group.path + "/") if group.path else variable]
    except KeyError as error:
        if group.metadata.consolidated_metadata is not None:  # which may be older than the variable
            return _member(name, store, _unconsolidated(group), variable)
        names = _array_names(group)
        raise MissingVariableError(
            f"{store} has no variable {variable!r}",
            expected="one of " + ", ".join(names) if names else "a group that holds arrays",
            do=f"set inputs.{name}.variable",
        ) from error
    except _UNREADABLE as error:
        raise _unsupported(f"variable {variable!r} of {store}", error) from error
    if isinstance(found, zarr.Group):
        raise MissingVariableError(
            f"{variable!r} in {store} is a group", expected="an array", do=f"name an array in inputs.{name}.variable"
        )
    return found


def _array_names(group: zarr.Group) -> list[str]:
    try:
        return sorted(group.array_keys())
    except _UNREADABLE:  # one of them: the message does without names
        return []


def _unconsolidated(group: zarr.Group) -> zarr.Group:
    return zarr.open_group(group.store, path=group.path, mode="r", use_consolidated=False)


def _only_variable(name: str, store: str, group: zarr.Group) -> str:
    """The variable that an input means without naming it."""
    try:
        if name in group and dimension_names(group[name]) != (name,):  # type: ignore[arg-type]
            return name
        arrays = dict(group.arrays())
    except _UNREADABLE as error:
        raise _unsupported(f"{store}, which is searched since input {name!r} names no variable,", error) from error
    coordinates = _coordinate_names(group.attrs, arrays)
    candidates = [key for key in arrays if key not in coordinates]
    if len(candidates) == 1:
        return candidates[0]
    raise MissingVariableError(
        f"{store} has {len(candidates)} variables, none of them named {name!r}",
        got=", ".join(sorted(candidates)) or "none",
        do=f"name one with inputs.{name}.variable",
    )


def _coordinate_names(attrs: Mapping[str, Any], arrays: Mapping[str, zarr.Array[Any]]) -> set[str]:
    """Index coordinates, and those that a CF `coordinates` or `grid_mapping` attribute lists."""
    names = {key for key, array in arrays.items() if dimension_names(array) == (key,)}
    for holder in (attrs, *(array.attrs for array in arrays.values())):
        for attribute in ("coordinates", "grid_mapping"):
            names |= set(str(holder.get(attribute, "")).split())
    return names & set(arrays)


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...] | None:
    """Names of the axes as the store gives them: v3's dimension_names or xarray's v2 attribute; None if any lacks."""
    found = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(found, (list, tuple)) or len(found) != array.ndim or any(name is None for name in found):
        return () if array.ndim == 0 else None
    return tuple(str(name) for name in found)


def _describe(
    name: str, source: Input, arrays: Sequence[zarr.Array[Any]], store: str, group: zarr.Group | None
) -> Source:
    specs = [_spec(name, source, array) for array in arrays]
    first = specs[0]
    for array, spec in zip(arrays, specs, strict=True):
        cf.refuse_packed(name, f"{store}/{array.path}", _cf_attrs(array))
        if (spec.dims, spec.shape) != (first.dims, first.shape):
            raise DimensionError(
                f"the variables stacked as input {name!r} differ in shape",
                got=f"{spec.dims} {spec.shape} beside {first.dims} {first.shape}",
                do="stack variables of one shape",
            )
    spec, chunks, shard = first, tuple(arrays[0].chunks), arrays[0].shards
    if source.stack is not None:
        spec = FieldSpec(
            name, (source.stack, *first.dims), (len(arrays), *first.shape), _common_dtype([s.dtype for s in specs])
        )
        chunks, shard = (1, *chunks), (1, *shard) if shard else None
    return Source(
        spec=spec,
        arrays=tuple(ArrayRef(store, array.path) for array in arrays),
        stacked=source.stack is not None,
        chunks=chunks,
        shard=shard,
        coordinates=_coordinates(store, group, arrays[0], first.dims) if group is not None else {},
    )


def _cf_attrs(array: zarr.Array[Any]) -> dict[str, Any]:
    """Attributes as CF means them: xarray keeps the _FillValue of format 2 in the metadata.

    0 is what zarr writes there for an array that has none, and counts as none.
    """
    attrs = dict(array.attrs)
    fill = array.fill_value
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attrs and fill is not None and fill != 0:
        attrs.setdefault("_FillValue", fill.item() if hasattr(fill, "item") else fill)
    return attrs


def _common_dtype(dtypes: Sequence[str]) -> str:
    return dtypes[0] if len(set(dtypes)) == 1 else result_dtype(dtypes)


def _spec(name: str, source: Input, array: zarr.Array[Any]) -> FieldSpec:
    dims = dimension_names(array)
    if source.dims is not None:
        dims = source.dims if source.stack is None else tuple(d for d in source.dims if d != source.stack)
    if dims is None:
        raise DimensionError(
            f"input {name!r} ({array.store_path}) has no dimension names",
            got=f"shape {array.shape}",
            expected="a name for each axis",
            do=f"name them with inputs.{name}.dims",
        )
    dtype = str(array.dtype.newbyteorder("=")) if array.dtype.kind in "biufc" else str(array.dtype)
    try:
        return FieldSpec(name, dims, tuple(array.shape), dtype)
    except DTypeError as error:
        raise DTypeError(
            f"input {name!r} ({array.store_path}) is not numeric in a dtype that torch computes with",
            got=dtype,
            expected=error.expected,
            do="convert the variable first, or choose another one",
        ) from error


def _coordinates(
    store: str, group: zarr.Group, array: zarr.Array[Any], dims: tuple[str, ...]
) -> Mapping[str, Coordinate]:
    """Coordinates that lie beside an array and whose dimensions it has."""
    prefix = array.path.rpartition("/")[0]
    parent = group if not prefix or prefix == group.path else group[prefix.removeprefix(group.path).lstrip("/")]
    assert isinstance(parent, zarr.Group)
    wanted = set(dimension_names(array) or ()) | set(str(parent.attrs.get("coordinates", "")).split())
    for attribute in ("coordinates", "grid_mapping"):
        wanted |= set(str(array.attrs.get(attribute, "")).split())
    found: dict[str, Coordinate] = {}
    sizes = dict(zip(dimension_names(array) or dims, array.shape, strict=True))
    renamed = dict(zip(dimension_names(array) or dims, dims, strict=True))
    for key in sorted(wanted):
        member = parent.get(key)
        if not isinstance(member, zarr.Array):
            continue
        own = dimension_names(member)
        if own is not None and set(own) <= set(renamed):
            name = renamed.get(key, key)
            if member.shape != tuple(sizes[d] for d in own):
                raise CoordinateError(
                    f"coordinate {key!r} of {store} does not fit the dimensions of {array.path!r}",
                    got=f"shape {member.shape}",
                    expected=f"{tuple(sizes[d] for d in own)}",
                    do="mend the store, or name other dimensions in the input's dims",
                )
            found[name] = Coordinate(name, tuple(renamed[d] for d in own), ArrayRef(store, member.path))
    return found
