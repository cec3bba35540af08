"""What an audit finds, in numbers that stay bounded however much is wrong."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tilewise.fields import Tile

#: Findings of one kind that are kept in full.
MOST = 100
Kind = Literal["pending", "failed", "quarantined", "missing", "damaged", "differs", "array", "stray"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an output.

    Attributes
    ----------
    kind
        "pending", "failed" or "quarantined": a tile that is not done. "missing" or "damaged": a write unit that is not
        there, or cannot be decoded. "differs": a tile whose stored values are not those that its inputs give. "array":
        an array that is not as the run laid it out. "stray": a file that an interrupted write has left.
    what
        What was found.
    tile, region
        Number of the tile, and its cells, where it belongs to one.
    array, key
        Name of the array, and the key of the write unit within the output.
    mend
        The command that mends it, or what to do.
    """

    kind: Kind
    what: str
    tile: int | None = None
    region: str = ""
    array: str = ""
    key: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    output
        Place of the output.
    tiles, done
        Tiles of the run, and those that its ledger calls done.
    units, nbytes
        Write units that were decoded, and their bytes as they are stored.
    recomputed
        Numbers of the tiles that were computed once more and compared bit by bit.
    seed
        Of the choice of these tiles.
    counts
        Findings by kind.
    findings
        The first hundred of each kind.
    repaired
        Tiles that were done again.
    notes
        What an audit cannot tell, and what may be no fault.
    """

    output: str
    tiles: int
    done: int
    units: int
    nbytes: int
    recomputed: tuple[int, ...]
    seed: int
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    repaired: int = 0
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON data."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "findings"}
        return {**own, "clean": self.clean, "findings": [asdict(finding) for finding in self.findings]}


class Found:
    """Findings as they come: the first of each kind, how many there are, and which tiles they are of."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.kept: list[Finding] = []
        #: Tiles that the ledger calls done and that are not, in order, and tiles that are not done.
        self.redo = array("q")
        self.undone = array("q")

    @property
    def is_clean(self) -> bool:
        """Whether there are none."""
        return not self.counts

    def add(self, finding: Finding) -> None:
        """A finding; only counted where there are many of its kind."""
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= MOST:
            self.kept.append(finding)

    def add_done(self, finding: Finding, number: int) -> None:
        """A finding of a tile that the ledger calls done."""
        self.add(finding)
        if not self.redo or self.redo[-1] != number:
            self.redo.append(number)

    def wrong(self) -> Sequence[int]:
        """Every tile with a finding, in order."""
        return array("q", sorted({*self.redo, *self.undone}))


def region(tile: Tile) -> str:
    """The cells of a tile as a person writes them.

    >>> region(Tile(3, ("y", "x"), (0, 64), (32, 128)))
    'y=0:32, x=64:128'
    """
    return ", ".join(f"{dim}={a}:{b}" for dim, a, b in zip(tile.dims, tile.start, tile.stop, strict=True))
