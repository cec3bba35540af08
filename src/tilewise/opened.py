"""What a process keeps open for each run, until it is told to forget it: the one process-wide state of tilewise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast


class Closes(Protocol):
    """Something that holds files."""

    def close(self) -> None:
        """Close them."""


T = TypeVar("T", bound=Closes)


@dataclass
class _Kept:
    """What is kept for one run; opening it may take seconds, for which no other run is to wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Closes | None = None


_OPEN: dict[str, _Kept] = {}
_LOCK = threading.Lock()


def opened(run: str, make: Callable[[], T]) -> T:
    """What this process keeps for a run, made when it is first asked for.

    >>> import io
    >>> first = opened("example", io.StringIO)
    >>> opened("example", io.StringIO) is first
    True
    >>> forget("example"), first.closed
    (None, True)
    """
    with _LOCK:
        kept = _OPEN.setdefault(run, _Kept())
    with kept.lock:
        if kept.value is None:
            kept.value = make()
        return cast(T, kept.value)


def forget(run: str) -> None:
    """Close what this process keeps open for a run."""
    with _LOCK:
        kept = _OPEN.pop(run, None)
    if kept is None:
        return
    with kept.lock:
        if kept.value is not None:
            kept.value.close()
