"""In-memory inputs of a streamed job: described for a plan, written down for a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from tilewise import access
from tilewise.errors import UnsupportedStoreError
from tilewise.fields import FieldSpec
from tilewise.folders import Folder
from tilewise.labelled import dtype_name, labelled
from tilewise.sources import Input, Source

if TYPE_CHECKING:
    import xarray as xr

#: Decoded bytes of one chunk of a scratch store.
_CHUNK = "16 MiB"


def describe(name: str, source: Input) -> Source:
    """The source that `spill` would make of in-memory data; nothing is written.

    Raises
    ------
    DTypeError, DimensionError, MissingVariableError
        The data is no array, has no dimension names, or lacks the variable.
    """
    data = labelled(name, source)
    spec = FieldSpec(name, _dims(data), tuple(data.shape), dtype_name(name, data.dtype))
    return Source(spec=spec, arrays=(), stacked=False, chunks=_chunks(data), shard=None)


def spill(name: str, source: Input, folder: Folder) -> Input:
    """Write in-memory data into a scratch store, so that every worker can read it tile by tile."""
    data = labelled(name, source)
    dims = _dims(data)
    place = folder.child(f"{name}.zarr").place
    store = access.zarr_store(place, read_only=False)
    if isinstance(source.store, np.ndarray):
        array = zarr.create_array(
            store, shape=data.shape, dtype=data.dtype.newbyteorder("="), chunks=_chunks(data), dimension_names=dims
        )
        array[...] = data.values
        return Input(store=place)
    chunks = dict(zip(dims, _chunks(data), strict=True))
    variable = f"{name}_values" if name in data.coords or name in dims else name
    # Attributes do not survive a computation, and numbers in memory are values, whatever their attributes say.
    dataset = data.drop_attrs(deep=False).rename(variable).drop_encoding().to_dataset()
    if dataset.chunks:
        dataset = dataset.chunk(chunks)
    encoding = {variable: {"chunks": tuple(chunks.values())}}
    try:
        with access.quiet():
            dataset.to_zarr(store, zarr_format=3, consolidated=False, mode="w", encoding=encoding)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedStoreError(
            f"input {name!r} cannot be written to a store, from which workers would read it",
            got=error,
            expected="coordinates that Zarr can hold, of " + ", ".join(map(str, data.coords)),
            do="drop or convert it, as in .drop_vars(...) or .reset_index(...), or call the kernel on the input",
        ) from error
    return Input(store=place, variable=variable, mask_and_scale=False)


def _dims(data: xr.DataArray) -> tuple[str, ...]:
    return tuple(str(dim) for dim in data.dims)


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
