"""Inputs as they are found: stores, variables, dimension names and coordinates. Metadata only."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewise import access, places
from tilewise.coordinates import ArrayRef, Coordinate
from tilewise.decoding import Decoding, ValidRange, decoding
from tilewise.errors import (
    CoordinateError,
    DimensionError,
    DTypeError,
    MissingVariableError,
    ParameterError,
    UnsupportedStoreError,
)
from tilewise.fields import FieldSpec, itemsize, result_dtype
from tilewise.members import Members, Variable, missing_variable, open_members

log = logging.getLogger("tilewise")


@dataclass(frozen=True, kw_only=True)
class Input:
    """Where a field is read from.

    Attributes
    ----------
    store
        Path or URL of a Zarr group or of a bare array (v2 or v3); path of a zip archive of one, or of a file that
        xarray opens (NetCDF). In Python also in-memory data: a numpy array (with `dims`) or an xarray object.
    variable
        Array within the group. May be left out where the group has one of the input's name, or just one.
    variables, stack
        Several arrays of one shape, stacked along a new dimension named `stack`.
    dims
        Names of the axes, where the store has none; where it has some, these replace them.
    mask_and_scale
        Whether stored numbers become values by the CF attributes `scale_factor`, `add_offset`, `_FillValue`,
        `missing_value` and `_Unsigned`, missing ones NaN, as in xarray; false reads the stored numbers.
    valid_range
        "ignore" leaves values outside `valid_range`, `valid_min` and `valid_max` as they are, as xarray does; "mask"
        makes them NaN.
    """

    store: Any
    variable: str | None = None
    variables: tuple[str, ...] | None = None
    stack: str | None = None
    dims: tuple[str, ...] | None = None
    mask_and_scale: bool = True
    valid_range: ValidRange = "ignore"

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
            places.checked(self.store, "the store of an input")
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
        self._check_decoding()

    def _check_decoding(self) -> None:
        if self.valid_range not in ("ignore", "mask"):
            raise ParameterError(
                "valid_range of an input is unknown",
                got=repr(self.valid_range),
                expected="ignore | mask",
                do="mend valid_range",
            )
        if self.valid_range == "mask" and (self.in_memory or not self.mask_and_scale):
            raise ParameterError(
                "valid_range can only be masked where stored numbers are decoded",
                got="in-memory data" if self.in_memory else "mask_and_scale: false",
                do="leave valid_range out, or mask the data with xarray's where",
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
    #: How each array is decoded, None where its stored numbers are its values; empty where that is so for all.
    decodings: tuple[Decoding | None, ...] = ()

    @property
    def stored_itemsize(self) -> int:
        """Bytes of one stored number."""
        decodings = self.decodings or (None,)
        return max(itemsize(decoding.stored if decoding else self.spec.dtype) for decoding in decodings)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk of stored numbers."""
        return math.prod(self.chunks) * self.stored_itemsize

    @property
    def shard_nbytes(self) -> int:
        """Bytes of one decoded shard, 0 where the store is not sharded."""
        return math.prod(self.shard) * self.stored_itemsize if self.shard else 0


def find(name: str, source: Input) -> Source:
    """Metadata of an input; no data is read.

    Raises
    ------
    MissingStoreError, MissingVariableError, UnsupportedStoreError, DTypeError, DimensionError, StoreAccessError
        There is nothing to read, or it cannot be read as numbers with named dimensions.
    """
    with access.reaching(str(source.store)):
        return _find(name, source, places.absolute(str(source.store)))


def _find(name: str, source: Input, store: str) -> Source:
    found = open_members(name, store, source.variables or ((source.variable,) if source.variable else ()))
    if isinstance(found, Variable):
        if source.variable or source.variables:
            raise MissingVariableError(
                f"{source.store} is a bare array and has no variables",
                got=source.variable or source.variables or "",
                do=f"leave variable out of inputs.{name}",
            )
        return _describe(name, source, [found], {})
    names = source.variables or (source.variable or _only_variable(name, store, found),)
    variables = [_member(name, store, found, variable) for variable in names]
    return _describe(name, source, variables, _coordinates(store, found.parent_of(variables[0]), variables[0], source))


def _member(name: str, store: str, members: Members, variable: str) -> Variable:
    found = members.get(variable)
    if found is None:
        raise missing_variable(name, store, members, variable)
    return found


def _only_variable(name: str, store: str, members: Members) -> str:
    """The variable that an input means without naming it."""
    own = members.get(name)
    if own is not None and not own.is_index:
        return name
    variables = {key: variable for key in members.names() if (variable := members.get(key)) is not None}
    coordinates = _coordinate_names(members.attrs, variables)
    candidates = [key for key in variables if key not in coordinates]
    if len(candidates) == 1:
        return candidates[0]
    raise MissingVariableError(
        f"{store} has {len(candidates)} variables, none of them named {name!r}",
        got=", ".join(sorted(candidates)) or "none",
        do=f"name one with inputs.{name}.variable",
    )


