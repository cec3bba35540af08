"""What a ledger holds of every tile, and how that is cut into rows: the arrays, their chunks, and one row in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewise.coordinates import Array
from tilewise.fields import Status, TileGrid
from tilewise.records import TileRecord, TileState

#: Tiles of one row at most: a chunk of every array, which a flush writes whole.
MOST = 1 << 14
PHASES = ("read", "compute", "write")
#: Counts pixels with a code that is no Status: those of a kernel with codes of its own.
OTHER = 254
CODES = tuple(sorted((*map(int, Status), OTHER)))
_NONE = (0,) * len(CODES)
_POSITION = {code: i for i, code in enumerate(CODES)}


def meaning(code: int) -> str:
    """What a status code means; codes of a kernel's own are counted together.

    >>> meaning(2), meaning(OTHER), meaning(42)
    ('rank_deficient', 'other', 'other')
    """
    return Status(code).meaning if code in _POSITION and code != OTHER else "other"


@dataclass(frozen=True)
class Column:
    """One array of a ledger: its name, dtype, the dimension that it has beside those of the grid, and what it means."""

    name: str
    dtype: str
    lead: tuple[tuple[str, int], ...]
    attrs: dict[str, Any]


def columns(grid: TileGrid) -> tuple[Column, ...]:
    """The arrays of a ledger in the order in which a flush writes them: the state comes last."""
    # Pixels of a tile beyond 32 bits are only there where somebody has asked for such a tile.
    pixels = "uint32" if math.prod(grid.tile_shape) < 1 << 32 else "uint64"
    states = {"flag_values": [int(s) for s in TileState], "flag_meanings": " ".join(s.meaning for s in TileState)}
    return (
        Column("attempts", "uint32", (), {"long_name": "how often the tile was tried"}),
        Column("seconds", "float32", (("phase", len(PHASES)),), {"long_name": "time of each phase", "units": "s"}),
        Column("pixels", pixels, (("code", len(CODES)),), {"long_name": "pixels of the tile by status code"}),
        Column("misfits", "uint64", (), {"long_name": "values that did not fit a packed output"}),
        Column("panel", "uint32", (), {"long_name": "pixels of a panel where memory forced smaller ones, else 0"}),
        Column("state", "uint8", (), {"long_name": "state of the tile", **states}),
    )


@dataclass(frozen=True)
class Rows:
    """Tiles cut into ranges of their numbers that are boxes of the grid: 1 along leading axes, all along the last ones.

    >>> rows = Rows((3, 100_000))
    >>> rows.chunk, len(rows), rows.range(3), rows.find(150_001)
    ((1, 14286), 21, (42858, 57144), (10, 7143))
    """

    shape: tuple[int, ...]
    most: int = MOST

    @cached_property
    def chunk(self) -> tuple[int, ...]:
        """Tiles of a row along each axis: the shape of a chunk."""
        return _cut(self.shape, self.most)[0]

    @cached_property
    def _parts(self) -> tuple[int, int, int]:
        """Pieces of the axis that is cut, tiles in all of them, tiles in one."""
        chunk, pieces, span = _cut(self.shape, self.most)
        return pieces, span, math.prod(chunk)

    def __len__(self) -> int:
        """Number of rows."""
        pieces, span, _ = self._parts
        return math.prod(self.shape) // span * pieces

    def range(self, row: int) -> tuple[int, int]:
        """Numbers of the tiles of a row, from the first to before the last."""
        pieces, span, length = self._parts
        outer, piece = divmod(row, pieces)
        first = outer * span + piece * length
        return first, min(first + length, (outer + 1) * span)

    def find(self, number: int) -> tuple[int, int]:
        """The row of a tile, and its position there."""
        pieces, span, length = self._parts
        outer, rest = divmod(number, span)
        piece, position = divmod(rest, length)
        return outer * pieces + piece, position

    def box(self, row: int) -> tuple[slice, ...]:
        """Where a row lies in the grid."""
        names = tuple(map(str, range(len(self.shape))))
        return TileGrid(names, self.shape, self.chunk).tile(row).slices(names)


def _cut(shape: Sequence[int], most: int) -> tuple[tuple[int, ...], int, int]:
    """Tiles of a row along each axis, pieces of the axis that is cut, and tiles in all pieces of it."""
    chunk, pieces, span = [1] * len(shape), 1, 1
    for axis in reversed(range(len(shape))):
        pieces = -(-shape[axis] // max(1, most // span))
        # Pieces of about the same size: none is a remainder.
        chunk[axis] = -(-shape[axis] // pieces)
        pieces = -(-shape[axis] // chunk[axis])
        span *= shape[axis]
        if pieces > 1:
            break
    return tuple(chunk), pieces, span


class Row:
    """The values of one row in memory, the tiles along the last axis of each; what is not there is 0 everywhere."""

    def __init__(self, count: int, table: Sequence[Column], values: dict[str, Array]) -> None:
        self.count = count
        self.dirty = False
        self._table = {column.name: column for column in table}
        self._values = values

    def get(self, name: str) -> Array | None:
        """Values of one array; None where all of them are 0 and were never anything else."""
        return self._values.get(name)

    def set(self, at: int, record: TileRecord) -> None:
        """What became of the tile at a position."""
        self.dirty = True
        self._put("attempts", at, record.attempts)
        self._put("seconds", at, record.seconds)
        self._put("misfits", at, record.misfits)
        self._put("panel", at, record.panel)
        self._put("pixels", at, _by_code(record))
        self._put("state", at, int(record.state))

    def clear(self, at: int) -> None:
        """The tile at a position becomes pending, as if it had never been tried."""
        self.dirty = True
        for array in self._values.values():
            array[..., at] = 0

    def _put(self, name: str, at: int, value: int | Sequence[float]) -> None:
        """Most arrays are 0 in most runs: such are made when something else is put there."""
        array = self._values.get(name)
        if array is None:
            if not (any(value) if isinstance(value, Sequence) else value):
                return
            column = self._table[name]
            array = np.zeros((*(n for _, n in column.lead), self.count), dtype=column.dtype)
            self._values[name] = array
        array[..., at] = value


def _by_code(record: TileRecord) -> Sequence[int]:
    if not record.statuses:
        return _NONE
    counts = [0] * len(CODES)
    for code, count in record.statuses.items():
        counts[_POSITION.get(code, _POSITION[OTHER])] += count
    return counts
