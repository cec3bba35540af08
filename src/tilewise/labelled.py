"""In-memory inputs as DataArrays: what both the streaming and the lazy door take for an array with named dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.coordinates import Array
from tilewise.errors import DimensionError, DTypeError, MissingVariableError
from tilewise.fields import itemsize, result_dtype
from tilewise.sources import Input

if TYPE_CHECKING:
    import xarray as xr


def labelled(name: str, source: Input) -> xr.DataArray:
    """The data of an in-memory input under its dimension names; a Dask array stays lazy.

    Raises
    ------
    DTypeError, DimensionError, MissingVariableError
        The data is no array, has no dimension names, or lacks the variable.

    >>> import xarray as xr
    >>> wind = xr.Dataset({"u": ("x", [3.0, 0.0]), "v": ("x", [4.0, 1.0])})
    >>> labelled("x", Input(store=wind, variables=("u", "v"), stack="component")).sizes
    Frozen({'component': 2, 'x': 2})
    """
    import dask.array as da
    import xarray as xr

    data = source.store
    if isinstance(data, xr.Dataset):
        data = _of_dataset(name, source, data)
    elif source.variable is not None or source.variables is not None:
        raise MissingVariableError(
            f"input {name!r} is one array and has no variables",
            got=source.variable or source.variables or "",
            do="leave variable and variables out, or give a dataset",
        )
    if isinstance(data, xr.Variable):
        data = xr.DataArray(data)
    if isinstance(data, xr.DataArray):
        return _renamed(name, source, data)
    if not isinstance(data, (np.ndarray, da.Array)):
        raise DTypeError(
            f"input {name!r} is neither a store nor an array",
            got=type(data).__name__,
            expected="a numpy array or an xarray object; a path to a store where a job is streamed",
            do=f"give {name} as one of these",
        )
    if source.dims is None:
        raise DimensionError(
            f"input {name!r} is an array without dimension names",
            got=f"shape {data.shape}",
            do="give tilewise.Input(store=..., dims=(...)) in its place, or an xarray.DataArray",
        )
    _check_dims(name, source.dims, data.ndim)
    return xr.DataArray(data, dims=source.dims)


def _renamed(name: str, source: Input, data: xr.DataArray) -> xr.DataArray:
    """Under the names that the input gives its axes, and always under text: xarray takes anything for a name."""
    dims = tuple(str(dim) for dim in data.dims)
    if source.dims is not None:
        dims = source.dims
        if source.stack is not None and source.stack not in dims:
            dims = (source.stack, *dims)
        _check_dims(name, dims, data.ndim)
    changed = {old: new for old, new in zip(data.dims, dims, strict=True) if old != new}
    taken = [new for new in changed.values() if new in data.coords and new not in changed]
    if taken:
        raise DimensionError(
            f"input {name!r} has a coordinate {taken[0]!r}, which is to be the name of a dimension",
            got=f"dims {tuple(data.dims)}, to be {dims}",
            do=f"drop or rename the coordinate first, as in .drop_vars({taken[0]!r})",
        )
    return data.rename(changed) if changed else data


def _check_dims(name: str, dims: Sequence[str], axes: int) -> None:
    if len(dims) != axes or len(set(dims)) != axes:
        raise DimensionError(
            f"input {name!r} has {axes} axes and {len(set(dims))} dimension names",
            got=f"dims {tuple(dims)}",
            do=f"give the dims of {name} one name for each axis, all different",
        )


def dtype_name(name: str, dtype: Any) -> str:
    """The dtype of an input as its spec has it.

    Raises
    ------
    DTypeError
        It is not numeric, or not one that torch computes with.

    >>> dtype_name("x", np.dtype(">i2"))
    'int16'
    """
    plain = isinstance(dtype, np.dtype) and dtype.kind in "biufc"
    found = str(dtype.newbyteorder("=") if plain else dtype)
    try:
        itemsize(found)
    except DTypeError as error:
        raise DTypeError(
            f"input {name!r} is not numeric in a dtype that torch computes with",
            got=found,
            expected=error.expected,
            do="convert it first, as in .astype('float64')",
        ) from error
    return found


def _of_dataset(name: str, source: Input, data: xr.Dataset) -> xr.DataArray:
    if source.stack is None:
        found: xr.DataArray = data[_variable(name, source, data)]
        return found
    names = list(source.variables or ())
    if not names:
        raise MissingVariableError(f"input {name!r} stacks no variables", do="name at least one in variables")
    for key in names:
        _refuse_missing(name, key, data)
    return _stacked(name, [data[key] for key in names], names, source.stack)


def holds(data: xr.Dataset, name: str) -> bool:
    """Whether a dataset has a variable of that name, other than the labels of a dimension.

    A field that has its own name for a dimension counts, though xarray takes it for a coordinate.
    """
    return name in data.variables and data.variables[name].dims != (name,)


def _variable(name: str, source: Input, data: xr.Dataset) -> Any:
    """The variable that an input means: the one it names, the one of its own name, or the only one."""
    if source.variable is not None:
        _refuse_missing(name, source.variable, data)
        return source.variable
    if not holds(data, name) and len(data.data_vars) == 1:
        return next(iter(data.data_vars))
    if not holds(data, name):
        raise _missing(name, name, data)
    return name


def _refuse_missing(name: str, key: str, data: xr.Dataset) -> None:
    if key not in data.variables:
        raise _missing(name, key, data)


def _missing(name: str, key: str, data: xr.Dataset) -> MissingVariableError:
    return MissingVariableError(
        f"the dataset given as input {name!r} has no variable {key!r}",
        got=", ".join(map(str, data.data_vars)) or "no variables",
        do=f"give the variable that {name} is, as in dataset['...'], or name it with tilewise.Input(variable=...)",
    )


def _stacked(name: str, arrays: Sequence[xr.DataArray], names: Sequence[str], stack: str) -> xr.DataArray:
    """Arrays of one shape along a new first dimension: one piece for each block, however many variables there are.

    Not by `Dataset.to_dataarray`, which broadcasts what differs in shape, and makes of Dask arrays one chunk for each
    variable.
    """
    import dask.array as da

    first = arrays[0]
    for array in arrays:
        if dict(array.sizes) != dict(first.sizes) or stack in array.dims:
            raise DimensionError(
                f"the variables stacked as input {name!r} differ in shape, or have the dimension {stack!r} already",
                got=f"{array.dims} {array.shape} beside {first.dims} {first.shape}",
                do="stack variables of one shape, along a dimension of a new name",
            )
    dtypes = [dtype_name(name, array.dtype) for array in arrays]
    dtype = np.dtype(dtypes[0] if len(set(dtypes)) == 1 else result_dtype(dtypes))
    data = [array.transpose(*first.dims).data for array in arrays]
    template = first.expand_dims({stack: list(names)})
    if not any(isinstance(item, da.Array) for item in data):
        return template.copy(data=np.stack(data).astype(dtype, copy=False))
    pairs = [part for item in data for part in (item, first.dims)]
    blocks = da.blockwise(
        partial(_stack_blocks, dtype),
        (stack, *first.dims),
        *pairs,
        new_axes={stack: len(data)},
        dtype=dtype,
        meta=np.empty((0,) * (first.ndim + 1), dtype=dtype),
        token="stack",
    )
    return template.copy(data=blocks)


def _stack_blocks(dtype: np.dtype[Any], *blocks: Array) -> Array:
    return np.stack([np.asarray(block, dtype=dtype) for block in blocks])
