"""What became of tiles and blocks, as tasks bring it back and the ledger keeps it: integers, seconds and texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal


class TileState(IntEnum):
    """What became of one tile.

    >>> TileState.DONE.meaning
    'done'
    """

    PENDING = 0
    DONE = 1
    FAILED = 2
    #: It was in work, alone, when its worker died.
    QUARANTINED = 3

    @property
    def meaning(self) -> str:
        """The CF flag meaning of this state."""
        return self.name.lower()


#: Tiles by ranges of their numbers, from the first to before the last: those of one block.
Ranges = tuple[tuple[int, int], ...]
#: Why a tile ends the run whatever `on_error` says: its store is full, or another run has taken the output over.
Halt = Literal["", "full", "lost"]


@dataclass(frozen=True)
class TileRecord:
    """What became of one tile.

    Attributes
    ----------
    number
        Of the tile, in the order of the grid.
    state
        DONE, FAILED or QUARANTINED; PENDING where it was given up although nothing is wrong with it.
    seconds
        Of reading, computing and writing.
    statuses
        Pixels by status code.
    misfits
        Values that did not fit a packed output.
    attempts
        How often it was tried: 1 unless something had to be tried again.
    panel
        Pixels of a panel where memory forced smaller panels than the plan's; else 0.
    error
        What was raised in the end, as "Class: message".
    details
        The traceback behind it.
    halt
        Why the run has to end.
    """

    number: int
    state: TileState = TileState.DONE
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    statuses: Mapping[int, int] = field(default_factory=dict)
    misfits: int = 0
    attempts: int = 1
    panel: int = 0
    error: str = ""
    details: str = ""
    halt: Halt = ""


@dataclass(frozen=True)
class BlockRecord:
    """What became of one block.

    Attributes
    ----------
    tiles
        What became of its tiles.
    process
        Host and process that did it.
    peak
        Largest resident bytes of that process so far.
    seconds
        Of the whole block.
    idle
        Seconds since its slot ended the block before.
    """

    tiles: tuple[TileRecord, ...]
    process: str
    peak: int
    seconds: float = 0.0
    idle: float = 0.0
