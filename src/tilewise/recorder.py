"""What becomes of the records of a run: sums for whoever watches, and the ledger, now and then."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tilewise.failures import Failures
from tilewise.ledger import Ledger
from tilewise.outcome import Tally
from tilewise.records import BlockRecord, TileState
from tilewise.tries import Patience, Tries
from tilewise.trouble import Trouble, fullness_told, trouble_of

if TYPE_CHECKING:
    from tilewise.locking import Lock
    from tilewise.stopping import Stop

log = logging.getLogger("tilewise")

#: Seconds between two flushes of the ledger: what is lost of it when the process is killed is done again.
FLUSH = 2.0


class Recorder:
    """Keeps the ledger of one run; it is asked whether the run may go on at least every second."""

    def __init__(
        self, ledger: Ledger, failures: Failures, tally: Tally, lock: Lock, stop: Stop, retries: int = 3
    ) -> None:
        self._ledger = ledger
        self._failures = failures
        self._tally = tally
        self._lock = lock
        self._stop = stop
        self._tries = Tries(Patience(retries, over=bool))
        self._flushed = time.monotonic()
        self._dirty = False

    def add(self, record: BlockRecord) -> None:
        """Take in one block."""
        for tile in record.tiles:
            if tile.state is not TileState.PENDING:
                self._ledger.add(tile)
                self._failures.add(tile)
                self._dirty = True
        self._tally.add(record)
        self._flush_in_time()

    def go_on(self) -> bool:
        """Whether anything new may be begun: no signal has come, and the output is still this run's."""
        self._flush_in_time()
        return not self._stop.signum and not self._lock.lost

    def _flush_in_time(self) -> None:
        """Write down what is new, if it is time; a store that does not answer may do so the next time."""
        if not self._dirty or time.monotonic() - self._flushed < FLUSH:
            return
        try:
            self._write()
        except Exception as error:
            if trouble_of(error, "write") not in (Trouble.PASSING, Trouble.UNREADABLE):
                raise
            log.warning("the ledger could not be written, and will be again: %s", error)
        self._flushed = time.monotonic()

    def flush(self) -> None:
        """Write down what is new, unless another run has taken over; what may pass is tried again.

        Raises
        ------
        LockedError
            Another run has.
        StoreFullError
            No space is left for it.
        StoreAccessError
            The store does not answer.
        """
        self._tries(self._write, "write")

    def _write(self) -> None:
        self._lock.check()
        if not self._dirty:
            return
        with fullness_told("the ledger"):
            self._failures.flush()
            self._ledger.flush()
        self._dirty = False

    def flush_last(self) -> None:
        """Write down what is new when the run has failed already: that says more than what happens here."""
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - what is not written down is done again
            log.warning("the last tiles are not in the ledger, and will be done again: %s", error)
