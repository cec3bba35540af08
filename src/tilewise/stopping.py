"""How SIGINT and SIGTERM stop a run: what is in work ends and is recorded, then the signal does what it would have."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds within which the same signal is taken for the first one: batch systems send it to a process and its group.
TWICE = 0.5

Hurry = Callable[[int], None]


class Stop:
    """Whether a signal has asked a run to stop, and which."""

    def __init__(self) -> None:
        self.signum = 0
        self._when = 0.0

    def ask(self, signum: int) -> bool:
        """Take note of a signal; whether it is one more, which will not wait."""
        if not self.signum:
            self.signum, self._when = signum, time.monotonic()
            return False
        return time.monotonic() - self._when > TWICE


@contextmanager
def stoppable(hurry: Hurry | None = None) -> Iterator[Stop]:
    """Signals that come meanwhile only ask to stop; at the end the first goes to the handler that was there before.

    In another thread than the main one, which alone hears signals, nothing is changed.

    Parameters
    ----------
    hurry
        Called with the number of a second signal; unless given, that goes to the handler that was there before, at
        once.

    >>> with stoppable() as stop:
    ...     bool(stop.signum)
    False
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def heard(signum: int, frame: FrameType | None) -> None:
        if not stop.ask(signum):
            return
        if hurry is not None:
            hurry(signum)
            return
        signal.signal(signum, before[signum])
        os.kill(os.getpid(), signum)

    before = {int(signum): signal.getsignal(signum) for signum in SIGNALS}
    # A handler that was not set from Python cannot be put back.
    mine = [int(signum) for signum in SIGNALS if before[signum] not in (None, signal.SIG_IGN)]
    for signum in mine:
        signal.signal(signum, heard)
    try:
        yield stop
    finally:
        for signum in mine:
            signal.signal(signum, before[signum])
    if stop.signum:
        os.kill(os.getpid(), stop.signum)
