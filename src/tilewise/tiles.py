"""One tile, from its inputs to its outputs, and the block of tiles that one task does.

Read, compute and write of a tile happen in one task on one worker. Whatever a tile raises comes back in its record.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np

from tilewise import hosting, machine
from tilewise.coordinates import Array
from tilewise.fields import Tile
from tilewise.program import Ticket
from tilewise.records import BlockRecord, Ranges, TileRecord, TileState
from tilewise.session import Session, compute_tile, open_session


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
        return TileRecord(
            tile.number,
            TileState.FAILED,
            error=f"{type(error).__name__}: {error}",
            details=traceback.format_exc(),
        )
    seconds = (read - begin, computed - read, written - computed)
    return TileRecord(tile.number, TileState.DONE, seconds, _count(outputs.get("status")), misfits)


def _count(status: Array | None) -> dict[int, int]:
    """Pixels by status code, counted in pieces so that no wider copy of the array exists."""
    if status is None:
        return {}
    flat = status.reshape(-1)
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, flat.size, 1 << 16):
        counts += np.bincount(flat[start : start + (1 << 16)], minlength=256)
    return {int(code): int(counts[code]) for code in np.flatnonzero(counts)}


def run_block(ticket: Ticket, window: tuple[Ranges, ...], *, block_id: tuple[int, ...]) -> Array:
    """Do the tiles of one block; the result is one record, in an array since it is a block of a Dask array."""
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket)
        numbers = (number for first, last in window[block_id[0]] for number in range(first, last))
        # The tiles of a run that has ended meanwhile are nobody's.
        over = partial(hosting.is_over, ticket.run) if ticket.hosted else bool
        found = (run_tile(session, session.program.grid.tile(number)) for number in numbers if not over())
        tiles = tuple(found if session.program.skip else _to_first_failure(found))
    result = np.empty(1, dtype=object)
    result[0] = BlockRecord(tiles, machine.process_name(), machine.peak())
    return result


def _to_first_failure(records: Iterable[TileRecord]) -> Iterator[TileRecord]:
    """Records up to the first failure: it ends the run, and what fails slowly would fail as slowly at every tile."""
    for record in records:
        yield record
        if record.error:
            return
