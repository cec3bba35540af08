"""A few tiles done beforehand, on one worker and into a scratch store: how long they take, and by hand."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext

from tilewise import hosting, places
from tilewise.coordinates import Array
from tilewise.errors import TileError
from tilewise.fields import Tile
from tilewise.limits import PROBE_SECONDS, Measured
from tilewise.program import Ticket
from tilewise.records import TileRecord, TileState
from tilewise.session import Session, open_session
from tilewise.store import concrete, open_target, packed, view, write_units
from tilewise.tiles import run_tile


def probe(ticket: Ticket, aside: Ticket, numbers: tuple[int, ...]) -> Measured:
    """Do all but the last of these tiles of `aside`, a program of the same run with other outputs, and that by hand.

    Raises
    ------
    TileError
        A tile failed.
    """
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket).aside(pickle.loads(aside.payload))
        try:
            return _measure(session, numbers)
        finally:
            session.drop_buffers(of_all=False)


def _measure(session: Session, numbers: tuple[int, ...]) -> Measured:
    grid = session.program.grid
    *ours, last = (grid.tile(number) for number in numbers)
    begin = time.process_time()
    records = list(_done(session, ours))
    busy = time.process_time() - begin
    read, write = _read_by_hand(session, last), _write_by_hand(session, last, session.outputs(last))
    return Measured(
        tiles=tuple(record.seconds for record in records),
        pixels=sum(math.prod(grid.tile(record.number).sizes.values()) for record in records),
        busy=busy,
        by_hand=(read[0], write[0]),
        nbytes=(read[1], write[1]),
    )


def _done(session: Session, tiles: Iterable[Tile]) -> Iterator[TileRecord]:
    """Tiles, until they have taken long enough."""
    begin = time.monotonic()
    for tile in tiles:
        record = run_tile(session, tile)
        if record.state is not TileState.DONE:
            raise TileError(f"{tile} failed: {record.error}")
        yield record
        if time.monotonic() - begin > PROBE_SECONDS:
            return


def _read_by_hand(session: Session, tile: Tile) -> tuple[float, int]:
    """Seconds and bytes of reading the boxes of a tile as they are stored."""
    begin, nbytes = time.perf_counter(), 0
    for name in session.program.signature.streamed:
        spec, source = session.program.signature.fields[name], session.program.sources[name]
        box = concrete(tile.slices(spec.dims), spec.shape)
        arrays = session.inputs[name][box[0]] if source.stacked else session.inputs[name]
        with places.reaching(source.arrays[0].store):
            nbytes += sum(array[box[1:] if source.stacked else box].nbytes for array in arrays)
    return time.perf_counter() - begin, nbytes


def _write_by_hand(session: Session, tile: Tile, values: Mapping[str, Array]) -> tuple[float, int]:
    """Seconds and bytes of writing the outputs of a tile; what is in their buffers is that of the tile before."""
    seconds, nbytes = 0.0, 0
    for target in session.program.targets:
        name = target.spec.name
        box = concrete(tile.slices(target.spec.dims), target.spec.shape)
        stored = packed(values[name], target.packing) if target.packing else values[name]
        with places.reaching(target.array.store):
            array = open_target(target.array)
            begin = time.perf_counter()
            for part in write_units(box, target.unit):
                local = [slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True)]
                array.set_basic_selection(part, view(stored, local))
        seconds += time.perf_counter() - begin
        nbytes += stored.nbytes
    return seconds, nbytes
