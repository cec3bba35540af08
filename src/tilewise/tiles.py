"""One tile, from its inputs to its outputs, and the block of tiles that one task does.

Read, compute and write of a tile happen in one task on one worker. Whatever a tile raises comes back in its record.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial

import numpy as np

from tilewise import hosting, machine
from tilewise.coordinates import Array
from tilewise.errors import TilewiseError
from tilewise.fields import Tile
from tilewise.ledger_rows import OTHER
from tilewise.program import Ticket
from tilewise.records import BlockRecord, Halt, Ranges, TileRecord, TileState
from tilewise.session import Session, compute_tile, open_session
from tilewise.tries import Tries
from tilewise.trouble import Trouble, trouble_of

#: How much smaller panels become each time that memory is short.
_SHRINK = 4
#: How often they do.
_SHRINKS = 3


def run_tile(session: Session, tile: Tile) -> TileRecord:
    """Read, compute and write one tile; an exception comes back inside the record.

    A tile for which memory is short is done again: alone in its process first, which gives the same bits, then with
    smaller panels, on which bits may depend.
    """
    tries = session.tries()
    for rung, (alone, panel) in enumerate(_rungs(session.program.panel)):
        tries.count += rung > 0
        with session.turns.alone() if alone else session.turns.together():
            if alone:
                session.drop_buffers(of_all=True)
            record = _run_once(session, tile, tries, panel)
            if tries.trouble is not Trouble.MEMORY:
                break
            session.drop_buffers(of_all=alone)
    return record


def _rungs(panel: int) -> list[tuple[bool, int]]:
    """What is tried one after the other where memory is short: whether alone, and pixels of a panel.

    >>> _rungs(256)
    [(False, 256), (True, 256), (True, 64), (True, 16), (True, 4)]
    """
    smaller = [panel // _SHRINK**n for n in range(1, _SHRINKS + 1)]
    return [(False, panel), (True, panel), *((True, n) for n in smaller if n)]


def _run_once(session: Session, tile: Tile, tries: Tries, panel: int) -> TileRecord:
    """Do a tile; what trouble there was stands in `tries`. No frame of what has failed is kept, nor its memory."""
    tries.trouble = None
    try:
        return _done(session, tile, tries, panel)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tile raises is its record, never the run's end
        tries.trouble = tries.trouble or trouble_of(error, "compute")
        return _not_done(session, tile, tries, error)


def _done(session: Session, tile: Tile, tries: Tries, panel: int) -> TileRecord:
    program = session.program
    begin = time.perf_counter()
    boxes = session.read(tile, tries)
    outputs = session.outputs(tile)
    read = time.perf_counter()
    with session.computing:
        begun = time.perf_counter()
        kernel, state, device = program.kernel, session.state, session.device
        compute_tile(kernel, program.signature, state, boxes, outputs, panel=panel, device=device)
        misfits = session.flag_misfits(outputs)
        computed = time.perf_counter()
    session.write(tile, outputs, tries)
    written = time.perf_counter()
    return TileRecord(
        tile.number,
        TileState.DONE,
        (read - begin, computed - begun, written - computed),
        _count(outputs.get("status")),
        misfits,
        attempts=tries.count,
        panel=0 if panel == program.panel else panel,
    )


#: Troubles that end the run, whatever the tile.
_HALTS: dict[Trouble, Halt] = {Trouble.FULL: "full", Trouble.LOST: "lost"}


def _not_done(session: Session, tile: Tile, tries: Tries, error: BaseException) -> TileRecord:
    halt: Halt = _HALTS.get(tries.trouble, "") if tries.trouble else ""
    text = f"{type(error).__name__}: {error}"
    if halt and isinstance(error, TilewiseError):  # what to do is said of the whole run
        text = f"{type(error).__name__}: {error.what}; {error.got}"
    return TileRecord(
        tile.number,
        TileState.PENDING if halt or session.is_over else TileState.FAILED,
        attempts=tries.count,
        error=text,
        details=traceback.format_exc(),
        halt=halt,
    )


def _count(status: Array | None) -> dict[int, int]:
    """Pixels by status code, counted in pieces so that no wider copy of the array exists."""
    if status is None:
        return {}
    flat = status.reshape(-1)
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, flat.size, 1 << 16):
        part = flat[start : start + (1 << 16)]
        if part.dtype != np.uint8:  # of a kernel with a status of its own
            part = np.where((part >= 0) & (part < 256), part, OTHER).astype(np.uint8)
        counts += np.bincount(part, minlength=256)
    return {int(code): int(counts[code]) for code in np.flatnonzero(counts)}


def run_block(ticket: Ticket, window: tuple[Ranges, ...], *, block_id: tuple[int, ...]) -> Array:
    """Do the tiles of one block; the result is one record, in an array since it is a block of a Dask array."""
    begin = time.perf_counter()
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket)
        numbers = (number for first, last in window[block_id[0]] for number in range(first, last))
        # The tiles of a run that has ended meanwhile are nobody's.
        over = partial(hosting.is_over, ticket.run) if ticket.hosted else bool
        wanted = (session.program.grid.tile(number) for number in numbers if not over())
        tiles = tuple(_records(session, wanted, ticket.read_ahead))
    result = np.empty(1, dtype=object)
    end = time.perf_counter()
    idle = session.idle_until(begin, end)
    result[0] = BlockRecord(tiles, machine.process_name(), machine.peak(), end - begin, idle)
    return result


def _records(session: Session, tiles: Iterable[Tile], read_ahead: int) -> Iterator[TileRecord]:
    """Records of tiles in their order, up to one that ends the run: what fails slowly would fail as slowly at each.

    With `read_ahead` so many more are in work, and recorded: while one is computed, others are read or written.
    """
    in_work: deque[Future[TileRecord]] = deque()
    for tile in tiles:
        in_work.append(_begun(session, tile, read_ahead))
        if len(in_work) <= read_ahead:
            continue
        record = in_work.popleft().result()
        yield record
        if record.halt or (record.error and not session.program.skip):
            break
    while in_work:
        yield in_work.popleft().result()


def _begun(session: Session, tile: Tile, read_ahead: int) -> Future[TileRecord]:
    if read_ahead:
        return session.pool(read_ahead).submit(run_tile, session, tile)
    done: Future[TileRecord] = Future()
    done.set_result(run_tile(session, tile))
    return done
