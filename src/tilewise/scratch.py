"""In-memory inputs of a streamed job: described for a plan, written down for a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from tilewise import places
from tilewise.errors import DimensionError, DTypeError, MissingVariableError
from tilewise.fields import FieldSpec
from tilewise.folders import Folder
from tilewise.sources import Input, Source
from tilewise.store import quiet

#: Decoded bytes of one chunk of a scratch store.
_CHUNK = "16 MiB"


def describe(name: str, source: Input) -> Source:
    """The source that `spill` would make of in-memory data; nothing is written.

    Raises
    ------
    DTypeError, DimensionError, MissingVariableError
        The data is no array, has no dimension names, or lacks the variable.
    """
    data, dims = _data(name, source)
    spec = FieldSpec(name, dims, tuple(data.shape), str(np.dtype(data.dtype).newbyteorder("=")))
    return Source(spec=spec, arrays=(), stacked=False, chunks=_chunks(data), shard=None)


def spill(name: str, source: Input, folder: Folder) -> Input:
    """Write in-memory data into a scratch store, so that every worker can read it tile by tile."""
    data, dims = _data(name, source)
    place = folder.child(f"{name}.zarr").place
    store = places.zarr_store(place, read_only=False)
    if isinstance(data, np.ndarray):
        array = zarr.create_array(
            store, shape=data.shape, dtype=data.dtype.newbyteorder("="), chunks=_chunks(data), dimension_names=dims
        )
        array[...] = data
        return Input(store=place)
    chunks = dict(zip(dims, _chunks(data), strict=True))
    variable = f"{name}_values" if name in data.coords or name in dims else name
    dataset = data.rename(variable).drop_encoding().to_dataset()
    if dataset.chunks:
        dataset = dataset.chunk(chunks)
    encoding = {variable: {"chunks": tuple(chunks.values())}}
    with quiet():
        dataset.to_zarr(store, zarr_format=3, consolidated=False, mode="w", encoding=encoding)
    return Input(store=place, variable=variable)


def _data(name: str, source: Input) -> tuple[Any, tuple[str, ...]]:
    """The array behind an input, and its dimension names."""
    import xarray as xr

    data = source.store
    if isinstance(data, xr.Dataset):
        data = _variables(name, source, data)
    if isinstance(data, xr.DataArray):
        if source.dims is not None:
            data = data.rename(dict(zip(data.dims, source.dims, strict=True)))
        return data, tuple(str(dim) for dim in data.dims)
    if not isinstance(data, np.ndarray):
        raise DTypeError(
            f"input {name!r} is neither a store nor an array",
            got=type(data).__name__,
            expected="a path, a numpy array or an xarray object",
            do=f"give inputs.{name} one of these",
        )
    if source.dims is None:
        raise DimensionError(
            f"input {name!r} is a numpy array without dimension names",
            got=f"shape {data.shape}",
            do=f"give Input(store=..., dims=(...)) as inputs[{name!r}]",
        )
    return data, source.dims


def _variables(name: str, source: Input, data: Any) -> Any:
    names = list(source.variables or [source.variable or name])
    missing = [key for key in names if key not in data]
    if missing:
        raise MissingVariableError(
            f"the dataset given as input {name!r} has no variable {missing[0]!r}",
            expected="one of " + ", ".join(map(str, data.data_vars)),
            do=f"set the variable of inputs[{name!r}]",
        )
    return data[names].to_dataarray(dim=source.stack) if source.stack else data[names[0]]


def _chunks(data: Any) -> tuple[int, ...]:
    """Chunks of a scratch store: square-ish, of a bounded number of bytes."""
    from dask.array.core import normalize_chunks

    if 0 in data.shape:
        return tuple(max(1, n) for n in data.shape)
    found = normalize_chunks("auto", shape=data.shape, limit=_CHUNK, dtype=data.dtype)
    return tuple(int(axis[0]) for axis in found)


def without_data(source: Input) -> Input:
    """The input as it can be written down: in-memory data by its type and shape alone."""
    if not source.in_memory:
        return source
    shape = "x".join(map(str, getattr(source.store, "shape", ())))
    return replace(source, store=f"in memory: {type(source.store).__name__} {shape}".strip())
