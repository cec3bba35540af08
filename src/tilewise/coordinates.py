"""References to arrays, and the coordinates that two inputs must agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
import zarr.storage

from tilewise import access
from tilewise.errors import CoordinateError, MissingStoreError
from tilewise.foreign import ForeignArray
from tilewise.guarded import close_archive, open_whole

Array = npt.NDArray[Any]
_METADATA = ("zarr.json", ".zarray")


@dataclass(frozen=True)
class ArrayRef:
    """An array within a store, by names alone: what a task carries."""

    store: str
    path: str = ""
    format: Literal["zarr", "xarray"] = "zarr"

    def open(self) -> zarr.Array[Any] | ForeignArray:
        """The array, read-only."""
        if self.format == "xarray":
            return ForeignArray.open(self.store, self.path)
        with access.reaching(self.store), access.quiet():
            return open_whole(access.zarr_store(self.store, read_only=True), self.path)

    def check(self) -> None:
        """Refuse an array that has gone: zarr reads what is not there as the fill value, without a word.

        Raises
        ------
        MissingStoreError
            Its metadata is not there any more. A remote store is asked for it once, or twice in format 2.
        """
        if self.format == "xarray":
            return  # an open file stays readable, or fails by itself
        prefix = f"{self.path}/" if self.path else ""
        if not access.holds_any(self.store, [prefix + name for name in _METADATA]):
            raise MissingStoreError(
                "an array has disappeared since the run began", got=self, do="put it back, and run again"
            )

    def __str__(self) -> str:
        """Store and path as a person writes them."""
        return f"{self.store}/{self.path}" if self.path else self.store


def close(array: zarr.Array[Any] | ForeignArray) -> None:
    """Close the file behind an array, where it holds one open."""
    if isinstance(array, ForeignArray):
        array.close()
    else:
        close_archive(array)


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of an input, still unread: `array` may be two-dimensional or a scalar."""

    name: str
    dims: tuple[str, ...]
    array: ArrayRef
    attrs: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Whether an input names it as the map projection of its grid.
    is_grid_mapping: bool = False

    def values(self) -> Array:
        """The stored numbers."""
        return np.asarray(self.array.open()[...])


def check_coordinates(inputs: Mapping[str, Iterable[Coordinate]]) -> None:
    """Refuse two inputs, by name, that label a shared dimension differently: there is no silent inner join.

    Raises
    ------
    CoordinateError
        The labels differ; the message names the first place.
    """
    seen: dict[str, tuple[str, Coordinate]] = {}
    for owner, coordinates in inputs.items():
        for coordinate in coordinates:
            name = coordinate.name
            if coordinate.dims != (name,):
                continue
            if name in seen:
                _compare(name, seen[name], (owner, coordinate))
            else:
                seen[name] = (owner, coordinate)


def _compare(dim: str, one: tuple[str, Coordinate], other: tuple[str, Coordinate]) -> None:
    if one[1].array == other[1].array:
        return
    compare_labels(dim, (one[0], _labels(one[1])), (other[0], _labels(other[1])))


def compare_labels(dim: str, one: tuple[str, Array], other: tuple[str, Array]) -> None:
    """Refuse labels of a dimension, each with the name of its input, that are not equal.

    Raises
    ------
    CoordinateError
        The message names the first place where they differ.

    >>> compare_labels("x", ("a", np.array([0, 1])), ("b", np.array([0, 2])))
    Traceback (most recent call last):
    tilewise.errors.CoordinateError: a and b have different coordinates along 'x'; got: 1 and 2 at index 1; expected:
    equal coordinates: inputs are never aligned or joined silently. To mend it: select or reindex one of them first.
    """
    a, b = one[1], other[1]
    different = np.flatnonzero(~_equal(a, b)) if a.shape == b.shape else np.array([0])
    if a.shape != b.shape or different.size:
        at = int(different[0])
        raise CoordinateError(
            f"{one[0]} and {other[0]} have different coordinates along {dim!r}",
            got=f"{a[at]} and {b[at]} at index {at}",
            expected="equal coordinates: inputs are never aligned or joined silently",
            do="select or reindex one of them first",
        )


def _equal(a: Array, b: Array) -> Array:
    try:
        both_nan = (a != a) & (b != b)
        return np.asarray((a == b) | both_nan)
    except TypeError:  # labels without an order or an equality in common, such as dates of two calendars
        return np.zeros(a.shape, dtype=bool)


def _labels(coordinate: Coordinate) -> Array:
    """Values of a coordinate, decoded: two stores may count time from different days, or pack differently."""
    import xarray as xr

    raw = xr.Variable(coordinate.dims, coordinate.values(), dict(coordinate.attrs))
    return np.asarray(xr.conventions.decode_cf_variable(coordinate.name, raw, decode_timedelta=False).values)
