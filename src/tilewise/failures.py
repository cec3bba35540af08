"""Which tiles have failed and why: texts, which the ledger has no place for, in a file of the sidecar."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from tilewise import cf
from tilewise.errors import ResumeError
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.records import TileRecord, TileState

#: The file of a sidecar that says why tiles failed.
FAILURES = "failures.json"
#: Failures that are kept: where more tiles than that fail, they do so for the same few reasons.
MOST = 1000
#: Characters of a text that are kept: the end of a traceback says most.
LONGEST = 4000


@dataclass(frozen=True)
class Failure:
    """A tile that failed: its number, region and state, why, the traceback behind it, and how often it was tried."""

    number: int
    region: str
    state: str
    error: str
    details: str = ""
    attempts: int = 1

    @classmethod
    def of(cls, record: TileRecord, grid: TileGrid) -> Failure:
        """The failure that a record tells of."""
        return cls(
            record.number,
            str(grid.tile(record.number)),
            record.state.meaning,
            _end(record.error),
            _end(record.details),
            record.attempts,
        )


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else "... " + text[-LONGEST:]


class Failures:
    """The failures of a run, at most MOST of them; the ledger has the state of every tile. For several threads.

    >>> sidecar = Folder("memory://failures-example")
    >>> failures = Failures(sidecar, TileGrid(("y",), (100,), (10,)))
    >>> failures.add(TileRecord(3, TileState.FAILED, error="ValueError: no"))
    >>> failures.flush()
    >>> [(failure.region, failure.error) for failure in Failures.load(sidecar, failures.grid)]
    [('tile 3 (y=30:40)', 'ValueError: no')]
    >>> sidecar.remove()
    """

    def __init__(self, sidecar: Folder, grid: TileGrid, known: Iterable[Failure] = ()) -> None:
        """Those of a new run, or of one that goes on with what was known."""
        self._sidecar = sidecar
        self.grid = grid
        self._known = {failure.number: failure for failure in known}
        self._dirty = False
        self._lock = threading.Lock()

    @classmethod
    def load(cls, sidecar: Folder, grid: TileGrid) -> Failures:
        """What a sidecar tells; nothing where it has no such file.

        Raises
        ------
        ResumeError
            The file cannot be understood.
        """
        try:
            found: list[Any] = json.loads(sidecar.read_text(FAILURES) or "[]")
            known = [Failure(**{field.name: each[field.name] for field in fields(Failure)}) for each in found]
        except (ValueError, TypeError, KeyError) as error:
            raise ResumeError(
                "the record of why tiles failed is damaged",
                got=f"{type(error).__name__}: {error} in {sidecar}/{FAILURES}",
                do=f"remove {FAILURES}: the ledger has the state of every tile",
            ) from error
        return cls(sidecar, grid, known)

    def __iter__(self) -> Iterator[Failure]:
        """Those that are kept, in order of the tiles."""
        with self._lock:
            return iter(sorted(self._known.values(), key=lambda failure: failure.number))

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._known)

    def add(self, record: TileRecord) -> None:
        """Take note of a tile: failures are kept, what is done is mended, what was given up stays what it was."""
        with self._lock:
            if record.state is TileState.DONE:
                self._dirty |= self._known.pop(record.number, None) is not None
            elif record.state is not TileState.PENDING and (record.number in self._known or len(self._known) < MOST):
                self._known[record.number] = Failure.of(record, self.grid)
                self._dirty = True

    def flush(self) -> None:
        """Write the file where anything has changed."""
        with self._lock:
            if not self._dirty:
                return
            ordered = sorted(self._known.values(), key=lambda failure: failure.number)
            self._sidecar.write_text(FAILURES, cf.to_json([asdict(failure) for failure in ordered]) + "\n")
            self._dirty = False
