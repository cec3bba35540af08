"""One tile, and the windows of blocks that a run is made of.

Read, compute and write of a tile happen in one task on one worker. A task carries the program as bytes and the
number of its block; no array crosses the network or sits in a graph.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import dask.array as da
import numpy as np

from tilewise import hosting, machine
from tilewise.coordinates import Array
from tilewise.errors import TileError
from tilewise.fields import Tile
from tilewise.program import BlockRecord, Program, Ticket, TileRecord
from tilewise.session import Session, compute_tile, open_session

if TYPE_CHECKING:
    from tilewise.workers import OnResult, Workers

#: Blocks in one window: enough that the wait for its last block is a small part of it, and a bounded graph.
WINDOW = 256


def run_tile(session: Session, tile: Tile) -> TileRecord:
    """Read, compute and write one tile; an exception comes back inside the record."""
    program = session.program
    try:
        begin = time.perf_counter()
        boxes = session.read(tile)
        outputs = session.outputs(tile)
        read = time.perf_counter()
        compute_tile(
            program.kernel,
            program.signature,
            session.state,
            boxes,
            outputs,
            panel=program.panel,
            device=session.device,
        )
        misfits = session.flag_misfits(outputs)
        computed = time.perf_counter()
        session.write(tile, outputs)
        written = time.perf_counter()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tile raises is its record, never the run's end
        return TileRecord(tile.number, error=f"{type(error).__name__}: {error}", details=traceback.format_exc())
    seconds = (read - begin, computed - read, written - computed)
    return TileRecord(tile.number, seconds, _count(outputs.get("status")), misfits)


def _count(status: Array | None) -> dict[int, int]:
    """Pixels by status code, counted in pieces so that no wider copy of the array exists."""
    if status is None:
        return {}
    flat = status.reshape(-1)
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, flat.size, 1 << 16):
        counts += np.bincount(flat[start : start + (1 << 16)], minlength=256)
    return {int(code): int(counts[code]) for code in np.flatnonzero(counts)}


def run_block(ticket: Ticket, first: int, *, block_id: tuple[int, ...]) -> Array:
    """Do the tiles of one block; the result is one record, in an array since it is a block of a Dask array."""
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket)
        program = session.program
        start = (first + block_id[0]) * program.block
        numbers = range(start, min(start + program.block, len(program.grid)))
        # The tiles of a run that has ended meanwhile are nobody's.
        over = partial(hosting.is_over, ticket.run) if ticket.hosted else bool
        found = (run_tile(session, program.grid.tile(number)) for number in numbers if not over())
        tiles = tuple(_to_first_failure(found))
    result = np.empty(1, dtype=object)
    result[0] = BlockRecord(tiles, machine.process_name(), machine.peak())
    return result


def _to_first_failure(records: Iterable[TileRecord]) -> Iterator[TileRecord]:
    """Records up to the first failure: it ends the run, and what fails slowly would fail as slowly at every tile."""
    for record in records:
        yield record
        if record.error:
            return


def windows(program: Program, attempt: int = 0) -> Iterator[da.Array]:
    """Array-less `map_blocks` over the blocks of a run, a bounded number at a time, each under a name of its own."""
    ticket = program.ticket()
    blocks = -(-len(program.grid) // program.block)
    for number, first in enumerate(range(0, blocks, WINDOW)):
        count = min(WINDOW, blocks - first)
        yield da.map_blocks(
            partial(run_block, ticket, first),
            chunks=((1,) * count,),
            dtype=object,
            meta=np.empty((0,), dtype=object),
            name=f"tilewise-{program.run}-{number}-{attempt}",
        )


def run_program(program: Program, workers: Workers, on_block: OnResult) -> None:
    """Do every tile of a program.

    Raises
    ------
    TileError
        A tile failed; no further block is started.
    """

    def received(record: BlockRecord) -> None:
        on_block(record)
        for tile in record.tiles:
            if tile.error:
                _raise(program, tile)

    workers.stream(windows(program), received)


def _raise(program: Program, record: TileRecord) -> None:
    mended = "To mend it: " in record.error  # a message that says itself what to do
    raise TileError(
        f"{program.grid.tile(record.number)} failed: {record.error.removesuffix('.')}",
        do="" if mended else "mend the cause and run again with --overwrite",
    ) from _WorkerTraceback(record.details)


class _WorkerTraceback(Exception):  # noqa: N818 - never raised by itself: it carries a worker's traceback as its text
    """Where in the worker a tile failed."""

    def __str__(self) -> str:
        """The traceback as the worker saw it."""
        return "\n" + str(self.args[0])
