"""A plan as a value: the grid of tiles, bytes and the promised peak, and the refusal of one that is over its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewise.errors import BudgetError
from tilewise.fields import TileGrid
from tilewise.memory import Memory, megabytes


@dataclass(frozen=True)
class Kept:
    """What a run that is resumed takes from the one before, since bits depend on it: the tile, and the panel."""

    tile: Mapping[str, int]
    panel: int


@dataclass(frozen=True)
class Plan:
    """Tile grid, bytes and memory of a job: known, and promised, before anything runs.

    Attributes
    ----------
    grid
        The tiles.
    unit
        Cells of the smallest tile along each tile dimension: whole write units of every output.
    block
        Tiles that one task does.
    panel
        Pixels that the kernel works on at a time.
    memory
        Predicted peak of one worker process.
    memory_limit
        The budget of one worker process, in bytes.
    processes, slots
        Worker processes, and tiles in work at a time within each.
    read_bytes, needed_bytes
        Bytes decoded from the inputs by the whole run, and bytes of the inputs.
    write_bytes
        Bytes of the outputs.
    read_ahead
        Tiles beyond each of those in work whose data is being read or written meanwhile.
    """

    grid: TileGrid
    unit: tuple[int, ...]
    block: int
    panel: int
    memory: Memory
    memory_limit: int
    processes: int
    slots: int
    read_bytes: int
    needed_bytes: int
    write_bytes: int
    read_ahead: int = 0

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return math.prod(self.grid.shape)

    @property
    def blocks(self) -> int:
        """Number of blocks, one task each."""
        return -(-self.tiles // self.block)

    @property
    def in_work(self) -> int:
        """Tiles in work at a time, those that are read or written meanwhile among them."""
        return self.processes * self.slots * (1 + self.read_ahead)

    @property
    def read_amplification(self) -> float:
        """Bytes decoded for each byte needed: 1 where tiles are whole input chunks, all within the grid."""
        return self.read_bytes / self.needed_bytes if self.needed_bytes else 1.0

    def with_read_ahead(self, wanted: int, most: int) -> Plan:
        """The same plan with as much read-ahead, up to what is wanted, as fits into `most` bytes of a process."""
        for ahead in range(wanted, 0, -1):
            memory = replace(self.memory, slots=self.slots * (1 + ahead))
            if memory.peak <= most:
                return replace(self, memory=memory, read_ahead=ahead)
        return self

    def with_baseline(self, baseline: int) -> Plan:
        """The same plan on a process that was measured to need `baseline` bytes to begin with."""
        return replace(self, memory=replace(self.memory, baseline=baseline))

    def check_budget(self) -> None:
        """Refuse a plan that does not fit its budget.

        Raises
        ------
        BudgetError
            The message names the tile, the bytes and the budget that would do.
        """
        if self.memory.peak > self.memory_limit:
            refuse_budget(self.grid, self.memory, self.memory_limit, self.read_ahead)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON data."""
        grid = self.grid
        return {
            "tile_dims": list(grid.dims),
            "grid": list(grid.shape),
            "tile": dict(zip(grid.dims, grid.tile_shape, strict=True)),
            "unit": dict(zip(grid.dims, self.unit, strict=True)),
            "tiles": self.tiles,
            "block": self.block,
            "blocks": self.blocks,
            "panel": self.panel,
            "processes": self.processes,
            "slots": self.slots,
            "read_ahead": self.read_ahead,
            "memory_limit": self.memory_limit,
            "memory": {**asdict(self.memory), "allocator": self.memory.allocator, "peak": self.memory.peak},
            "read_bytes": self.read_bytes,
            "needed_bytes": self.needed_bytes,
            "read_amplification": self.read_amplification,
            "write_bytes": self.write_bytes,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], size: Sequence[int]) -> Plan:
        """The plan that `to_dict` wrote, of tile dimensions of these sizes.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is not one.
        """
        memory = {name: value for name, value in found["memory"].items() if name not in ("allocator", "peak")}
        grid = TileGrid(tuple(found["tile_dims"]), tuple(size), tuple(found["tile"].values()))
        plain = ("block", "panel", "memory_limit", "processes", "slots", "read_bytes", "needed_bytes", "write_bytes")
        unit = tuple(found["unit"].values())
        ahead = found.get("read_ahead", 0)  # plans of earlier versions have none
        rest = {name: found[name] for name in plain}
        return cls(grid=grid, unit=unit, memory=Memory(**memory), read_ahead=ahead, **rest)


def tile_text(grid: TileGrid) -> str:
    """The tile of a grid, as a message names it."""
    return ", ".join(f"{dim}={n}" for dim, n in zip(grid.dims, grid.tile_shape, strict=True)) or "one cell"


def memory_text(memory: Memory) -> str:
    """What a predicted peak is made of, as a message names it."""
    return (
        f"{megabytes(memory.peak)}: {megabytes(memory.baseline)} to begin with, "
        f"{megabytes(memory.shared)} for shared inputs, {memory.slots} x {megabytes(memory.per_slot)} for tiles, "
        f"{megabytes(memory.allocator)} kept by the allocator"
    )


def refuse_budget(grid: TileGrid, memory: Memory, limit: int, read_ahead: int) -> None:
    """Refuse a plan that does not fit its budget; see `Plan.check_budget`."""
    less = "read_ahead to less, " if read_ahead else ""
    enough = megabytes(memory.peak)
    raise BudgetError(
        f"a tile of {tile_text(grid)} does not fit the memory budget",
        got=f"memory_limit {megabytes(limit)}",
        expected=memory_text(memory),
        do=f"set {less}memory_limit to at least {enough}, or make output.chunks (and output.shards) smaller",
    )
