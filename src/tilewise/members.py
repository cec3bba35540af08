"""What is in a store, whatever its format: variables by name, described without their data."""

from __future__ import annotations

import base64
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from zipfile import BadZipFile

import numpy as np
import zarr
import zarr.errors
from numcodecs.registry import get_codec

from tilewise import access, foreign, nodes, places
from tilewise.coordinates import ArrayRef
from tilewise.errors import MissingStoreError, MissingVariableError, UnsupportedStoreError

if TYPE_CHECKING:
    import xarray as xr

log = logging.getLogger("tilewise")

#: What zarr raises for metadata, codecs and dtypes that it cannot take, and for archives that are damaged.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ImportError, BadZipFile, zlib.error)


@dataclass(frozen=True)
class Variable:
    """One array of a store before its data is read.

    Attributes
    ----------
    array
        Where it lies.
    dims
        Names of the axes, None where the store has none.
    shape, chunks, shards
        Cells along each axis.
    dtype
        Dtype of the stored numbers, in the stored byte order.
    attrs
        Attributes, with `_FillValue` as a number wherever the format keeps it.
    """

    array: ArrayRef
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    attrs: Mapping[str, Any]

    @property
    def is_index(self) -> bool:
        """Whether it labels the dimension of its own name."""
        return self.dims == (self.array.path.rpartition("/")[2],)


class Members(Protocol):
    """The variables of a group."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the group."""

    def get(self, path: str) -> Variable | None:
        """The variable at a path from here; None where there is none, or a group."""

    def names(self) -> Iterator[str]:
        """Names of the variables right here."""

    def parent_of(self, variable: Variable) -> Members:
        """The group that a variable lies in."""


def open_members(name: str, store: str, wanted: Sequence[str] = ()) -> Variable | Members:
    """The bare array at a place, or what is in the group there; where its root is no node, what is on the way down.

    Raises
    ------
    MissingStoreError, UnsupportedStoreError
        There is nothing, or nothing that can be read.
    """
    if places.is_url(store):
        access.load([store])  # one request by itself: of several at once, zarr leaves those that fail second behind
    elif not places.exists(store):
        raise MissingStoreError(
            f"input {name!r} is not there",
            got=store,
            expected="a Zarr group or array, or a file that xarray opens",
            do=f"check inputs.{name}.store",
        )
    if places.is_file(store) and not places.is_zip(store):
        return _ForeignMembers(store, foreign.open_group(store, key=f"inputs.{name}.store"))
    try:
        node = _open(store)
    except (FileNotFoundError, zarr.errors.NodeNotFoundError) as error:
        found = _on_the_way(store, wanted[0]) if wanted else None
        if found is None:
            raise _no_store(name, store) from error
        return _LooseArrays(store) if isinstance(found, zarr.Array) else _ZarrMembers(store, found)
    except UNREADABLE as error:
        raise unsupported(f"input {name!r} ({store})", error) from error
    return _variable(store, node) if isinstance(node, zarr.Array) else _ZarrMembers(store, node)


def _on_the_way(store: str, path: str) -> zarr.Array[Any] | zarr.Group | None:
    try:
        return nodes.first_on_the_way(store, path)
    except UNREADABLE as error:
        raise unsupported(f"variable {path!r} of {store}", error) from error


def _no_store(name: str, store: str) -> MissingStoreError:
    inner = nodes.uppermost(store)
    return MissingStoreError(
        f"input {name!r} is {'not there, or ' if places.is_url(store) else ''}not a Zarr store"
        + (", but stores lie within it" if inner else ""),
        got=store + (f", which holds {', '.join(inner[:10])}" if inner else ""),
        expected="a group or array of Zarr format 2 or 3",
        do=_way_in(name, store, inner),
    )


def _way_in(name: str, store: str, inner: Sequence[str]) -> str:
    if inner:
        return f"begin inputs.{name}.variable with one of these"
    if places.is_url(store) and store.endswith(".zip"):
        return f"write zip::{store}"
    return f"check inputs.{name}.store"


def _open(store: str) -> zarr.Array[Any] | zarr.Group:
    """The node at a place; without its consolidated metadata where one array in it cannot be understood."""
    opened = access.zarr_store(store, read_only=True)
    with access.quiet():
        try:
            return zarr.open(opened, mode="r")
        except UNREADABLE:
            return zarr.open(opened, mode="r", use_consolidated=False)


def unsupported(what: str, error: Exception) -> UnsupportedStoreError:
    """The error of something that zarr cannot open."""
    return UnsupportedStoreError(
        f"{what} cannot be opened: {type(error).__name__}",
        got=error,
        do="rewrite it with a codec and dtype that zarr-python knows",
    )


# --- Zarr


