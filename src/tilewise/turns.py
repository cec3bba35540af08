"""Whose turn it is in a process: tiles side by side, or one of them alone with all the memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Turns of the tiles in one process.

    >>> turns = Turns()
    >>> with turns.together():
    ...     with turns.together():
    ...         pass
    >>> with turns.alone():
    ...     pass
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """A turn beside others; none begins while somebody waits to be alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A turn that begins when all others have ended, and that nobody else begins beside."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._together)
                self._alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
