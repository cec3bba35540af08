"""One tile of a run computed once more, here and by itself: why it fails, or what it gives."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tilewise.coordinates import Array
from tilewise.errors import ParameterError
from tilewise.fields import Tile
from tilewise.findings import region
from tilewise.ledger_rows import meaning
from tilewise.program import Program
from tilewise.recompute import differences, opened, recompute
from tilewise.recorded import Recorded
from tilewise.records import TileState
from tilewise.stored import Stored


@dataclass(frozen=True)
class Replay:
    """What became of a tile that was computed once more.

    Attributes
    ----------
    tile, region
        Its number and its cells.
    state
        What the run had made of it: "pending", "done", "failed" or "quarantined".
    seconds
        Of reading and of computing.
    statuses
        Pixels by status meaning, where the kernel has a status.
    misfits
        Values that a packed output cannot hold.
    differences
        Of each output, how what is stored differs, where the run called the tile done.
    error
        What was raised, as "Class: message"; "" where nothing was.
    details
        The traceback behind it.
    outputs
        The values by output name, with the dimensions of the output; none where the tile failed.
    """

    output: str
    tile: int
    region: str
    state: str
    seconds: tuple[float, float] = (0.0, 0.0)
    statuses: Mapping[str, int] = field(default_factory=dict)
    misfits: int = 0
    differences: tuple[str, ...] = ()
    error: str = ""
    details: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """All but the values, as JSON data."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "outputs"}


def replay(output: str, tile: int, *, sidecar: str | None = None, allow: Sequence[str] = ()) -> Replay:
    """Compute one tile of a run from its inputs, in this process; nothing is written.

    Parameters
    ----------
    output
        Path or URL of the output.
    tile
        Number of the tile.
    sidecar
        Where the records of the run are, if not beside the output.
    allow
        Modules whose kernels may be imported, which runs what is in them.

    Returns
    -------
    Replay
        What it gives; where the tile fails, with the error.

    Raises
    ------
    ResumeError
        There are no records of a run, or they are damaged.
    ParameterError
        There is no such tile, or the kernel is of a module that is not allowed.
    TilewiseError
        The inputs cannot be opened.
    """
    recorded = Recorded.of(output, sidecar)
    last = len(recorded.grid) - 1
    if not isinstance(tile, int) or isinstance(tile, bool) or not 0 <= tile <= last:
        raise ParameterError("there is no such tile", got=repr(tile), expected=f"0 to {last}", do="mend tile")
    program = recorded.program(recorded.job(allow))
    return _replayed(recorded, program, recorded.grid.tile(tile))


def _replayed(recorded: Recorded, program: Program, tile: Tile) -> Replay:
    before = recorded.ledger.record(tile.number)
    known = Replay(recorded.output, tile.number, region(tile), before.state.meaning)
    try:
        with opened(program) as session:
            again = recompute(session, tile, panel=before.panel)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tile raises is what was asked for
        told = f"{type(error).__name__}: {error}"
        return replace(known, error=told, details=traceback.format_exc())
    unlike: tuple[str, ...] = ()
    if before.state is TileState.DONE:
        stored = Stored.of(recorded.output, recorded.grid, program.targets)
        unlike = tuple(f"{name}: {what}" for name, what in stored.problems)
        unlike += tuple(f"{found.array}: {found}" for found in differences(program, stored.outputs, again))
    return replace(
        known,
        seconds=again.seconds,
        statuses=_statuses(again.outputs.get("status")),
        misfits=again.misfits,
        differences=unlike,
        outputs=again.outputs,
    )


def _statuses(status: Array | None) -> dict[str, int]:
    if status is None:
        return {}
    codes, counts = np.unique(status, return_counts=True)
    found: Counter[str] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        found[meaning(code)] += count
    return dict(found)
