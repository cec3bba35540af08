"""What a call of a kernel means: which of the arguments is which of its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from tilewise.errors import DimensionError, DTypeError, MissingVariableError
from tilewise.kernels.base import Kernel
from tilewise.labelled import holds, labelled
from tilewise.sources import Input


def named_inputs(
    kernel: Kernel,
    fields: Sequence[Any],
    named: Mapping[str, Any],
    *,
    variables: Iterable[str] | None = None,
    stack: str | None = None,
) -> dict[str, xr.DataArray]:
    """The inputs of a kernel by name, from the arguments of a call.

    Parameters
    ----------
    fields
        Arguments by position: they are the inputs that are left, in the order of the kernel's first set of inputs
        that they fill. A single dataset holds inputs in variables of their names, or is one input.
    named
        Arguments by the names of inputs.
    variables, stack
        Variables of a single dataset, and the new dimension along which they are stacked as one input.

    Raises
    ------
    DimensionError
        The arguments are no set of inputs of the kernel.
    MissingVariableError
        A dataset lacks a variable.
    DTypeError
        An argument is not an array with named dimensions.
    """
    sets = _open_sets(kernel, named)
    if variables is not None or stack is not None:
        given = _by_position(kernel, [_stacked(fields, variables, stack)], named, sets)
    elif len(fields) == 1 and isinstance(fields[0], xr.Dataset):
        given = _of_dataset(kernel, fields[0], named, sets)
    else:
        given = _by_position(kernel, fields, named, sets)
    return {name: labelled(name, _input(name, value)) for name, value in {**named, **given}.items()}


def _open_sets(kernel: Kernel, named: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Of each set of inputs that has all names given: the names that are left."""
    found = [
        tuple(name for name in names if name not in named) for names in kernel.input_sets if set(named) <= set(names)
    ]
    if not found:
        unknown = [name for name in named if not any(name in names for names in kernel.input_sets)]
        raise DimensionError(
            f"kernel {kernel.name!r} does not take these inputs" if not unknown else _no_input(kernel, unknown[0]),
            got=", ".join(named),
            expected=_sets(kernel),
            do="give these names; parameters belong to the kernel itself, as in Kernel(parameter=...)(field)",
        )
    return found


def _no_input(kernel: Kernel, name: str) -> str:
    return f"kernel {kernel.name!r} has no input {name!r}"


def _sets(kernel: Kernel) -> str:
    return " or ".join("(" + ", ".join(names) + ")" for names in kernel.input_sets)


def _by_position(
    kernel: Kernel, fields: Sequence[Any], named: Mapping[str, Any], sets: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    first = set(next(iter(kernel.input_sets), ()))
    # What goes with the first inputs if wanted is given by position after all of them, or by name: A named and two
    # fields by position are an input given twice, not b and its weights.
    optional = {name for names in kernel.input_sets if set(names) > first for name in set(names) - first}
    for left in sets:
        if len(left) == len(fields) and not (first & set(named) and optional & set(left)):
            return dict(zip(left, fields, strict=True))
    by_name = "".join(f", {name}=" for name in named)
    raise DimensionError(
        f"kernel {kernel.name!r} does not take so many inputs",
        got=f"{len(fields)} by position{by_name}",
        expected=_sets(kernel),
        do="give every input once, by position or by name",
    )


def _of_dataset(
    kernel: Kernel, dataset: xr.Dataset, named: Mapping[str, Any], sets: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    """Variables named like the inputs that are left; or, for one input, the only variable."""
    wanted = [left for left in sets if left]
    if not wanted:
        return _by_position(kernel, [dataset], named, sets)
    for left in wanted:
        if all(holds(dataset, name) for name in left):
            return {name: dataset[name] for name in left}
    single = [left[0] for left in wanted if len(left) == 1]
    if single and len(dataset.data_vars) == 1:
        return {single[0]: next(iter(dataset.data_vars.values()))}
    raise MissingVariableError(
        f"the dataset lacks inputs of kernel {kernel.name!r}",
        got=", ".join(map(str, dataset.data_vars)) or "no variables",
        expected=" or ".join("(" + ", ".join(left) + ")" for left in wanted),
        do="rename its variables, give them by name, or stack several of them with variables=[...], stack='...'",
    )


def _stacked(fields: Sequence[Any], variables: Iterable[str] | None, stack: str | None) -> Input:
    if len(fields) != 1 or not isinstance(fields[0], xr.Dataset):
        raise DimensionError(
            "variables and stack choose from one dataset",
            got=", ".join(type(field).__name__ for field in fields) or "no argument by position",
            expected="kernel(dataset, variables=[...], stack='...')",
            do="give one dataset by position, or leave both out",
        )
    if stack is not None and not isinstance(stack, str):
        raise DimensionError("stack is no dimension name", got=repr(stack), expected="text", do="name a new dimension")
    names = None if variables is None else tuple([variables] if isinstance(variables, str) else variables)
    return Input(store=fields[0], variables=names, stack=stack)


def _input(name: str, value: Any) -> Input:
    found = value if isinstance(value, Input) else None
    path = value.store if found else value
    if isinstance(path, (str, os.PathLike)):
        raise DTypeError(
            f"input {name!r} is a path, and a kernel is called on arrays",
            got=repr(os.fspath(path)),
            expected="an xarray object",
            do="open it with xarray.open_zarr, or stream it with tilewise.run",
        )
    return found or Input(store=value)
