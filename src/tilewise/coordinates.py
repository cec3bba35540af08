"""References to arrays, and the coordinates that two inputs must agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from tilewise import places
from tilewise.errors import CoordinateError, MissingStoreError

Array = npt.NDArray[Any]
_METADATA = ("zarr.json", ".zarray")


@dataclass(frozen=True)
class ArrayRef:
    """An array within a store, by names alone: what a task carries."""

    store: str
    path: str = ""

    def open(self) -> zarr.Array[Any]:
        """The array, read-only."""
        with places.reaching(self.store):
            return zarr.open_array(places.zarr_store(self.store, read_only=True), path=self.path, mode="r")

    def check(self) -> None:
        """Refuse an array that has gone: zarr reads what is not there as the fill value, without a word.

        Raises
        ------
        MissingStoreError
            Its metadata is not there any more. A remote store is asked for it once, or twice in format 2.
        """
        prefix = f"{self.path}/" if self.path else ""
        if not places.holds_any(self.store, [prefix + name for name in _METADATA]):
            raise MissingStoreError(
                "an array has disappeared since the run began", got=self, do="put it back, and run again"
            )

    def __str__(self) -> str:
        """Store and path as a person writes them."""
        return f"{self.store}/{self.path}" if self.path else self.store


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of an input, still unread: `array` may be two-dimensional or a scalar."""

    name: str
    dims: tuple[str, ...]
    array: ArrayRef

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
    a, b = _labels(one[1]), _labels(other[1])
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
    both_nan = (a != a) & (b != b)
    return np.asarray((a == b) | both_nan)


def _labels(coordinate: Coordinate) -> Array:
    """Values of a coordinate; times are decoded, since two stores may count them from different days."""
    array = coordinate.array.open()
    values = np.asarray(array[...])
    if "units" not in array.attrs or " since " not in str(array.attrs["units"]):
        return values
    import xarray as xr

    variable = xr.Variable((coordinate.name,), values, dict(array.attrs))
    return np.asarray(xr.conventions.decode_cf_variable(coordinate.name, variable).values)
