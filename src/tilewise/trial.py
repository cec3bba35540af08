"""A few tiles done beforehand, on one worker and into a scratch store: how long they take, and by hand."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from zarr.core.buffer.cpu import NDBuffer

from tilewise import access, hosting
from tilewise.errors import TileError, TilewiseError
from tilewise.fields import Tile
from tilewise.limits import PROBE_SECONDS, Measured
from tilewise.memory import CONCURRENCY
from tilewise.program import Ticket
from tilewise.records import TileRecord, TileState
from tilewise.session import Session, open_session
from tilewise.store import PIECE_BYTES, READ_CHUNKS, aligned_parts, concrete, open_target, packed, view, write_units
from tilewise.tiles import run_tile

if TYPE_CHECKING:
    import zarr

    from tilewise.foreign import ForeignArray

Found = TypeVar("Found")


def probe(ticket: Ticket, aside: Ticket, numbers: tuple[int, int, int, int]) -> Measured:
    """Do two of these tiles of `aside`, a program of the same run with other outputs, and the other two by hand.

    Raises
    ------
    TilewiseError
        All tiles failed that were to be done one way or the other.
    """
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket).aside(pickle.loads(aside.payload))
        try:
            return _measure(session, numbers)
        finally:
            session.drop_buffers(of_all=False)


def _measure(session: Session, numbers: tuple[int, int, int, int]) -> Measured:
    tiles = [session.program.grid.tile(number) for number in numbers]
    end, begin = time.monotonic() + PROBE_SECONDS, time.process_time()
    records = list(_in_time(partial(_done, session), tiles[:2], end))
    busy = time.process_time() - begin
    write = _best(_in_time(partial(_write_by_hand, session), tiles[2:], end))
    session.drop_buffers(of_all=False)  # what is read by hand takes the place of these
    read = _best(_in_time(partial(_read_by_hand, session), tiles[2:], end))
    return Measured(
        tiles=tuple(record.seconds for record in records),
        pixels=sum(math.prod(session.program.grid.tile(record.number).sizes.values()) for record in records),
        busy=busy,
        by_hand=(read[0], write[0]),
        nbytes=(read[1], write[1]),
    )


def _in_time(do: Callable[[Tile], Found], tiles: Iterable[Tile], end: float) -> Iterator[Found]:
    """What comes of the first tile that succeeds, and of those after it that will be through before the end."""
    failed: TilewiseError | None = None
    succeeded = False
    for tile in tiles:
        begin = time.monotonic()
        try:
            found = do(tile)
        except TilewiseError as error:
            failed = error
            continue
        succeeded = True
        yield found
        now = time.monotonic()
        if now + (now - begin) > end:
            return
    if failed and not succeeded:
        raise failed


def _done(session: Session, tile: Tile) -> TileRecord:
    record = run_tile(session, tile)
    if record.state is not TileState.DONE:
        # Its number is that of a grid of the probe's own.
        raise TileError(f"a tile of the probe ({tile.region}) failed: {record.error}")
    return record


def _best(found: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """The quickest of several seconds and bytes: a limit is what can be reached, whatever else a machine is doing."""
    return min(found, key=lambda one: one[0] / max(1, one[1]))


def _read_by_hand(session: Session, tile: Tile) -> tuple[float, int]:
    """Seconds and decoded bytes of reading the boxes of a tile as they are stored."""
    seconds, nbytes = 0.0, 0
    for name in session.program.signature.streamed:
        spec, source = session.program.signature.fields[name], session.program.sources[name]
        box = concrete(tile.slices(spec.dims), spec.shape)
        seconds += session.reading(name, box, session.tries(), partial(_box_seconds, session, name, box))
        nbytes += decoded_cells(box, source.chunks, spec.shape) * source.stored_itemsize
    return seconds, nbytes


def _box_seconds(session: Session, name: str, box: Sequence[slice]) -> float:
    source = session.program.sources[name]
    arrays = session.inputs[name][box[0]] if source.stacked else session.inputs[name]
    with access.reaching(source.arrays[0].store):
        return sum(_read_seconds(array, box[1:] if source.stacked else box) for array in arrays)


def _read_seconds(array: zarr.Array[Any] | ForeignArray, box: Sequence[slice]) -> float:
    """Seconds of reading a box, some chunks at a time into one small buffer: it is in memory before, and counts not."""
    unit = array.shards or array.chunks
    most = min(READ_CHUNKS, max(CONCURRENCY, PIECE_BYTES // (math.prod(unit) * array.dtype.itemsize)))
    parts = [(part, [p.stop - p.start for p in part]) for part in aligned_parts(box, unit, most)]
    buffer = np.full(max(math.prod(shape) for _, shape in parts), 0, dtype=array.dtype)
    begin = time.perf_counter()
    for part, shape in parts:
        out = buffer[: math.prod(shape)].reshape(shape)
        array.get_basic_selection(part, out=NDBuffer.from_numpy_array(out))
    return time.perf_counter() - begin


def decoded_cells(box: Sequence[slice], chunks: Sequence[int], shape: Sequence[int]) -> int:
    """Cells of all chunks that a box touches, as far as there are any.

    >>> decoded_cells((slice(5, 12), slice(0, 3)), (10, 3), (18, 3))
    54
    """
    return math.prod(
        min(-(-s.stop // chunk) * chunk, size) - s.start // chunk * chunk
        for s, chunk, size in zip(box, chunks, shape, strict=True)
    )


def _write_by_hand(session: Session, tile: Tile) -> tuple[float, int]:
    """Seconds and bytes of writing the outputs of a tile; what is in their buffers is that of the tile before."""
    seconds, nbytes = 0.0, 0
    values = session.outputs(tile)
    for target in session.program.targets:
        box = concrete(tile.slices(target.spec.dims), target.spec.shape)
        with access.reaching(target.array.store):
            array = open_target(target.array)
            for part in write_units(box, target.unit):
                local = [slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True)]
                unit = view(values[target.spec.name], local)
                stored = packed(unit, target.packing) if target.packing else unit
                begin = time.perf_counter()
                array.set_basic_selection(part, stored)
                seconds += time.perf_counter() - begin
                nbytes += stored.nbytes
    return seconds, nbytes
