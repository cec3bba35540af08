"""Places that data is read from and written to: local paths, zip archives, and URLs.

A place is text. What opens it, fsspec or obstore, takes credentials from the environment or from its own
configuration: a URL that carries any is refused, so that none can reach a file, an attribute or a log.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
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

#: Prefix of a URL that obstore is to open, whatever fsspec knows.
OBSTORE = "obstore+"
#: Protocols that obstore opens.
_OBSTORE_KNOWS = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
#: Protocols that have no writers, or none whose writes are whole objects.
_READ_ONLY = ("http", "https", "zip", "tar", "libarchive", "git", "github", "reference", "data", "generic")
#: Protocols in which a name before @ is no secret: a container, or a user whose key lies elsewhere.
_NAMED = ("abfs", "abfss", "sftp", "ssh", "ftp", "smb", "hdfs")
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "adl": "az"}
#: One request at a time for each chunk: zarr asks for several chunks at once, and a bounded number is in memory.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}, "s3a": {"max_concurrency": 1}}
#: obstore would try ten times over three minutes.
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


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
    """Whether a local path is a file that is a zip archive, or is named like one."""
    path = Path(store)
    return not is_url(store) and path.is_file() and (path.suffix == ".zip" or zipfile.is_zipfile(path))


def protocols(store: str) -> tuple[str, ...]:
    """Protocols of a URL, the outermost first; none of a path.

    >>> protocols("simplecache::s3://bucket/x.zarr"), protocols("obstore+s3://bucket/x.zarr"), protocols("x.zarr")
    (('simplecache', 's3'), ('s3',), ())
    """
    if not is_url(store):
        return ()
    links = store.removeprefix(OBSTORE).split("::")
    return tuple(link.partition("://")[0] if "://" in link else link for link in links if not link.startswith("/"))


def opener(store: str) -> str:
    """What opens a place, in one word: places with equal words need the same packages.

    >>> opener("obstore+s3://bucket/x.zarr"), opener("s3://bucket/x.zarr"), opener("/data/x.nc")
    ('obstore+s3', 's3', '.nc')
    """
    if not is_url(store):
        return Path(store).suffix
    return (OBSTORE if store.startswith(OBSTORE) else "") + "::".join(protocols(store))


def needs_more(store: str) -> bool:
    """Whether opening a place takes more than zarr: a client of its object store, or xarray for a file.

    >>> needs_more("s3://bucket/x.zarr"), needs_more("/data/x.zarr")
    (True, False)
    """
    return is_url(store) or (is_file(store) and not is_zip(store))


def load(stores: Iterable[str]) -> None:
    """Load and connect whatever these URLs need, by one small request to each."""
    for store in stores:
        holds_any(store, ("zarr.json",))


def without_credentials(store: str, key: str) -> str:
    """The place, which must have a name that can be, and carry no secret; `key` is what names it in a job.

    Raises
    ------
    UnsupportedStoreError
        It is empty, or holds the character NUL. Or it is a URL with a password, or with a query, which may be a
        signature: the message does not show it. Or parts of it have more than one meaning.

    >>> without_credentials("s3://me:secret@bucket/x", "inputs.x.store")
    Traceback (most recent call last):
    tilewise.errors.UnsupportedStoreError: inputs.x.store is a URL with credentials or a query; got: s3://***; ...
    """
    if not store or "\0" in store:
        raise UnsupportedStoreError(
            f"{key} {'holds a NUL' if store else 'is empty'}",
            got=repr(store),
            expected="a path or URL",
            do=f"mend {key}",
        )
    for link in store.removeprefix(OBSTORE).split("::") if is_url(store) else ():
        protocol, _, rest = link.partition("://")
        authority = rest.partition("/")[0]
        named = "@" in authority and protocol not in _NAMED
        if named or "?" in rest or "#" in rest or re.search(r":(?!\d*$)", authority):
            raise UnsupportedStoreError(
                f"{key} is a URL with credentials or a query",
                got=f"{protocol}://***",
                expected="a URL without user, password, signature or token",
                do="put credentials into the environment or fsspec's configuration",
            )
        parts = rest.rstrip("/").split("/")
        if protocol not in _READ_ONLY and (any(part in (".", "..") for part in parts) or "%" in rest):
            raise UnsupportedStoreError(
                f"{key} is a URL that different libraries read differently",
                got=link,
                expected="no '.' or '..' as a part of it, and no %",
                do="write the key as it is",
            )
    return store


def masked(text: str) -> str:
    """Text as it may be shown: of a URL that may hold a secret, only the protocol.

    >>> masked("output=s3://me:secret@bucket/x"), masked("output=s3://bucket/x")
    ('output=s3://***', 'output=s3://bucket/x')
    """
    return re.sub(r"://\S*[@?]\S*", "://***", text)


def identity(store: str) -> tuple[str, ...]:
    """What two names of one place have in common: protocol and parts, whatever opens it or lies in between.

    >>> identity("obstore+s3://bucket//x.zarr/") == identity("simplecache::s3a://bucket/x.zarr")
    True
    """
    base = local_path(store.removeprefix(OBSTORE).split("::")[-1]) if is_url(store) else store
    if not is_url(base):
        return ("file", *Path(base).resolve().parts)
    protocol, _, rest = base.partition("://")
    return (_ALIASES.get(protocol, protocol), *(part for part in rest.split("/") if part))


def overlap(one: str, other: str) -> bool:
    """Whether two places are the same, or one lies inside the other.

    >>> overlap("s3://bucket/x.zarr", "s3://bucket/x.zarr/a"), overlap("s3://bucket/x.zarr", "s3://bucket/x.zarr.tilewise")
    (True, False)
    """
    a, b = identity(one), identity(other)
    return a[: len(b)] == b[: len(a)]


def check_writable(store: str, key: str) -> None:
    """Refuse a place that can only be read; `key` is what names it in a job.

    Raises
    ------
    UnsupportedStoreError
        A zip archive, a chain of file systems, a protocol without writes, or a whole bucket.
    """
    without_credentials(store, key)
    refused = [name for name in protocols(store) if name in _READ_ONLY]
    if not is_url(store):
        refused = ["zip"] if store.rstrip("/").endswith(".zip") else []
    elif len(protocols(store)) > 1:
        refused = ["::"]
    if refused:
        raise UnsupportedStoreError(
            f"{key} is a place that can only be read ({refused[0]})",
            got=store,
            expected="a folder, or a URL of an object store",
            do=f"choose another {key}",
        )
    if is_url(store) and len(identity(store)) < 3 and protocols(store) != ("memory",):
        raise UnsupportedStoreError(
            f"{key} is a whole bucket", got=store, expected="a name within it", do=f"choose another {key}"
        )


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
