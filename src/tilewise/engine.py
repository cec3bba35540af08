"""The windows of blocks that a run is made of, and what becomes of it when tiles fail or workers die.

A task carries the program as bytes and the numbers of its tiles; no array crosses the network or sits in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING

from tilewise.errors import LockedError, StoreFullError, TileError, TilewiseError
from tilewise.program import Program
from tilewise.records import BlockRecord, Ranges, TileRecord, TileState
from tilewise.task import run_block
from tilewise.workers import Key, Window, WorkerDied

if TYPE_CHECKING:
    from tilewise.workers import Workers

OnBlock = Callable[[BlockRecord], None]
#: Blocks in one window: a bounded graph.
WINDOW = 256
#: Tiles in a row whose worker dies although they are alone, beyond which it is no tile's fault.
MOST_DEATHS = 5
_FAILED = (TileState.FAILED, TileState.QUARANTINED)


def run_program(
    program: Program, workers: Workers, blocks: Iterable[Ranges], on_block: OnBlock, go_on: Callable[[], bool]
) -> None:
    """Do tiles of a program, block by block.

    Parameters
    ----------
    blocks
        Numbers of the tiles to do, which may be read while the run is at work.
    on_block
        Called with what became of each block, in the order in which they finish.
    go_on
        Asked at least every second; once it says no, nothing more is begun, and the call returns when what is in
        work has ended.

    Raises
    ------
    TileError
        A tile failed, and the program does not skip such.
    StoreFullError
        No space is left for the output.
    LockedError
        Another run has taken over the output.
    ClusterError
        The workers have been lost, or die whatever they do.
    """
    _Run(program, workers, on_block, go_on).do(iter(blocks))


class _Run:
    """The blocks that have been handed out and not come back, and the first failure that ends the run."""

    def __init__(self, program: Program, workers: Workers, on_block: OnBlock, go_on: Callable[[], bool]) -> None:
        self._program = program
        self._workers = workers
        self._on_block = on_block
        self._go_on = go_on
        self._ticket = program.ticket()
        self._names = count()
        self._handed: dict[Key, Ranges] = {}
        self._failure: TileRecord | None = None
        self._deaths = 0

    def do(self, blocks: Iterator[Ranges]) -> None:
        """Do blocks; those that a worker has died with are taken apart."""
        suspects = self._stream(blocks)
        while suspects and self._may_go_on():
            blocks = chain(self._handed.values(), blocks)
            self._handed = {}
            self._try_singly(suspects)
            suspects = self._stream(blocks)
        if self._failure is not None:
            _raise(self._program, self._failure)

    def _stream(self, blocks: Iterator[Ranges]) -> list[Ranges]:
        """Do blocks; those that were in work on a worker that died come back."""
        try:
            self._workers.stream(self._windows(blocks), self._received, self._may_go_on)
        except WorkerDied as died:
            self._died = died
            return [self._handed.pop(key) for key in died.keys if key in self._handed]
        return []

    def _windows(self, blocks: Iterator[Ranges]) -> Iterator[Window]:
        """Windows over blocks, a bounded number at a time, each under a name of its own."""
        while window := tuple(islice(blocks, WINDOW)):
            name = f"tilewise-{self._program.run}-{next(self._names)}"
            self._handed.update({(name, i): block for i, block in enumerate(window)})
            yield Window(name, partial(run_block, self._ticket, window), len(window))

    def _may_go_on(self) -> bool:
        return self._failure is None and self._go_on()

    def _received(self, key: Key, record: BlockRecord) -> None:
        self._handed.pop(key, None)
        self._on_block(record)
        for tile in record.tiles:
            if tile.state is TileState.DONE:
                self._deaths = 0
            if tile.halt or (tile.state in _FAILED and not self._program.skip):
                self._failure = self._failure or tile

    def _try_singly(self, suspects: Iterable[Ranges]) -> None:
        """Do each tile of some blocks alone: one with which a worker dies once more is guilty, and no other."""
        for number in (n for block in suspects for a, b in block for n in range(a, b)):
            if self._may_go_on() and self._stream(iter([((number, number + 1),)])):
                self._quarantine(number)

    def _quarantine(self, number: int) -> None:
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise self._died.reason
        error = f"{self._died.reason.what}; got: {self._died.reason.got}"
        record = TileRecord(number, TileState.QUARANTINED, attempts=2, error=f"ClusterError: {error}")
        self._received(("", 0), BlockRecord((record,), "", 0))


def _raise(program: Program, record: TileRecord) -> None:
    """The failure of a tile as an error, which says once what to do."""
    cls, do = _FAILURES[record.halt]
    mended = "To mend it: " in record.error  # a message that says itself what to do
    raise cls(
        f"{program.grid.tile(record.number)} failed: {record.error.removesuffix('.')}", do="" if mended else do
    ) from _WorkerTraceback(record.details)


_FAILURES: dict[str, tuple[type[TilewiseError], str]] = {
    "": (TileError, "mend the cause and run again with --resume"),
    "full": (StoreFullError, "make room and run again with --resume"),
    "lost": (LockedError, "see what the other run does with `tilewise info`"),
}


class _WorkerTraceback(Exception):  # noqa: N818 - never raised by itself: it carries a worker's traceback as its text
    """Where in the worker a tile failed."""

    def __str__(self) -> str:
        """The traceback as the worker saw it."""
        return "\n" + str(self.args[0])