@dataclass(frozen=True)
class _ZarrMembers:
    store: str
    group: zarr.Group

    @property
    def attrs(self) -> Mapping[str, Any]:
        return dict(self.group.attrs)

    def get(self, path: str) -> Variable | None:
        inner = path.removeprefix(f"{self.group.path}/") if self.group.path else path
        try:
            with access.quiet():
                # What is read is the array itself: consolidated metadata may be older than it.
                found = self._unconsolidated[inner]
        except KeyError:
            return None
        except UNREADABLE as error:
            raise unsupported(f"variable {path!r} of {self.store}", error) from error
        return None if isinstance(found, zarr.Group) else _variable(self.store, found)

    @cached_property
    def _unconsolidated(self) -> zarr.Group:
        if self.group.metadata.consolidated_metadata is None:
            return self.group
        return zarr.open_group(self.group.store, path=self.group.path, mode="r", use_consolidated=False)

    def names(self) -> Iterator[str]:
        try:
            yield from self.group.array_keys()
        except UNREADABLE as error:
            raise unsupported(f"a variable of {self.store}", error) from error

    def parent_of(self, variable: Variable) -> Members:
        inner = variable.array.path.removeprefix(self.group.path).lstrip("/").rpartition("/")[0]
        if not inner:
            return self
        parent = self.group[inner]
        assert isinstance(parent, zarr.Group)
        return _ZarrMembers(self.store, parent)


@dataclass(frozen=True)
class _LooseArrays:
    """Arrays of a store whose root, and every folder above them, is no node."""

    store: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def get(self, path: str) -> Variable | None:
        found = nodes.first_on_the_way(self.store, path)
        here = isinstance(found, zarr.Array) and found.path == path.strip("/")
        return _variable(self.store, found) if here else None  # type: ignore[arg-type]

    def names(self) -> Iterator[str]:
        yield from nodes.uppermost(self.store)

    def parent_of(self, variable: Variable) -> Members:
        return self


def _variable(store: str, array: zarr.Array[Any]) -> Variable:
    try:
        chunks, shards = tuple(array.chunks), array.shards
        _check_codecs(array)
    except UNREADABLE as error:  # chunks that differ in size, among others
        raise unsupported(f"{store}/{array.path}", error) from error
    return Variable(
        array=ArrayRef(store, array.path),
        dims=dimension_names(array),
        shape=tuple(array.shape),
        dtype=array.dtype,
        chunks=chunks,
        shards=shards,
        attrs=cf_attrs(array),
    )


def _check_codecs(array: zarr.Array[Any]) -> None:
    """Find codecs whose package is absent: zarr looks for them when the first chunk is decoded."""
    for codec in getattr(array.metadata, "codecs", ()):
        described = codec.to_dict()
        name = str(described.get("name", ""))
        if name.startswith("numcodecs."):
            get_codec({"id": name.removeprefix("numcodecs."), **dict(described.get("configuration", {}))})


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...] | None:
    """Names of the axes as the store gives them: v3's dimension_names or xarray's v2 attribute; None if any lacks."""
    found = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(found, (list, tuple)) or len(found) != array.ndim or any(name is None for name in found):
        return () if array.ndim == 0 else None
    return tuple(str(name) for name in found)


def cf_attrs(array: zarr.Array[Any] | foreign.ForeignArray) -> dict[str, Any]:
    """Attributes as CF means them: with `_FillValue` as a number.

    In format 2 xarray keeps it as the fill value of the array, and takes the fill value of any array for it; so it
    does here where the array has xarray's dimension names. In format 3 it is an attribute, encoded where floating.
    """
    attrs = dict(array.attrs)
    if isinstance(array, foreign.ForeignArray):
        return attrs
    fill = array.fill_value
    if array.metadata.zarr_format == 2:
        if "_ARRAY_DIMENSIONS" in attrs and fill is not None and array.dtype.kind in "iufc":
            attrs["_FillValue"] = fill.item() if hasattr(fill, "item") else fill
    elif "_FillValue" in attrs:
        attrs["_FillValue"] = decoded_fill(attrs["_FillValue"])
    return attrs


def decoded_fill(value: Any) -> Any:
    """The number behind a `_FillValue` attribute: plain, as text, or as the base64 of its bytes that xarray writes.

    >>> decoded_fill("AAAAAAAA+H8="), decoded_fill(-1), decoded_fill("NaN")
    (nan, -1, nan)
    """
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return complex(*(decoded_fill(part) for part in value))
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (ValueError, struct.error):
        return value


# --- files that xarray opens


@dataclass(frozen=True)
class _ForeignMembers:
    store: str
    dataset: xr.Dataset
    group: str = ""

    @property
    def attrs(self) -> Mapping[str, Any]:
        return dict(self.dataset.attrs)

    def get(self, path: str) -> Variable | None:
        inner, _, name = path.rpartition("/")
        if inner:
            group = f"{self.group}/{inner}".strip("/")
            return _ForeignMembers(self.store, foreign.open_group(self.store, group), group).get(name)
        if name not in self.dataset.variables:
            return None
        array = foreign.ForeignArray(self.dataset, f"{self.group}/{name}".strip("/"))
        return Variable(
            array=ArrayRef(self.store, array.path, "xarray"),
            dims=array.dims,
            shape=array.shape,
            dtype=array.dtype,
            chunks=array.chunks,
            shards=None,
            attrs=cf_attrs(array),
        )

    def names(self) -> Iterator[str]:
        yield from map(str, self.dataset.variables)

    def parent_of(self, variable: Variable) -> Members:
        group = variable.array.path.rpartition("/")[0]
        if group == self.group:
            return self
        return _ForeignMembers(self.store, foreign.open_group(self.store, group), group)


def missing_variable(name: str, store: str, members: Members, variable: str) -> MissingVariableError:
    """The error of a variable that is not there."""
    names = sorted(members.names())
    return MissingVariableError(
        f"{store} has no variable {variable!r}",
        expected="one of " + ", ".join(names) if names else "a group that holds arrays",
        do=f"set inputs.{name}.variable",
    )
