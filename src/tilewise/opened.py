"""What a process keeps open for each run, until it is told to forget it: the one process-wide state of tilewise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, cast


class Closes(Protocol):
    """Something that holds files."""

    def close(self) -> None:
        """Close them."""


T = TypeVar("T", bound=Closes)

_OPEN: dict[str, Closes] = {}
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
        if run not in _OPEN:
            _OPEN[run] = make()
        return cast(T, _OPEN[run])


def forget(run: str) -> None:
    """Close what this process keeps open for a run."""
    with _LOCK:
        kept = _OPEN.pop(run, None)
    if kept is not None:
        kept.close()
