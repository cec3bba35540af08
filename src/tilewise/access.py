"""What opens a place: a local path or zip archive, or a URL by fsspec or obstore; and how what they raise is told.

Both take credentials from the environment or from fsspec's own configuration.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import fsspec
import fsspec.config
import zarr
import zarr.errors
import zarr.storage
from fsspec.core import url_to_fs
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.registry import known_implementations
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tilewise.errors import MissingStoreError, StoreAccessError, TilewiseError, UnsupportedStoreError
from tilewise.places import OBSTORE, is_url, is_zip, protocols

#: Protocols that obstore opens.
_OBSTORE_KNOWS = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
#: One request at a time for each chunk: zarr asks for several chunks at once, and a bounded number is in memory.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}, "s3a": {"max_concurrency": 1}}
#: obstore would try ten times over three minutes.
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


def load(stores: Iterable[str]) -> None:
    """Load and connect whatever these URLs need, by one small request to each."""
    for store in stores:
        holds_any(store, ("zarr.json",))


def zarr_store(store: str, *, read_only: bool) -> Store:
    """What zarr reads from and writes to at that place.

    A URL is opened by fsspec where the package of its file system is installed, else by obstore where that is, and
    always by obstore where it begins with `obstore+`.

    Raises
    ------
    UnsupportedStoreError
        Nothing here knows the protocol, or the package that does is not installed, or a zip archive is no such.
    """
    if not is_url(store):
        return _zip(store) if read_only and is_zip(store) else zarr.storage.LocalStore(store, read_only=read_only)
    if store.startswith(OBSTORE):
        return _obstore(store.removeprefix(OBSTORE), read_only)
    try:
        for name in protocols(store):
            fsspec.get_filesystem_class(name)
    except ImportError as error:
        if protocols(store)[0] in _OBSTORE_KNOWS and importlib.util.find_spec("obstore"):
            return _obstore(store, read_only)
        raise _needs_package(store, name, error) from error
    except ValueError as error:
        raise UnsupportedStoreError(
            f"there is no protocol {name!r}",
            got=store,
            expected="one that fsspec knows, such as s3, gs, abfs, http, https, sftp or memory",
            do="mend the URL, or register a file system with fsspec",
        ) from error
    return _fsspec(store, read_only)


def _zip(store: str) -> Store:
    if not zipfile.is_zipfile(store):
        raise UnsupportedStoreError(
            "a file named .zip is no zip archive, or is cut off", got=store, do="write or copy it again"
        )
    return zarr.storage.ZipStore(store, mode="r")


def _fsspec(url: str, read_only: bool) -> Store:
    if len(protocols(url)) > 1:  # files that pass through other file systems are read in threads
        system, path = url_to_fs(url)
        wrapped = AsyncFileSystemWrapper(system, asynchronous=True)
        return zarr.storage.FsspecStore(wrapped, path=path.rstrip("/"), read_only=read_only)
    protocol = protocols(url)[0]
    own = fsspec.config.conf.get(protocol, {})
    # Listings are never remembered: a store changes while a process lives.
    options = {"use_listings_cache": False, **_OPTIONS.get(protocol, {})}
    options = {key: value for key, value in options.items() if key not in own}
    return zarr.storage.FsspecStore.from_url(url.rstrip("/"), storage_options=options, read_only=read_only)


def _obstore(url: str, read_only: bool) -> Store:
    protocol = protocols(url)[0]
    if protocol not in _OBSTORE_KNOWS:
        raise UnsupportedStoreError(
            f"obstore does not open {protocol}://", got=url, expected="one of " + ", ".join(_OBSTORE_KNOWS)
        )
    try:
        import obstore.store
    except ImportError as error:
        raise _needs_package(url, "obstore", error) from error
    found = obstore.store.from_url(url.rstrip("/"), retry_config=_RETRIES)
    return zarr.storage.ObjectStore(found, read_only=read_only)


def _needs_package(url: str, protocol: str, error: ImportError) -> UnsupportedStoreError:
    known = known_implementations.get(protocol, {})
    package = str(known.get("class", protocol)).partition(".")[0]
    return UnsupportedStoreError(
        f"{url} needs a package that is not installed",
        got=error,
        do=f"pip install {package}" if package != "fsspec" else "install the package that it names",
    )


def holds_any(store: str, keys: Iterable[str]) -> bool:
    """Whether one of these keys is there: a look at a local folder, or one small request for each."""
    if not is_url(store):
        # Asked for every tile, so without more than one look; a zip archive that is open cannot lose its members.
        return any(os.path.exists(f"{store}/{key}") for key in keys) or is_zip(store)  # noqa: PTH110 - a tenth of the time
    found = zarr_store(store, read_only=True)
    with reaching(store):
        return any(sync(found.get(key, default_buffer_prototype())) is not None for key in keys)


@contextmanager
def reaching(store: str) -> Iterator[None]:
    """Say by name that a remote place is not there or cannot be reached, whatever its library raises.

    Raises
    ------
    MissingStoreError
        The bucket, host or key is not there.
    StoreAccessError
        Access was denied, no credentials were found, or the endpoint did not answer.
    """
    try:
        yield
    except TilewiseError:
        raise
    except Exception as error:
        if not is_url(store) or not _of_access(error):
            raise
        got = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in str(error):
            raise MissingStoreError(f"{store} is not there", got=got, do="check bucket and key") from error
        raise StoreAccessError(
            f"{store} cannot be reached",
            got=got,
            do="check endpoint and credentials, in the environment or fsspec's configuration"
            + ("; obstore wants AWS_ALLOW_HTTP=true for http" if "builder error" in got else ""),
        ) from error


def _of_access(error: Exception) -> bool:
    """Whether an error is the system's, or that of a library behind a URL: zarr's own are about what it read."""
    owner = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or owner not in ("builtins", "json", "zarr", "numcodecs", "zipfile", "zlib")


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
