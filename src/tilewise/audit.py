"""Whether an output is what its run promised: every tile done, every write unit there and decodable, a sample repeated.

Memory is bounded: a few write units and one tile at a time, a bounded number of findings, and the numbers of the tiles
that have to be done again.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from tilewise import machine
from tilewise.errors import ParameterError
from tilewise.failures import Failures
from tilewise.findings import Audit, Finding, Found, Kind, region
from tilewise.folders import Folder, stale_partials
from tilewise.outcome import Event, OnProgress
from tilewise.recorded import Recorded
from tilewise.records import TileState
from tilewise.runs import run
from tilewise.store import concrete
from tilewise.stored import Stored
from tilewise.units import Flaw

if TYPE_CHECKING:
    from tilewise.program import Program

#: Tiles that are recomputed unless told otherwise.
SAMPLE = 4
_ANEW = "run the job again with --overwrite"


def audit(
    output: str,
    *,
    sidecar: str | None = None,
    sample: int = SAMPLE,
    seed: int | None = None,
    allow: Sequence[str] = (),
    repair: bool = False,
    progress: OnProgress | None = None,
    client: Any = None,
) -> Audit:
    """Verify an output against the records of its run, and its inputs; on request, do again what is wrong.

    Everything is read by threads of this process. Nothing is written unless `repair` is asked for.

    Parameters
    ----------
    output
        Path or URL of the output.
    sidecar
        Where the records of its run are, if not beside it.
    sample
        Tiles, chosen at random, that are recomputed from the inputs and compared bit by bit; 0 for none, and then
        neither the inputs nor the kernel are needed.
    seed
        Of that choice; another one each time unless given.
    allow
        Modules whose kernels may be imported, which runs what is in them. Kernels of tilewise need none.
    repair
        Do the tiles again that are wrong or not done, and audit those.
    progress
        Called with an `Event` now and then.
    client
        A distributed Client whose workers are to repair; workers of this machine do unless given.

    Raises
    ------
    ResumeError
        There are no records of a run, or they are damaged.
    ParameterError
        The kernel is of a module that is not allowed, or `sample` is no count.
    LockedError
        A run is at work on the output, so that nothing can be repaired.
    TilewiseError
        The inputs cannot be opened.
    """
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
        raise ParameterError("sample is not a count", got=repr(sample), expected="0 or more", do="mend sample")
    recorded = Recorded.of(output, sidecar)
    job = recorded.job(allow) if sample or repair else None
    program = recorded.program(job) if job and sample else None
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    look = _Look(recorded, program, sample, chosen, progress)
    look.everything()
    if job is None or not repair or look.found.is_clean:
        return look.result()
    wrong = look.found.wrong()
    again = replace(job, on_error="skip")  # what fails once more is a finding, and keeps nothing else from being mended
    run(again, resume=True, redo=sorted(set(look.found.redo)), progress=progress, client=client)
    mended = _Look(Recorded.of(output, sidecar), program, sample, chosen, None)
    mended.everything(wrong)
    return replace(mended.result(), repaired=len(wrong))


class _Look:
    """One look at an output, or at some tiles of it."""

    def __init__(
        self, recorded: Recorded, program: Program | None, sample: int, seed: int, progress: OnProgress | None
    ) -> None:
        self._recorded = recorded
        self._program = program
        self._sample = sample
        self._seed = seed
        self._progress = progress
        self._stored = Stored.of(recorded.output, recorded.grid, program.targets if program else None)
        self._begin = time.perf_counter()
        self._units = self._nbytes = self._done = 0
        self._recomputed: tuple[int, ...] = ()
        self._notes: list[str] = []
        self.found = Found()

    def everything(self, only: Sequence[int] | None = None) -> None:
        """Look at every tile, or only at those of these numbers, which are in order."""
        for name, what in self._stored.problems:
            self.found.add(Finding("array", what, array=name, mend=_ANEW))
        self._states()
        chosen = self._choose(self._tiles(only))
        self._coordinates()
        self._repeat(chosen)
        self._strays()

    def _strays(self) -> None:
        """Files of interrupted writes; a run that is at work has such too."""
        at_work = self._recorded.at_work()
        if at_work:
            self._notes.append(f"the output is being written: {at_work}")
            return
        for folder in (Folder(self._recorded.output), self._recorded.folder):
            for path in stale_partials(folder):
                self.found.add(Finding("stray", "an interrupted write has left it", key=str(path), mend=self._repair))

    @property
    def _repair(self) -> str:
        return self._recorded.command("audit", "--repair")

    def _replay(self, number: int) -> str:
        return self._recorded.command("replay", "--tile", str(number))

    def _states(self) -> None:
        """Tiles that are not done."""
        ledger, grid = self._recorded.ledger, self._recorded.grid
        totals = ledger.totals().states
        self._done = totals[TileState.DONE]
        self.found.undone.extend(ledger.numbers(TileState.PENDING, TileState.FAILED, TileState.QUARANTINED))
        pending = totals[TileState.PENDING]
        if pending:
            what = f"{pending:,} of {len(grid):,} tiles have not been done"
            self.found.add(Finding("pending", what, mend=f"run the job with --resume, or {self._repair}"))
        errors = {failure.number: failure.error for failure in Failures.load(self._recorded.folder, grid)}
        kinds: Mapping[TileState, Kind] = {TileState.FAILED: "failed", TileState.QUARANTINED: "quarantined"}
        for state, kind in kinds.items():
            for number in ledger.numbers(state):
                self.found.add(self._of_tile(kind, number, errors.get(number, "its run could not do it")))

    def _of_tile(self, kind: Kind, number: int, what: str, **where: str) -> Finding:
        mend = self._replay(number) if kind in ("failed", "quarantined") else self._repair
        return Finding(kind, what, number, region(self._recorded.grid.tile(number)), mend=mend, **where)

    def _tiles(self, only: Sequence[int] | None) -> Iterator[int]:
        """Look at the write units of every tile that is done; numbers of those that have nothing wrong."""
        numbers = self._recorded.ledger.numbers(TileState.DONE)
        if only is not None:
            numbers = (number for number in numbers if _is_in(number, only))
        for number, flaws, count, nbytes in bounded_map(self._unit_flaws, numbers, machine.cores()):
            self._units += count
            self._nbytes += nbytes
            for name, flaw in flaws:
                finding = self._of_tile(flaw.kind, number, flaw.what, array=name, key=flaw.key)
                self.found.add_done(finding, number)
            self._tell(number)
            if not flaws:
                yield number

    def _unit_flaws(self, number: int) -> tuple[int, list[tuple[str, Flaw]], int, int]:
        tile = self._recorded.grid.tile(number)
        flaws, count, total = [], 0, 0
        for name, units in self._stored.outputs.items():
            for place in units.within(concrete(tile.slices(units.dims), units.shape)):
                found, nbytes = units.flaws(place)
                flaws += [(name, flaw) for flaw in found]
                count, total = count + 1, total + nbytes
        return number, flaws, count, total

    def _tell(self, number: int) -> None:
        if self._progress is not None:
            seconds = time.perf_counter() - self._begin
            self._progress(Event(number + 1, len(self._recorded.grid), seconds, self._nbytes))

    def _choose(self, numbers: Iterator[int]) -> list[int]:
        """So many of these tiles, each with the same chance, without knowing how many there are."""
        draw = random.Random(self._seed)
        chosen = list(islice(numbers, self._sample if self._program else 0))
        for seen, number in enumerate(numbers, len(chosen) + 1):
            place = draw.randrange(seen)
            if place < len(chosen):
                chosen[place] = number
        return sorted(chosen)

    def _coordinates(self) -> None:
        """Coordinates were written before the first tile: no tile can mend them."""
        for name, units in self._stored.coordinates.items():
            whole = [slice(0, n) for n in units.shape]
            for flaw in (flaw for place in units.within(whole) for flaw in units.flaws(place)[0]):
                self.found.add(Finding(flaw.kind, flaw.what, array=name, key=flaw.key, mend=_ANEW))

    def _repeat(self, chosen: Sequence[int]) -> None:
        """Compute tiles once more, and compare."""
        if self._program is None or not chosen:
            return
        from tilewise.recompute import differences, opened, recompute

        changes = self._recorded.changes()
        with opened(self._program) as session:
            for number in chosen:
                try:
                    again = recompute(session, self._recorded.grid.tile(number), panel=self._recorded.panel(number))
                except Exception as error:  # noqa: BLE001 - whatever a tile raises is what was found of it
                    what = f"it cannot be recomputed: {type(error).__name__}: {error}"
                    self.found.add(replace(self._of_tile("differs", number, what), mend=self._replay(number)))
                    continue
                for found in differences(self._program, self._stored.outputs, again):
                    if changes and found.is_rounding:
                        self._notes.append(f"tile {number}, {found.array}: {found}, which may come from {changes[0]}")
                    else:
                        self.found.add_done(self._of_tile("differs", number, str(found), array=found.array), number)
        self._recomputed = tuple(chosen)
        if changes:
            self._notes.append("this is not the environment of the run, so that bits may differ: " + "; ".join(changes))

    def result(self) -> Audit:
        """What was found."""
        unchecked = {name: units.unchecked for name, units in self._stored.outputs.items() if units.unchecked}
        notes = [
            f"{name}: codec {codec} has no checksum, so that a changed byte shows only in recomputed tiles"
            for name, codec in unchecked.items()
        ]
        return Audit(
            output=self._recorded.output,
            tiles=len(self._recorded.grid),
            done=self._done,
            units=self._units,
            nbytes=self._nbytes,
            recomputed=self._recomputed,
            seed=self._seed,
            counts=dict(self.found.counts),
            findings=tuple(self.found.kept),
            notes=(*notes, *self._notes),
        )


def _is_in(number: int, numbers: Sequence[int]) -> bool:
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def bounded_map(function: Callable[[_In], _Out], items: Iterable[_In], workers: int) -> Iterator[_Out]:
    """Results in order, of a few items at a time.

    >>> list(bounded_map(abs, [-1, 2, -3], 2))
    [1, 2, 3]
    """
    waiting: deque[Future[_Out]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="tilewise-audit") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