#: Attributes of CF that list variables which belong to another: labels, bounds of cells, the map projection.
_LISTS = ("coordinates", "grid_mapping", "bounds", "climatology")


def _coordinate_names(attrs: Mapping[str, Any], variables: Mapping[str, Variable]) -> set[str]:
    """Index coordinates, and those that a CF attribute lists."""
    names = {key for key, variable in variables.items() if variable.is_index}
    for holder in (attrs, *(variable.attrs for variable in variables.values())):
        for attribute in _LISTS:
            names |= set(str(holder.get(attribute, "")).split())
    return names & set(variables)


def _describe(name: str, source: Input, variables: Sequence[Variable], coordinates: Mapping[str, Coordinate]) -> Source:
    decodings = tuple(_decoding(name, source, variable) for variable in variables)
    specs = [_spec(name, source, v, d) for v, d in zip(variables, decodings, strict=True)]
    first = specs[0]
    for spec in specs:
        if (spec.dims, spec.shape) != (first.dims, first.shape):
            raise DimensionError(
                f"the variables stacked as input {name!r} differ in shape",
                got=f"{spec.dims} {spec.shape} beside {first.dims} {first.shape}",
                do="stack variables of one shape",
            )
    spec, chunks, shard = first, variables[0].chunks, variables[0].shards
    if source.stack is not None:
        spec = FieldSpec(
            name, (source.stack, *first.dims), (len(specs), *first.shape), _common_dtype([s.dtype for s in specs])
        )
        chunks, shard = (1, *chunks), (1, *shard) if shard else None
    return Source(
        spec=spec,
        arrays=tuple(variable.array for variable in variables),
        stacked=source.stack is not None,
        chunks=chunks,
        shard=shard,
        coordinates=coordinates,
        decodings=decodings if any(decodings) else (),
    )


def _decoding(name: str, source: Input, variable: Variable) -> Decoding | None:
    if not source.mask_and_scale:
        return None
    return decoding(f"input {name!r} ({variable.array})", variable.dtype, variable.attrs, source.valid_range)


def _common_dtype(dtypes: Sequence[str]) -> str:
    return dtypes[0] if len(set(dtypes)) == 1 else result_dtype(dtypes)


def _spec(name: str, source: Input, variable: Variable, decoded: Decoding | None) -> FieldSpec:
    dims = variable.dims
    if source.dims is not None:
        dims = source.dims if source.stack is None else tuple(d for d in source.dims if d != source.stack)
    if dims is None:
        raise DimensionError(
            f"input {name!r} ({variable.array}) has no dimension names",
            got=f"shape {variable.shape}",
            expected="a name for each axis",
            do=f"name them with inputs.{name}.dims",
        )
    native = variable.dtype.newbyteorder("=") if variable.dtype.kind in "biufc" else variable.dtype
    dtype = decoded.dtype if decoded else str(native)
    try:
        return FieldSpec(name, dims, variable.shape, dtype)
    except DTypeError as error:
        raise DTypeError(
            f"input {name!r} ({variable.array}) is not numeric in a dtype that torch computes with",
            got=dtype,
            expected=error.expected,
            do="convert the variable first, or choose another one",
        ) from error


def _coordinates(store: str, members: Members, variable: Variable, source: Input) -> Mapping[str, Coordinate]:
    """Coordinates that lie beside a variable and whose dimensions it has."""
    own_names = variable.dims
    if own_names is None:
        return {}  # axes without names have no labels
    dims = source.dims if source.dims is not None and source.stack is None else own_names
    wanted = set(own_names) | set(str(members.attrs.get("coordinates", "")).split())
    for attribute in ("coordinates", "grid_mapping"):
        wanted |= set(str(variable.attrs.get(attribute, "")).split())
    found: dict[str, Coordinate] = {}
    sizes = dict(zip(own_names, variable.shape, strict=True))
    renamed = dict(zip(own_names, dims, strict=False))
    for key in sorted(wanted):
        member = _readable(store, members, key)
        if member is None or member.dims is None or not set(member.dims) <= set(renamed):
            continue
        if key in own_names and not member.is_index:
            continue  # a field that is named like a dimension, perhaps this one: no label
        expected = tuple(sizes[d] for d in member.dims)
        if member.shape != expected:
            raise CoordinateError(
                f"coordinate {key!r} of {store} does not fit the dimensions of {variable.array.path!r}",
                got=f"shape {member.shape}",
                expected=f"{expected}",
                do="mend the store, or name other dimensions in the input's dims",
            )
        name = renamed.get(key, key)
        grid = key in str(variable.attrs.get("grid_mapping", "")).split()
        found[name] = Coordinate(name, tuple(renamed[d] for d in member.dims), member.array, member.attrs, grid)
    return found


def _readable(store: str, members: Members, key: str) -> Variable | None:
    """A coordinate; one that cannot be read is left out, and said to be."""
    try:
        return members.get(key)
    except UnsupportedStoreError as error:
        log.warning("coordinate %r of %s is left out: %s", key, store, error)
        return None
