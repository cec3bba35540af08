"""Places that data is read from and written to: local paths, and URLs."""

from __future__ import annotations

from pathlib import Path

import zarr.storage
from zarr.abc.store import Store


def local_path(store: str) -> str:
    """A local URL as the path that it means; anything else as it is.

    >>> local_path("file:///data/x.zarr"), local_path("s3://bucket/x.zarr")
    ('/data/x.zarr', 's3://bucket/x.zarr')
    """
    for scheme in ("file://", "local://"):
        store = store.removeprefix(scheme)
    return store


def is_url(store: str) -> bool:
    """Whether a place is a URL rather than a local path.

    >>> is_url("s3://bucket/x.zarr"), is_url("/data/x.zarr")
    (True, False)
    """
    return "://" in store


def absolute(store: str) -> str:
    """The place, wherever a process stands: workers and kernels may stand elsewhere."""
    return store if is_url(store) else str(Path(store).absolute())


def exists(store: str) -> bool:
    """Whether there is anything at a local path."""
    return Path(store).exists()


def zarr_store(store: str, *, read_only: bool) -> Store:
    """What zarr reads from and writes to at that place."""
    if is_url(store):
        return zarr.storage.FsspecStore.from_url(store, read_only=read_only)
    return zarr.storage.LocalStore(store, read_only=read_only)
