"""What a run that is resumed takes over from the ones before it, and whether it may."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewise.errors import ResumeError
from tilewise.failures import Failures
from tilewise.fingerprint import difference, fingerprint
from tilewise.folders import Folder
from tilewise.job import Job
from tilewise.ledger import Ledger, Totals
from tilewise.locking import Lock
from tilewise.memory import Workload
from tilewise.plans import Kept, Plan
from tilewise.records import TileState
from tilewise.replacing import made_by, untouched
from tilewise.runfile import RUN_FILE, RunRecord


@dataclass(frozen=True)
class Earlier:
    """The runs before one that is resumed.

    Attributes
    ----------
    record
        Of the last of them.
    ledger
        What they have done.
    totals
        The ledger in sums.
    failures
        Why tiles of it have failed.
    kept
        Tile and panel, on which bits depend.
    redo
        Tiles to be done again, which become pending once nothing refuses the run any more.
    """

    record: RunRecord
    ledger: Ledger
    totals: Totals
    failures: Failures
    kept: Kept
    redo: tuple[int, ...] = ()

    def begin(self) -> Earlier:
        """Make pending what is to be done again."""
        if not self.redo:
            return self
        self.ledger.reset(self.redo)
        return replace(self, totals=self.ledger.totals(), redo=())

    @property
    def is_complete(self) -> bool:
        """Whether every tile is done, and stays so."""
        return not self.redo and self.totals.states.get(TileState.DONE, 0) == len(self.ledger.grid)


def last_record(sidecar: Folder, output: str) -> RunRecord | None:
    """What is known of the last run on an output; None where there was none.

    A record that is damaged is made again from the ledger and the output, where these belong together.
    """
    folder, record = Folder(output), RunRecord.load(sidecar)
    if record is not None:
        return untouched(folder, record)
    if RUN_FILE not in sidecar.names() or not Ledger.exists(sidecar):
        return None
    try:
        run = str(Ledger.open(sidecar).attrs.get("run", ""))
    except ResumeError:  # nothing is left to go by
        return None
    found = RunRecord(run, "running", output, {}, (run,))
    return found if made_by(folder, found) else None


def earlier_runs(job: Job, work: Workload, redo: Iterable[int], lock: Lock) -> Earlier | None:
    """The runs before; None where they have written nothing yet.

    Raises
    ------
    ResumeError
        The job differs from theirs, or their records are damaged.
    ParameterError
        There is no tile of a number in `redo`.
    """
    sidecar = job.sidecar_folder
    record = last_record(sidecar, job.output.store)
    if record is None or not record.is_resumable(job.output.store):
        return None
    ledger = Ledger.open(sidecar, write=True, guard=lock.check)
    _check_same(ledger.attrs.get("fingerprint", {}), fingerprint(work, job))
    kept = Kept(dict(zip(ledger.grid.dims, ledger.grid.tile_shape, strict=True)), int(ledger.attrs["panel"]))
    _check_tile(job, kept)
    failures = Failures.load(sidecar, ledger.grid)
    numbers = tuple(redo)
    ledger.check_numbers(numbers)
    return Earlier(record, ledger, ledger.totals(), failures, kept, numbers)


def _check_same(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    found = difference(was, now)
    if found:
        raise ResumeError(
            "the job is not the one of the run that would be resumed",
            got=found,
            expected="the same kernel, inputs and output",
            do="restore it, or begin again with --overwrite (in Python: overwrite=True), or choose another output",
        )


def _check_tile(job: Job, kept: Kept) -> None:
    """Refuse a tile that is asked for and is another one."""
    for dim, size in {} if isinstance(job.tile, str) else job.tile.items():
        if dim in kept.tile and size != kept.tile[dim]:
            raise ResumeError(
                f"tile of {dim!r} is not that of the run that would be resumed",
                got=size,
                expected=kept.tile[dim],
                do="leave tile out, or begin again with --overwrite (in Python: overwrite=True)",
            )


def check_device(earlier: Earlier, device: str) -> None:
    """Refuse another kind of device than the one that the earlier runs computed on.

    Raises
    ------
    ResumeError
        It is another one.
    """
    was = earlier.ledger.attrs.get("device")
    if was != device:
        raise ResumeError(
            "device is not that of the run that would be resumed: its bits would differ",
            got=device,
            expected=was,
            do=f"set device to {was}, or begin again with --overwrite (in Python: overwrite=True)",
        )


def last_plan(job: Job, work: Workload) -> Plan | None:
    """The plan of the last run; None where its file is not there, or damaged."""
    try:
        return Plan.from_dict(json.loads(job.sidecar_folder.read_text("plan.json") or "{}"), work.size)
    except (KeyError, TypeError, ValueError):
        return None
