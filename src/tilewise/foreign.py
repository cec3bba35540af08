"""Variables of files that are no Zarr stores: NetCDF, and whatever else xarray has an engine for.

Stored numbers are read as they are; `decoding` makes values of them, as of those of a Zarr store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise import places
from tilewise.errors import UnsupportedStoreError

if TYPE_CHECKING:
    import xarray as xr

#: Bytes of the chunks that an array without chunks is read in.
_CHUNK = "16 MiB"
#: Bytes that a library keeps for an open variable beside what is read: the chunk cache of netCDF-C is 16 MiB, or 64
#: MiB in some builds.
CACHE_BYTES = 64 << 20


#: What the engines of xarray raise for files that they cannot take: NotImplementedError is a RuntimeError.
_REFUSED = (OSError, EOFError, ValueError, TypeError, LookupError, ImportError, RuntimeError, AttributeError)


def open_group(store: str, group: str = "", *, key: str = "") -> xr.Dataset:
    """The variables of a file, or of a group in it, undecoded and unread; `key` is what names the file in a job.

    Raises
    ------
    UnsupportedStoreError
        No engine of xarray opens it, or it has no such group.
    """
    import xarray as xr

    try:
        return xr.open_dataset(store, group=group or None, decode_cf=False, chunks=None, cache=False)
    except _REFUSED as error:
        raise UnsupportedStoreError(
            f"{store} is no Zarr store, and xarray cannot open {f'group {group!r} of it' if group else 'it'} either",
            got=f"{type(error).__name__}: {error}".splitlines()[0],
            do=f"check that {key or 'the file'} is whole, install the package of its format (h5netcdf with h5py, or "
            "netCDF4, for NetCDF), or convert it to Zarr",
        ) from error


def load(store: str) -> None:
    """Load whatever reading a file takes: xarray, and its engine for that format.

    A file that is not there loads xarray alone; whoever reads it says what is wrong.
    """
    import dask.array.core  # noqa: F401 - of which `ForeignArray.chunks` asks something
    import xarray as xr  # noqa: F401

    if places.exists(store):
        open_group(store).close()


class ForeignArray:
    """A variable of a file, with the part of `zarr.Array` that reading needs."""

    shards = None

    def __init__(self, dataset: xr.Dataset, path: str) -> None:
        self._dataset = dataset  # keeps the file open
        self._variable = dataset.variables[path.rpartition("/")[2]]
        self.path = path
        self.shape: tuple[int, ...] = self._variable.shape
        self.dtype: np.dtype[Any] = self._variable.dtype
        self.dims = tuple(str(dim) for dim in self._variable.dims)
        self.attrs: Mapping[str, Any] = dict(self._variable.attrs)

    @classmethod
    def open(cls, store: str, path: str) -> ForeignArray:
        """The variable at a path within a file: names of groups and of the variable, joined by slashes."""
        group, _, name = path.rpartition("/")
        dataset = open_group(store, group)
        if name not in dataset.variables:
            raise UnsupportedStoreError(f"{store} has no variable {path!r}", do="check the file")
        return cls(dataset, path)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Cells of what one read decodes in one piece; of a bounded number of bytes where the file says nothing."""
        from dask.array.core import normalize_chunks

        stored = self._variable.encoding.get("chunksizes")
        if stored is not None and len(stored) == len(self.shape):
            return tuple(max(1, int(n)) for n in stored)
        if 0 in self.shape or self.dtype.kind == "O":
            return tuple(max(1, n) for n in self.shape)
        found = normalize_chunks("auto", shape=self.shape, limit=_CHUNK, dtype=self.dtype)
        return tuple(int(axis[0]) for axis in found)

    def __getitem__(self, selection: Any) -> Any:
        """Stored numbers of a selection."""
        return np.asarray(self._variable[selection].values)

    def get_basic_selection(self, selection: Any, *, out: Any) -> None:
        """Read a selection into a buffer of zarr."""
        out.as_numpy_array()[...] = self[selection]

    def close(self) -> None:
        """Let go of the file."""
        self._dataset.close()
