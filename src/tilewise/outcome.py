"""What a run tells while it works and when it is done: events, sums, and the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tilewise.ledger import Totals
from tilewise.ledger_rows import meaning
from tilewise.limits import Probe
from tilewise.plans import Plan
from tilewise.records import BlockRecord, TileState


@dataclass(frozen=True)
class Report:
    """What a run that has come to its end did.

    Attributes
    ----------
    output
        Path of the output.
    plan
        The plan, with the baseline that the run measured.
    tiles
        Tiles that this run has done.
    seconds
        Wall time of the tiles.
    startup
        Wall time of everything before the first tile: planning, starting workers, trying the kernel.
    phases
        Seconds over all slots, which add up to all that they had: `read`, `compute` and `write` of tiles; `scheduler`,
        between tiles and blocks; `wait`, before the first block and after the last one, and with read-ahead also for a
        turn to compute.
    limit
        Seconds in which the same slots would read and decode the inputs of these tiles once, and encode and write their
        outputs once, as probed on a few tiles beforehand; None where the run was too short to be probed.
    statuses
        Pixels of the whole output by status meaning, where the kernel has a status.
    peaks
        Largest resident bytes of each process that did tiles.
    misfits
        Values of the whole output that it, packed, could not hold: written as missing, with status non_finite.
    warnings
        What may be wrong with the workers, such as a library of another version.
    resumed
        Tiles that earlier runs had done.
    failed
        Tiles that failed, where the job skips such.
    retries
        How often something was tried again.
    shrunk
        Tiles done in smaller panels than the plan's, since memory did not allow these.
    """

    output: str
    plan: Plan
    tiles: int
    seconds: float
    startup: float
    phases: Mapping[str, float]
    statuses: Mapping[str, int]
    peaks: Mapping[str, int]
    misfits: int = 0
    warnings: tuple[str, ...] = ()
    resumed: int = 0
    failed: int = 0
    retries: int = 0
    shrunk: int = 0
    limit: float | None = None

    @property
    def efficiency(self) -> float | None:
        """Share of the wall time of the tiles in which all could be read and written once; None where not probed."""
        return self.limit / self.seconds if self.limit is not None and self.seconds else None

    @property
    def peak(self) -> int:
        """Largest resident bytes of any process that did tiles."""
        return max(self.peaks.values(), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "plan"}
        return {**own, "peak": self.peak, "efficiency": self.efficiency, "plan": self.plan.to_dict()}


@dataclass(frozen=True)
class Event:
    """Progress of a run.

    Attributes
    ----------
    done, total
        Tiles done, those of earlier runs among them, of all.
    seconds
        Wall time since the first block was started.
    nbytes
        Bytes that this run has read and written.
    resumed
        Tiles that earlier runs had done.
    failed
        Tiles that have failed.
    """

    done: int
    total: int
    seconds: float
    nbytes: int
    resumed: int = 0
    failed: int = 0


OnProgress = Callable[[Event], None]


class Tally:
    """Sums of the records as they come in; nothing that grows with the number of tiles."""

    def __init__(
        self,
        plan: Plan,
        output: str,
        begin: float,
        progress: OnProgress | None = None,
        earlier: Totals | None = None,
        probe: Probe | None = None,
    ) -> None:
        self._plan = plan
        self._output = output
        self._begin = begin
        self._progress = progress
        self._start = time.perf_counter()
        self._resumed = earlier.states.get(TileState.DONE, 0) if earlier else 0
        self._done = self._failed = self._retries = self._shrunk = 0
        self._phases = [0.0, 0.0, 0.0]
        self._scheduler = 0.0
        self._probe = probe
        self._statuses = Counter(earlier.statuses if earlier else {})
        self._misfits = earlier.misfits if earlier else 0
        self._peaks: dict[str, int] = {}

    def add(self, record: BlockRecord) -> None:
        """Take in one block, and tell whoever watches."""
        if record.process:  # else its process has died
            self._peaks[record.process] = max(record.peak, self._peaks.get(record.process, 0))
        spent = sum(sum(tile.seconds) for tile in record.tiles)
        self._scheduler += record.idle + max(0.0, record.seconds - spent)
        for tile in record.tiles:
            self._done += tile.state is TileState.DONE
            self._failed += tile.state in (TileState.FAILED, TileState.QUARANTINED)
            self._retries += tile.attempts - 1
            self._shrunk += bool(tile.panel)
            self._phases = [a + b for a, b in zip(self._phases, tile.seconds, strict=True)]
            self._statuses.update(tile.statuses)
            self._misfits += tile.misfits
        self.tell()

    def tell(self) -> None:
        """Tell whoever watches how far the run is."""
        if self._progress is not None:
            plan = self._plan
            done = self._resumed + self._done
            nbytes = int(self._done / plan.tiles * (plan.read_bytes + plan.write_bytes))
            event = Event(done, plan.tiles, time.perf_counter() - self._start, nbytes, self._resumed, self._failed)
            self._progress(event)

    def _by_meaning(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for code, count in sorted(self._statuses.items()):
            found[meaning(code)] += count
        return dict(found)

    @property
    def tried(self) -> int:
        """Tiles of which something has become, in this run or before."""
        return self._resumed + self._done + self._failed

    def _where(self, seconds: float) -> dict[str, float]:
        """Where the time of all slots went."""
        found = dict(zip(("read", "compute", "write"), self._phases, strict=True))
        wait = self._plan.in_work * seconds - sum(self._phases) - self._scheduler
        return {**found, "scheduler": self._scheduler, "wait": max(0.0, wait)}

    def report(self, warnings: tuple[str, ...] = ()) -> Report:
        """The sums so far."""
        seconds = time.perf_counter() - self._start
        limit = self._probe.limit(self._plan) * self._done / self._plan.tiles if self._probe else None
        return Report(
            output=self._output,
            plan=self._plan,
            tiles=self._done,
            seconds=seconds,
            startup=self._start - self._begin,
            phases=self._where(seconds),
            statuses=self._by_meaning(),
            peaks=self._peaks,
            misfits=self._misfits,
            warnings=warnings,
            resumed=self._resumed,
            failed=self._failed,
            retries=self._retries,
            shrunk=self._shrunk,
            limit=limit,
        )
