"""Labels of in-memory inputs: where they have to agree, and which of them a result keeps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tilewise.coordinates import compare_labels
from tilewise.errors import DimensionError
from tilewise.fields import OutputSpec


def check_labels(fields: Mapping[str, xr.DataArray]) -> None:
    """Refuse two inputs, by name, that label a shared dimension differently: there is no silent inner join.

    Labels that are a Dask array are not compared: nothing is computed here.

    Raises
    ------
    CoordinateError
        The labels differ; the message names the first place.
    """
    seen: dict[Hashable, tuple[str, xr.DataArray]] = {}
    for owner, field in fields.items():
        for dim in field.dims:
            if dim not in field.coords or field.coords[dim].dims != (dim,) or field.coords[dim].chunks is not None:
                continue
            if dim in seen:
                _compare(dim, seen[dim], (owner, field))
            else:
                seen[dim] = (owner, field)


def _compare(dim: Hashable, one: tuple[str, xr.DataArray], other: tuple[str, xr.DataArray]) -> None:
    mine, theirs = one[1].xindexes.get(dim), other[1].xindexes.get(dim)
    if mine is not None and theirs is not None and type(mine) is type(theirs) and mine.equals(theirs):
        return
    a, b = (np.asarray(field.coords[dim].values) for _, field in (one, other))
    compare_labels(str(dim), (one[0], a), (other[0], b))


def kept_labels(fields: Iterable[xr.DataArray], outputs: Sequence[OutputSpec]) -> xr.Coordinates:
    """Coordinates of the inputs that fit an output, each from the first input that has it, with their indexes.

    One that depends on a dimension that no output has is dropped. Attributes are kept, encoding is not: it says how
    the input was stored.
    """
    variables: dict[Hashable, xr.Variable] = {}
    indexes: dict[Hashable, Any] = {}
    for field in fields:
        fresh = {
            name: coordinate.variable.drop_encoding()
            for name, coordinate in field.coords.items()
            if name not in variables and _fits(name, coordinate, outputs)
        }
        variables |= fresh
        for name in fresh:
            index = field.xindexes.get(name)
            # An index over several coordinates, such as a MultiIndex, stays whole or goes.
            if index is not None and set(field.xindexes.get_all_coords(name)) <= set(fresh):
                indexes[name] = index
    return xr.Coordinates(variables, indexes)


def grid_mapping(fields: Iterable[xr.DataArray], labels: xr.Coordinates) -> dict[str, str]:
    """The attribute that names the map projection, where an input has one that is kept: results lie on its grid."""
    for field in fields:
        name = field.attrs.get("grid_mapping", field.encoding.get("grid_mapping"))
        if name in labels:
            return {"grid_mapping": str(name)}
    return {}


def _fits(name: Hashable, coordinate: xr.DataArray, outputs: Sequence[OutputSpec]) -> bool:
    if any(name in out.dims for out in outputs) and coordinate.dims != (name,):
        return False
    return any(all(out.sizes.get(str(d)) == n for d, n in coordinate.sizes.items()) for out in outputs)


def check_names(labels: xr.Coordinates, outputs: Iterable[OutputSpec]) -> None:
    """Refuse a dimension or coordinate that would have the name of an output."""
    for out in outputs:
        if out.name in labels or out.name in out.dims:
            raise DimensionError(
                f"a dimension or coordinate of the inputs has the name of the output {out.name!r}",
                do=f"rename it first, as in .rename({out.name}='...')",
            )
