"""One run for each output: the lock that it holds, and what every tile asks before it writes."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewise import places
from tilewise.claims import HEARTBEAT, LOCK, PROBE, Claim, Sleep, give_back, is_lock_file, now, read_claim, stake
from tilewise.errors import LockedError, StoreAccessError
from tilewise.folders import Folder, Stamp

__all__ = ["HEARTBEAT", "LOCK", "PROBE", "Claim", "Lease", "Lock", "Watch", "hold", "is_lock_file", "read_claim"]

log = logging.getLogger("tilewise")

#: Seconds from one heartbeat to the next.
BEAT = 10.0


@dataclass(frozen=True)
class Lease:
    """The right of one run to write its output, by names alone: what a task carries."""

    sidecar: str
    run: str

    def check(self) -> None:
        """Refuse to write for a run that the lock does not name: it has ended, or another one has taken over.

        Raises
        ------
        LockedError
            The lock has gone, or names another run.
        StoreAccessError
            The lock cannot be read, or understood, just now: it may still be this run's.
        """
        claim = self._claim()
        if claim is None or claim.run != self.run:
            raise LockedError(
                "the output is no longer this run's to write",
                got=f"run {claim.run}, {claim.owner}" if claim else "no lock",
                expected=f"run {self.run}",
                do="see what the other run does with `tilewise info`",
            )

    def _claim(self) -> Claim | None:
        try:
            return read_claim(Folder(self.sidecar))
        except LockedError as error:
            # A store may give a part of it. That reading may be tried again is told by the cause.
            raise StoreAccessError(error.what, got=error.got, do=error.do) from error.__cause__


class Watch:
    """A lease that one process asks often: what it has read holds until the lock's file is another one."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._folder = Folder(lease.sidecar)
        self._seen: Stamp | None = None

    def check(self) -> None:
        """Refuse to write, as `Lease.check` does."""
        stamp = self._folder.stamp(LOCK)
        if stamp is not None and stamp == self._seen:
            return
        self._lease.check()
        self._seen = stamp  # of before the reading: what was replaced meanwhile is read again


class Lock:
    """The lock of a run that holds it; `lost` once another run is seen to have taken it over."""

    def __init__(self, folder: Folder, claim: Claim) -> None:
        self.folder = folder
        self.claim = claim
        self.lost = False
        self._end = threading.Event()
        self._beats = 0
        self._thread = threading.Thread(target=self._beat, name="tilewise-heartbeat", daemon=True)

    @property
    def lease(self) -> Lease:
        """What tasks carry to ask before they write."""
        return Lease(places.absolute(self.folder.place), self.claim.run)

    def check(self) -> None:
        """Refuse to go on where the lock is another's.

        Raises
        ------
        LockedError, StoreAccessError
            As `Lease.check` does.
        """
        try:
            self.lease.check()
        except LockedError:
            self.lost = True
            raise

    def start(self) -> None:
        """Show from now on that the owner lives."""
        self._pulse()
        self._thread.start()

    def stop(self) -> None:
        """No more heartbeats; one that is being written is waited for."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=BEAT)

    def _beat(self) -> None:
        while not self._end.wait(BEAT) and not self.lost:
            try:
                self.check()
                self._pulse()
            except LockedError as error:
                log.warning("%s", error)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, it may be back at the next beat
                log.warning("no heartbeat could be written to %s: %s", self.folder, error)

    def _pulse(self) -> None:
        self._beats += 1
        beat = {"run": self.claim.run, "token": self.claim.token, "beat": self._beats, "time": now()}
        self.folder.write_text(HEARTBEAT, json.dumps(beat) + "\n")


@contextmanager
def hold(
    folder: Folder, run: str, *, output: str = "", force: bool = False, sleep: Sleep = time.sleep
) -> Iterator[Lock]:
    """Hold the lock of a sidecar for a run; given back at the end, unless another has taken it over meanwhile.

    A lock whose owner is dead on this system is taken over at once, one from elsewhere after a minute without a
    heartbeat. Behind a URL whose library cannot write exclusively, of two takers at once the last one wins, which
    both know after a second: see `Folder.create_text`.

    Parameters
    ----------
    output
        What the run writes, as others read it.
    force
        Take the lock over whoever holds it.
    sleep
        How the minute is waited for.

    Raises
    ------
    LockedError
        Another run is at work, or was as quick to take over.
    StoreAccessError, StoreFullError
        The sidecar cannot be written.
    """
    lock = Lock(folder, stake(folder, run, output, force=force, sleep=sleep))
    try:
        lock.start()
        yield lock
    finally:
        lock.stop()
        give_back(folder, lock.claim)
