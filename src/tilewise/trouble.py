"""What an exception means for a tile: whether it may pass, and what it says of the store, the memory and the data."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Literal

from tilewise.errors import LockedError, StoreAccessError, StoreFullError, TilewiseError

Doing = Literal["read", "compute", "write"]


class Trouble(Enum):
    """What an exception means."""

    #: A store did not answer, or not properly: it may the next time.
    PASSING = "passing"
    #: What was read cannot be decoded: it may have been torn, and be whole the next time; or it is damaged.
    UNREADABLE = "unreadable"
    #: No space is left where the output is written.
    FULL = "full"
    #: Memory was short, of the host or of the device.
    MEMORY = "memory"
    #: Another run has taken over the output.
    LOST = "lost"
    #: Trying again would change nothing.
    LASTING = "lasting"


#: Numbers of system errors that last.
_LASTING = (errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
#: Builtin errors of the system that last.
_LASTING_CLASSES = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
#: Errors of store libraries that last, by the names of their classes.
_LASTING_NAMES = (
    "PermissionDeniedError",
    "UnauthenticatedError",
    "NoCredentialsError",
    "NotFoundError",
    "NotSupportedError",
    "InvalidPathError",
)
#: What torn metadata raises, which is read before something is written too; and an OSError that is no store's.
_TORN = (json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile)
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: What object stores answer when an account or a disk behind them is full.
_FULL_TEXTS = ("quotaexceeded", "quota exceeded", "insufficientstorage", "insufficient storage", "storagefull")
#: What torch, its allocators and its libraries say of memory that is short, where the class does not.
_MEMORY_TEXTS = (
    "defaultcpuallocator",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "std::bad_alloc",
    "cublas_status_alloc_failed",
    "cusolver_status_alloc_failed",
)


def trouble_of(error: BaseException, doing: Doing) -> Trouble:
    """What an exception means that was raised while a tile was being read, computed or written.

    >>> trouble_of(ConnectionResetError("gone"), "read"), trouble_of(ConnectionResetError("gone"), "compute")
    (<Trouble.PASSING: 'passing'>, <Trouble.LASTING: 'lasting'>)
    """
    behind = list(_causes(error))
    if isinstance(error, LockedError):
        return Trouble.LOST
    if any(_is_memory(e) for e in behind):
        return Trouble.MEMORY
    if doing == "compute":
        return Trouble.LASTING
    if doing == "write" and any(_is_full(e) for e in behind):
        return Trouble.FULL
    if any(isinstance(e, _TORN) for e in behind):
        return Trouble.UNREADABLE
    if any(_is_lasting(e) for e in behind):
        return Trouble.LASTING
    if any(isinstance(e, StoreAccessError | OSError) for e in behind):
        return Trouble.PASSING
    return Trouble.UNREADABLE if doing == "read" and not isinstance(error, TilewiseError) else Trouble.LASTING


@contextmanager
def fullness_told(what: str) -> Iterator[None]:
    """Say by name that there is no space left to write something, whatever a library raises.

    Raises
    ------
    StoreFullError
        There is none.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreFullError) or trouble_of(error, "write") is not Trouble.FULL:
            raise
        raise StoreFullError(
            f"no space is left for {what}", got=error, do="make room and run again with --resume"
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from; not what was merely being handled."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, TilewiseError):
        return False  # a budget that a job does not fit is a MemoryError too
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _says(error, _MEMORY_TEXTS)


def _is_full(error: BaseException) -> bool:
    if isinstance(error, StoreFullError):
        return True
    return isinstance(error, OSError) and (error.errno in _FULL or _says(error, _FULL_TEXTS))


def _is_lasting(error: BaseException) -> bool:
    if isinstance(error, _LASTING_CLASSES) or type(error).__name__ in _LASTING_NAMES:
        return True
    return isinstance(error, OSError) and error.errno in _LASTING


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    said = str(error).lower()
    return any(text in said for text in texts)
