"""Places that data is read from and written to, by name: local paths, zip archives, and URLs.

A place is text; `access.py` opens it. Credentials come from elsewhere: a URL that carries any is refused, so that none
can reach a file, an attribute or a log.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from tilewise.errors import UnsupportedStoreError

#: Prefix of a URL that obstore is to open, whatever fsspec knows.
OBSTORE = "obstore+"
#: Protocols that have no writers, or none whose writes are whole objects.
_READ_ONLY = ("http", "https", "zip", "tar", "libarchive", "git", "github", "reference", "data", "generic")
#: Protocols in which a name before @ is no secret: a container, or a user whose key lies elsewhere.
_NAMED = ("abfs", "abfss", "sftp", "ssh", "ftp", "smb", "hdfs")
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "adl": "az"}


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


def checked(store: str, key: str) -> str:
    """The place, which must have a name that can be, and carry no secret; `key` is what names it in a job.

    Raises
    ------
    UnsupportedStoreError
        It is empty, or holds the character NUL. Or it is a URL with a password, or with a query, which may be a
        signature: the message does not show it. Or parts of it have more than one meaning.

    >>> checked("s3://me:secret@bucket/x", "inputs.x.store")
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
    checked(store, key)
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
