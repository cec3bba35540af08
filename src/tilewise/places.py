"""Places that data is read from and written to: local paths, and URLs."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zarr.errors
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


def is_file(store: str) -> bool:
    """Whether there is a local file rather than a folder."""
    return not is_url(store) and Path(store).is_file()


def is_zip(store: str) -> bool:
    """Whether there is a local zip archive."""
    return is_file(store) and zipfile.is_zipfile(store)


def zarr_store(store: str, *, read_only: bool) -> Store:
    """What zarr reads from and writes to at that place."""
    if is_url(store):
        return zarr.storage.FsspecStore.from_url(store, read_only=read_only)
    return zarr.storage.LocalStore(store, read_only=read_only)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of zarr about what other readers may not know.

    Consolidated metadata may be ignored by them, and xarray warns where it is missing; text labels are a dtype that
    zarr-python and xarray share, if not yet one of the Zarr v3 specification; the same of codecs in a store that is
    read as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.UnstableSpecificationWarning)
        warnings.filterwarnings("ignore", "Numcodecs codecs are not in", zarr.errors.ZarrUserWarning)
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part", zarr.errors.ZarrUserWarning)
        yield
