"""What a run tells while it works and when it is done: events, sums, and the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tilewise.fields import Status
from tilewise.planning import Plan
from tilewise.records import BlockRecord


@dataclass(frozen=True)
class Report:
    """What a finished run did.

    Attributes
    ----------
    output
        Path of the output.
    plan
        The plan, with the baseline that the run measured.
    seconds
        Wall time of the tiles.
    startup
        Wall time of everything before the first tile: planning, starting workers, trying the kernel.
    phases
        Seconds of reading, computing and writing, over all slots.
    statuses
        Pixels by status meaning, where the kernel has a status.
    peaks
        Largest resident bytes of each process that did tiles.
    misfits
        Values that a packed output could not hold: written as missing, with status non_finite.
    warnings
        What may be wrong with the workers, such as a library of another version.
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

    @property
    def peak(self) -> int:
        """Largest resident bytes of any process that did tiles."""
        return max(self.peaks.values(), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "plan"}
        return {**own, "peak": self.peak, "plan": self.plan.to_dict()}


@dataclass(frozen=True)
class Event:
    """Progress of a run: tiles done of all, and seconds since the first block was started."""

    done: int
    total: int
    seconds: float
    nbytes: int


OnProgress = Callable[[Event], None]


class Tally:
    """Sums of the records as they come in; nothing that grows with the number of tiles."""

    def __init__(self, plan: Plan, output: str, begin: float, progress: OnProgress | None = None) -> None:
        self._plan = plan
        self._output = output
        self._begin = begin
        self._progress = progress
        self._start = time.perf_counter()
        self._done = 0
        self._phases = [0.0, 0.0, 0.0]
        self._statuses: Counter[int] = Counter()
        self._peaks: dict[str, int] = {}
        self._misfits = 0

    def add(self, record: BlockRecord) -> None:
        """Take in one block, and tell whoever watches."""
        self._peaks[record.process] = max(record.peak, self._peaks.get(record.process, 0))
        for tile in record.tiles:
            self._done += not tile.error
            self._phases = [a + b for a, b in zip(self._phases, tile.seconds, strict=True)]
            self._statuses.update(tile.statuses)
            self._misfits += tile.misfits
        self.tell()

    def tell(self) -> None:
        """Tell whoever watches how far the run is."""
        if self._progress is not None:
            plan = self._plan
            share = self._done / plan.tiles
            nbytes = int(share * (plan.read_bytes + plan.write_bytes))
            self._progress(Event(self._done, plan.tiles, time.perf_counter() - self._start, nbytes))

    def report(self, warnings: tuple[str, ...] = ()) -> Report:
        """The sums of a finished run."""
        return Report(
            output=self._output,
            plan=self._plan,
            tiles=self._done,
            seconds=time.perf_counter() - self._start,
            startup=self._start - self._begin,
            phases=dict(zip(("read", "compute", "write"), self._phases, strict=True)),
            statuses={Status(code).meaning: n for code, n in sorted(self._statuses.items())},
            peaks=self._peaks,
            misfits=self._misfits,
            warnings=warnings,
        )
