"""Real Zarr stores for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

#: What lies in the sidecar of a run that has finished.
RECORDS = ["job.json", "ledger.zarr", "plan.json", "report.json", "run.json"]


def write(
    path: Path,
    fields: Mapping[str, tuple[Sequence[str] | None, Any]],
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    zarr_format: int = 3,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> str:
    """Group of (dims, array) pairs; dims may be None where the store shall have no names. Returns the path."""
    group = zarr.create_group(path, zarr_format=zarr_format)
    for name, (dims, data) in fields.items():
        array = np.asarray(data)
        names = tuple(dims) if dims is not None else (None,) * array.ndim
        more: dict[str, Any] = dict(options)
        if zarr_format == 2:
            more.setdefault("fill_value", None)  # as xarray writes an array without a missing value
        if zarr_format == 3 and dims is not None:
            more["dimension_names"] = names
        if shards is not None:
            more["shards"] = _sizes(names, array, shards)
        created = group.create_array(
            name, shape=array.shape, dtype=array.dtype, chunks=_sizes(names, array, chunks or {}), **more
        )
        if zarr_format == 2 and dims is not None:
            created.attrs["_ARRAY_DIMENSIONS"] = list(names)
        created.attrs.update(dict((attrs or {}).get(name, {})))
        created[...] = array
    return str(path)


def _sizes(names: Sequence[str | None], array: np.ndarray[Any, Any], wanted: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(max(1, min(wanted.get(str(dim), n), n)) for dim, n in zip(names, array.shape, strict=True))


def read(path: str | Path, name: str) -> np.ndarray[Any, Any]:
    """All of an array of a store."""
    return np.asarray(zarr.open_array(str(path), path=name, mode="r")[...])
