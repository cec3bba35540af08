"""From specs, chunks and a budget to a grid of tiles and a promised peak: integer arithmetic on metadata.

Nothing here reads data, and nothing grows with the number of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewise.cluster import Ceiling
from tilewise.errors import BudgetError, DimensionError
from tilewise.fields import TileGrid
from tilewise.kernels.base import Signature
from tilewise.memory import Memory, Workload, megabytes
from tilewise.plans import Kept, Plan, memory_text, refuse_budget, tile_text

#: Above this working set a larger tile is no faster: a tile costs a thousandth of what its bytes do. Without a codec it
#: is slower by a quarter, since what is read has left the caches by the time that it is computed on.
TARGET_BYTES = 64 << 20
#: Tiles a slot should have, so that the last one to finish leaves the others waiting for little.
TILES_PER_SLOT = 8
#: A block is at most about so many seconds of work; before a probe, at a rate that a slow disk still reaches.
BLOCK_SECONDS = 2.0
BLOCK_RATE = 200e6
#: Tiles of a block, at most: its record comes back in one piece.
MOST_TILES = 4096


def make_plan(
    work: Workload,
    *,
    baseline: int,
    memory_limit: int,
    processes: int,
    slots: int,
    read_ahead: int = 0,
    settled: bool = True,
    tile: Mapping[str, int] | None = None,
    kept: Kept | None = None,
    ceiling: Ceiling | None = None,
) -> Plan:
    """Negotiate the tile between write units, input chunks and budget.

    Parameters
    ----------
    baseline
        Bytes of a worker with everything imported and one warm-up tile done.
    memory_limit
        Budget of one worker process, in bytes.
    processes, slots
        Worker processes, and tiles in work at a time within each.
    read_ahead
        Tiles beyond each of these that are read or written meanwhile.
    settled
        Whether the allocator of a worker process has been given a number of arenas.
    tile
        Cells by tile dimension; dimensions left out are negotiated.
    kept
        Geometry of a run that is resumed: it is not negotiated.
    ceiling
        Of workers that run already: what the least of them can have.

    Raises
    ------
    BudgetError
        Not even the smallest tile fits, or the plan does not fit the workers.
    DimensionError
        A tile that is asked for is not whole write units, or an input is empty.
    """
    refuse_empty(work.signature)
    panel = kept.panel if kept else work.kernel.panel(work.signature)

    def memory(shape: Sequence[int]) -> Memory:
        return work.memory(shape, baseline=baseline, slots=slots * (1 + read_ahead), panel=panel, settled=settled)

    fixed = _fixed_tile(work, (kept.tile if kept else tile) or {})
    shape = _negotiate(work, fixed, memory, memory_limit, processes * slots)
    grid = TileGrid(work.signature.tile_dims, work.size, shape)
    needed = memory(shape)
    if ceiling is not None and needed.peak > ceiling.pause:
        _refuse_ceiling(grid, needed, ceiling)
    if needed.peak > memory_limit:
        refuse_budget(grid, needed, memory_limit, read_ahead)
    tiles = math.prod(grid.shape)
    read, wanted = _read_bytes(work, grid)
    written = work.write_bytes
    return Plan(
        grid=grid,
        unit=work.unit,
        block=block_of(tiles, (read + written) / tiles / BLOCK_RATE, processes * slots, read_ahead),
        panel=panel,
        memory=needed,
        memory_limit=memory_limit,
        processes=processes,
        slots=slots,
        read_bytes=read,
        needed_bytes=wanted,
        write_bytes=written,
        read_ahead=read_ahead,
    )


def refuse_empty(signature: Signature) -> None:
    """Refuse inputs without cells: there is nothing to stream."""
    for name, spec in signature.fields.items():
        for dim, size in spec.sizes.items():
            if size == 0:
                raise DimensionError(
                    f"dimension {dim!r} of input {name!r} is empty",
                    got=f"shape {spec.shape}",
                    expected="at least one cell along every dimension",
                    do="check the store, or the selection that made it",
                )


def _fixed_tile(work: Workload, tile: Mapping[str, int]) -> dict[str, int]:
    dims = work.signature.tile_dims
    for dim in tile:
        if dim not in dims:
            raise DimensionError(
                f"tile names {dim!r}, which is no tile dimension", expected="one of " + ", ".join(dims), do="mend tile"
            )
    fixed = {}
    for dim, unit, size in zip(dims, work.unit, work.size, strict=True):
        if dim not in tile:
            continue
        wanted = min(tile[dim], size)
        if wanted < 1 or (wanted % unit and wanted != size):
            raise DimensionError(
                f"the tile along {dim!r} is not a whole number of write units, so two tiles would share one",
                got=tile[dim],
                expected=f"a multiple of {unit}",
                do=f"set tile.{dim} to {max(1, wanted // unit) * unit}, or output.chunks.{dim} to {tile[dim]}",
            )
        fixed[dim] = wanted
    return fixed


def _negotiate(
    work: Workload,
    fixed: Mapping[str, int],
    memory: Callable[[Sequence[int]], Memory],
    limit: int,
    slots: int,
) -> tuple[int, ...]:
    """Smallest tile first, then whole input chunks, then larger while it pays; the last dimension grows first."""
    dims = work.signature.tile_dims
    shape = [fixed.get(dim, unit) for dim, unit in zip(dims, work.unit, strict=True)]

    def fits(candidate: Sequence[int]) -> bool:
        return memory(candidate).peak <= limit

    def pays(candidate: Sequence[int]) -> bool:
        tiles = math.prod(-(-n // t) for n, t in zip(work.size, candidate, strict=True))
        return fits(candidate) and memory(candidate).per_slot <= TARGET_BYTES and tiles >= TILES_PER_SLOT * slots

    free = [axis for axis in reversed(range(len(dims))) if dims[axis] not in fixed]
    for axis in free:
        candidate = [*shape[:axis], work.aligned[axis], *shape[axis + 1 :]]
        if fits(candidate):
            shape = candidate
    for axis in free:
        shape = _grow(shape, axis, work.size[axis], pays)
    return tuple(shape)


def _grow(shape: list[int], axis: int, size: int, good: Callable[[Sequence[int]], bool]) -> list[int]:
    """Largest multiple of `shape[axis]` that is good, found by bisection: memory only grows with the tile."""

    def at(multiple: int) -> list[int]:
        return [*shape[:axis], min(shape[axis] * multiple, size), *shape[axis + 1 :]]

    low, high = 1, -(-size // shape[axis])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(at(middle)) else (low, middle - 1)
    return at(low)


def _read_bytes(work: Workload, grid: TileGrid) -> tuple[int, int]:
    """Bytes decoded by the whole run, and bytes of the inputs: chunks cut by tile edges are decoded again."""
    read = wanted = 0
    for name, source in work.sources.items():
        spec = source.spec
        stored = math.prod(spec.shape) * source.stored_itemsize
        wanted += stored
        if name in work.signature.shared:
            read += stored
            continue
        tile = dict(zip(grid.dims, grid.tile_shape, strict=True))
        cells = source.stored_itemsize
        for dim, size, chunk in zip(spec.dims, spec.shape, source.chunks, strict=True):
            cells *= _touches(size, chunk, tile.get(dim, size)) * chunk
        for dim, count in zip(grid.dims, grid.shape, strict=True):
            cells *= 1 if dim in spec.dims else count
        read += cells
    return read, wanted


def _touches(size: int, chunk: int, tile: int) -> int:
    """Pairs of a tile and a chunk that meet along one dimension.

    Every chunk meets one tile, and one more for each tile edge inside it.

    >>> _touches(100, 10, 20), _touches(100, 10, 15), _touches(100, 100, 10)
    (10, 13, 10)
    """
    inner = -(-size // tile) - 1
    on_chunk_edges = inner // (chunk // math.gcd(chunk, tile))
    return -(-size // chunk) + inner - on_chunk_edges


def block_of(tiles: int, seconds: float, slots: int, read_ahead: int = 0) -> int:
    """Tiles a task, of so many seconds each: at most about BLOCK_SECONDS of work, and several blocks for every slot.

    With read-ahead the tiles of a block are done side by side; where there are enough, it has some for each of them.

    >>> block_of(10_000, 0.1, 2), block_of(10_000, 1e-5, 2), block_of(64, 0.1, 2), block_of(64, 0.1, 2, read_ahead=3)
    (20, 625, 4, 16)
    """
    beside = 1 + read_ahead
    by_time = int(BLOCK_SECONDS * beside / seconds) if seconds else tiles
    enough = min(TILES_PER_SLOT // 2 * beside, tiles // (2 * slots)) if read_ahead else 0
    return max(1, min(by_time, max(enough, tiles // (slots * TILES_PER_SLOT)), MOST_TILES))


def _refuse_ceiling(grid: TileGrid, memory: Memory, ceiling: Ceiling) -> None:
    fewer = "cluster.threads to fewer, " if memory.slots > 1 else ""
    enough = megabytes(memory.peak * ceiling.limit // ceiling.pause + 1)
    raise BudgetError(
        f"a tile of {tile_text(grid)} does not fit worker {ceiling.worker}",
        got=f"a memory limit of {megabytes(ceiling.limit)}, and no further task above {megabytes(ceiling.pause)}",
        expected=memory_text(memory),
        do=f"set memory_limit to less, {fewer}or start workers with a memory limit of at least {enough}",
    )
