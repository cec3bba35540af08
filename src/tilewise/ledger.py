"""The ledger of a run: what became of every tile, as a Zarr group in the sidecar that xarray opens as a map.

A tile whose chunk was never written is pending. The state of a row is written last, so that a flush that is killed can
only say less than was done, never more. In memory are a few rows, whatever the number of tiles.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise import access
from tilewise.coordinates import Array
from tilewise.errors import ParameterError, ResumeError
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.ledger_rows import CODES, PHASES, Row, Rows, columns
from tilewise.ledger_store import create_group, damage_named, damaged, open_group
from tilewise.records import Ranges, TileRecord, TileState

log = logging.getLogger("tilewise")

#: The folder of a sidecar that holds the ledger.
LEDGER = "ledger.zarr"
#: Rows that are in memory at a time.
KEPT_ROWS = 2


@dataclass(frozen=True)
class Totals:
    """Sums over all tiles of a ledger.

    Attributes
    ----------
    states
        Tiles by state.
    seconds
        Of reading, computing and writing, over all tiles.
    statuses
        Pixels by status code, of tiles that are done.
    misfits
        Values that did not fit a packed output.
    retried
        Tiles that were tried more than once.
    panel
        Pixels of the smallest panel that memory forced on a tile; 0 where none had to be smaller than the plan's.
    """

    states: Mapping[TileState, int]
    seconds: tuple[float, float, float]
    statuses: Mapping[int, int]
    misfits: int
    retried: int
    panel: int


def _always() -> None:
    """Nobody has to be asked."""


class Ledger:
    """What became of every tile. It may be used from several threads; one process writes it at a time.

    `add` keeps what it is given until `flush`. A row is also written when too many others are in memory.

    >>> sidecar = Folder("memory://ledger-example")
    >>> grid = TileGrid(("y", "x"), (100, 100), (64, 50))
    >>> ledger = Ledger.create(sidecar, grid, {"run": "a"})
    >>> ledger.add(TileRecord(1))
    >>> ledger.flush()
    >>> again = Ledger.open(sidecar)
    >>> list(again.blocks(2)), again.attrs, again.grid == grid
    ([((0, 1), (2, 3)), ((3, 4),)], {'run': 'a'}, True)
    >>> sidecar.remove()
    """

    def __init__(self, folder: Folder, *, write: bool, guard: Callable[[], object]) -> None:
        self._arrays, self.grid, self.attrs = open_group(folder, write=write)
        self._place = folder.place
        self._guard = guard
        self._table = columns(self.grid)
        self._rows = Rows(self.grid.shape)
        self._kept: OrderedDict[int, Row] = OrderedDict()
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls, sidecar: Folder, grid: TileGrid, attrs: Mapping[str, Any], *, guard: Callable[[], object] = _always
    ) -> Ledger:
        """A ledger in which every tile is pending; one that was there is replaced.

        Parameters
        ----------
        attrs
            What to keep with it; it comes back as JSON holds it.
        guard
            Called before anything more is written; what it raises keeps it from being written.
        """
        folder = sidecar.child(LEDGER)
        create_group(folder, grid, attrs)
        return cls(folder, write=True, guard=guard)

    @classmethod
    def open(cls, sidecar: Folder, *, write: bool = False, guard: Callable[[], object] = _always) -> Ledger:
        """The ledger of a sidecar.

        Raises
        ------
        ResumeError
            There is none, it is damaged, or it is of a version that is not known.
        """
        if not cls.exists(sidecar):
            raise ResumeError(
                "there is no record of the tiles of a run",
                got=f"nothing at {sidecar.child(LEDGER)}",
                expected="the ledger of a run that has begun",
                do="check the place of the sidecar, or begin again with --overwrite",
            )
        return cls(sidecar.child(LEDGER), write=write, guard=guard)

    @staticmethod
    def exists(sidecar: Folder) -> bool:
        """Whether the sidecar has a ledger."""
        return "zarr.json" in sidecar.child(LEDGER).names()

    def add(self, record: TileRecord) -> None:
        """Take note of a tile. One that was given up stays what it was: nothing has become of it."""
        if record.state is TileState.PENDING:
            return
        with self._lock:
            row, at = self._rows.find(record.number)
            self._row(row).set(at, record)

    def flush(self) -> None:
        """Write what has changed. Where that fails nothing is forgotten, and the next flush writes it."""
        with self._lock:
            for number, row in self._kept.items():
                self._write(number, row)

    def reset(self, numbers: Iterable[int]) -> None:
        """Make tiles pending, and flush.

        Raises
        ------
        ParameterError
            There is no tile of such a number; nothing has changed.
        """
        numbers = tuple(numbers)
        self.check_numbers(numbers)
        with self._lock:
            for number in numbers:
                row, at = self._rows.find(number)
                self._row(row).clear(at)
            self.flush()

    def check_numbers(self, numbers: Iterable[int]) -> None:
        """Refuse the number of a tile that there is not.

        Raises
        ------
        ParameterError
            It is one.
        """
        for number in numbers:
            if not 0 <= number < len(self.grid):
                raise ParameterError(
                    "there is no tile of that number", got=number, expected=f"0 to {len(self.grid) - 1}", do="mend redo"
                )

    def blocks(self, size: int) -> Iterator[Ranges]:
        """Tiles that are not done, in order, `size` at a time; each row is looked at when its turn comes."""
        block: list[tuple[int, int]] = []
        room = size
        for first, last in self._undone():
            while first < last:
                stop = min(last, first + room)
                room -= stop - first
                _append(block, first, stop)
                first = stop
                if not room:
                    yield tuple(block)
                    block, room = [], size
        if block:
            yield tuple(block)

    def numbers(self, *states: TileState) -> Iterator[int]:
        """Numbers of the tiles in one of these states, in order."""
        for row in range(len(self._rows)):
            found = np.isin(self._states(row), states)
            yield from (np.flatnonzero(found) + self._rows.range(row)[0]).tolist()

    def record(self, number: int) -> TileRecord:
        """What became of one tile: its state, attempts and panel."""
        row, at = self._rows.find(number)
        found = {name: int(self._values(row, name)[at]) for name in ("state", "attempts", "panel")}
        return TileRecord(number, TileState(found["state"]), attempts=found["attempts"], panel=found["panel"])

    def totals(self) -> Totals:
        """Sums over all tiles."""
        states = np.zeros(len(TileState), dtype=np.int64)
        seconds = np.zeros(len(PHASES))
        pixels = np.zeros(len(CODES), dtype=np.int64)
        misfits = retried = panel = 0
        for row in range(len(self._rows)):
            state = self._states(row)
            states += np.bincount(state, minlength=len(TileState))
            # What belongs to a tile may be there before its state is: a flush that was killed.
            known, done = state != TileState.PENDING, state == TileState.DONE
            if not known.any():
                continue
            seconds += self._values(row, "seconds")[:, known].sum(axis=1, dtype=np.float64)
            pixels += self._values(row, "pixels")[:, done].sum(axis=1, dtype=np.int64)
            misfits += int(self._values(row, "misfits")[done].sum())
            retried += int((self._values(row, "attempts")[known] > 1).sum())
            panels = self._values(row, "panel")[known]
            panel = min((p for p in (panel, *np.unique(panels).tolist()) if p), default=0)
        return Totals(
            states={state: int(states[state]) for state in TileState},
            seconds=(float(seconds[0]), float(seconds[1]), float(seconds[2])),
            statuses={code: int(n) for code, n in zip(CODES, pixels, strict=True) if n},
            misfits=misfits,
            retried=retried,
            panel=panel,
        )

    def _undone(self) -> Iterator[tuple[int, int]]:
        """Ranges of tiles that are not done, in order."""
        for row in range(len(self._rows)):
            undone = (self._states(row) != TileState.DONE).astype(np.int8)
            edges = np.flatnonzero(np.diff(undone, prepend=0, append=0)) + self._rows.range(row)[0]
            yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def _states(self, row: int) -> Array:
        """States of the tiles of a row as they are now, in an array of one's own."""
        states = self._values(row, "state")
        if states.size and int(states.max()) > max(TileState):
            raise damaged(self._place, f"a state {states.max()}")
        return states

    def _values(self, row: int, name: str) -> Array:
        with self._lock:
            kept = self._kept.get(row)
            if kept is None:
                return self._read(row, name)
            found = kept.get(name)
            return self._zeros(row, name) if found is None else found.copy()

    def _zeros(self, row: int, name: str) -> Array:
        first, last = self._rows.range(row)
        array = self._arrays[name]
        return np.zeros((*array.shape[: array.ndim - len(self.grid.shape)], last - first), dtype=array.dtype)

    def _row(self, number: int) -> Row:
        """A row, in memory; the one that was not used for longest makes room for it."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        self._make_room()
        first, last = self._rows.range(number)
        found = {column.name: self._read(number, column.name) for column in self._table}
        row = Row(last - first, self._table, {name: values for name, values in found.items() if values.any()})
        self._kept[number] = row
        return row

    def _make_room(self) -> None:
        """Write and forget rows; one that cannot be written stays, and the next flush says why."""
        while len(self._kept) >= KEPT_ROWS:
            oldest = next(iter(self._kept))
            try:
                self._write(oldest, self._kept[oldest])
            except OSError as error:
                log.debug("a row of the ledger stays in memory: %s", error)
                return
            del self._kept[oldest]

    def _read(self, row: int, name: str) -> Array:
        array = self._arrays[name]
        with access.reaching(self._place), damage_named(f"{self._place}, array {name}"):
            found = np.asarray(array[self._where(row)])
        return found.reshape(*found.shape[: array.ndim - len(self.grid.shape)], -1)

    def _where(self, row: int) -> tuple[Any, ...]:
        return (..., *self._rows.box(row))

    def _write(self, number: int, row: Row) -> None:
        """Write a row where it has changed: each chunk whole, the state last."""
        if not row.dirty:
            return
        self._guard()
        with access.reaching(self._place):
            for column in self._table:
                values = row.get(column.name)
                if values is not None:
                    shape = (*values.shape[:-1], *(s.stop - s.start for s in self._rows.box(number)))
                    self._arrays[column.name][self._where(number)] = values.reshape(shape)
        row.dirty = False


def _append(block: list[tuple[int, int]], first: int, last: int) -> None:
    """Add a range, joined to the one before where it follows that."""
    if block and block[-1][1] == first:
        first = block.pop()[0]
    block.append((first, last))
