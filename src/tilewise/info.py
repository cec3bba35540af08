"""What the records of a run say of it, while it is at work or afterwards. Its inputs are not looked at."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewise import places
from tilewise.errors import LockedError, MissingStoreError, ResumeError
from tilewise.failures import Failure, Failures
from tilewise.folders import Folder
from tilewise.ledger import Ledger, Totals
from tilewise.ledger_rows import PHASES, meaning
from tilewise.locking import HEARTBEAT, PROBE, Claim, read_claim
from tilewise.records import TileState
from tilewise.resuming import last_record

#: What is said of a run that nobody has ended and nobody is at work on, and of one that cannot be seen from here.
LOST, ELSEWHERE = "lost", "elsewhere"
#: Of one that has the lock and has written nothing yet, and of one whose file is damaged.
STARTING, UNKNOWN = "starting", "unknown"
#: What is said of an output of which a few tiles are tried aside.
PROBING = "probing"
#: Stages at which a run is at work.
_AT_WORK = ("creating", "running")


@dataclass(frozen=True)
class Info:
    """What the records of a run say of it.

    Attributes
    ----------
    output
        Place of the output, as it was asked for.
    sidecar
        Where the records are.
    state
        "starting", "creating" or "running": its process is at work. "probing": a probe is, of which the output keeps
        nothing. "elsewhere": a process on another host holds
        the lock. "lost": it was at work, and its process is dead. "finished", "failed", "stopped": so it ended.
        "unknown": the file that says so is damaged.
    run, runs
        Name of the last run, and of all runs on the output.
    owner
        Who is at work, or was when it died: `run`, `host`, `pid`, `since`, and the time of the last `heartbeat`; else
        None.
    plan
        The last plan, as `tilewise plan --json` shows it; empty where there is none.
    totals
        Sums over the tiles; None where none has been begun.
    failures
        Tiles that failed, with region and cause: at most 1000 of them.
    report
        What the last run that came to an end did; empty where none has.
    problems
        Records that are damaged.
    stage
        How far the last run said it had come.
    kernel
        Name of the kernel, as a job file has it.
    """

    output: str
    sidecar: str
    state: str
    run: str
    runs: tuple[str, ...] = ()
    owner: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    totals: Totals | None = None
    failures: tuple[Failure, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    stage: str = ""
    kernel: str = ""

    @property
    def tiles(self) -> int:
        """Number of tiles; 0 where it is not known yet."""
        return sum(self.totals.states.values()) if self.totals else int(self.plan.get("tiles", 0))

    def count(self, *states: TileState) -> int:
        """Tiles in one of these states."""
        return sum(self.totals.states[state] for state in states) if self.totals else 0

    @property
    def failed(self) -> int:
        """Tiles that failed, or were alone with a worker that died."""
        return self.count(TileState.FAILED, TileState.QUARANTINED)

    @property
    def busy(self) -> float:
        """Seconds that tiles have taken, added up; the wall time is about that over the tiles in work at a time."""
        return sum(self.totals.seconds) if self.totals else 0.0

    @property
    def in_work(self) -> int:
        """Tiles in work at a time, those that are read or written meanwhile among them; 0 where it is not known."""
        plan = self.plan
        slots = int(plan.get("processes", 0) * plan.get("slots", 0) * (1 + plan.get("read_ahead", 0)))
        return min(slots, self.tiles)

    @property
    def rate(self) -> float | None:
        """Bytes read and written each second while all slots are at work; None where it is not known yet."""
        if not (self.busy and self.in_work and self.tiles):
            return None
        share = self.count(TileState.DONE) / self.tiles
        return float(share * (self.plan["read_bytes"] + self.plan["write_bytes"]) * self.in_work / self.busy)

    @property
    def left(self) -> float | None:
        """Seconds that pending tiles will about take, as many at a time; None where it is not known."""
        done = self.count(TileState.DONE)
        return self.busy / done * self.count(TileState.PENDING) / self.in_work if done and self.in_work else None

    def replay(self, number: int) -> str:
        """The command that shows how a tile fails."""
        return self.command("replay", "--tile", str(number))

    def command(self, name: str, *options: str) -> str:
        """A command on the output, as a person types it."""
        return command(name, self.output, self.sidecar, self.kernel, *options)

    @property
    def todo(self) -> str:
        """What to do next."""
        return _todo(self)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        found = {key: value for key, value in vars(self).items() if key not in ("totals", "failures")}
        tiles = {"total": self.tiles, **{state.meaning: self.count(state) for state in TileState}}
        failures = [{**asdict(failure), "replay": self.replay(failure.number)} for failure in self.failures]
        found |= {"tiles": tiles, "failures": failures, "rate": self.rate, "left": self.left, "todo": self.todo}
        if self.totals:
            found |= {
                "phases": dict(zip(PHASES, self.totals.seconds, strict=True)),
                "statuses": {meaning(code): count for code, count in self.totals.statuses.items()},
                "misfits": self.totals.misfits,
                "retried": self.totals.retried,
                "smallest_panel": self.totals.panel,
            }
        return found


def command(name: str, output: str, sidecar: str, kernel: str, *options: str) -> str:
    """A command on an output, as a person types it; a kernel of somebody's own has to be allowed.

    >>> command("replay", "my out.zarr", "my out.zarr.tilewise", "mine:Own", "--tile", "3")
    "tilewise replay 'my out.zarr' --tile 3 --allow mine"
    """
    where = [] if sidecar == f"{output.rstrip('/')}.tilewise" else ["--sidecar", sidecar]
    module, own, _ = kernel.partition(":")
    return shlex.join(["tilewise", name, output, *where, *options, *(["--allow", module] if own else [])])


def info(output: str, *, sidecar: str | None = None) -> Info:
    """What the records of a run say of it; nothing is changed, and a run may be at work meanwhile.

    Parameters
    ----------
    output
        Path or URL of the output.
    sidecar
        Where the records are; beside the output unless given.

    Raises
    ------
    MissingStoreError
        No run has left records there.
    StoreAccessError
        They cannot be read.
    """
    store = places.checked(places.local_path(output), "output")
    place = places.checked(places.local_path(sidecar or f"{store.rstrip('/')}.tilewise"), "sidecar")
    return _Reader(Folder(place)).read(store)


class _Reader:
    """Reads records one by one; one that is damaged is a problem, and the others are told all the same."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._problems: list[str] = []

    def read(self, output: str) -> Info:
        """Everything that the records say."""
        record, claim = self._record(output), self._claim()
        names = self._folder.names()
        if claim is not None and claim.run.startswith(PROBE) and claim.is_alive is False:
            claim = None  # it was killed, and has left nothing that counts
        if not record and claim is None and "run.json" not in names:
            raise MissingStoreError(
                f"there are no records of a run on {output}",
                got=f"nothing at {self._folder}" if not names else f"{self._folder} without run.json",
                do="check the path; where the job names a sidecar, give it with --sidecar",
            )
        stage = str(record.get("stage", UNKNOWN if "run.json" in names else "creating"))
        totals, failures = (None, ()) if stage == "creating" else self._tiles()
        return Info(
            output=output,
            sidecar=self._folder.place,
            state=_state(stage, str(record.get("run", "")), claim),
            run=claim.run if claim else str(record.get("run", "")),
            runs=tuple(map(str, record.get("runs", ()))),
            owner=self._owner(claim),
            plan=self._json("plan.json"),
            totals=totals,
            failures=failures,
            stage=stage,
            kernel=str(self._json("job.json").get("kernel", {}).get("name", "")),
            report=self._json("report.json"),
            problems=tuple(self._problems),
        )

    def _record(self, output: str) -> dict[str, Any]:
        """What `run.json` says; of an output that is yet to be replaced, and was not, what it said before."""
        found = self._json("run.json")
        known = last_record(self._folder, output) if found else None
        return {**found, "stage": known.stage, "run": known.run, "runs": known.runs} if known else found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._folder.read_text(name) or "{}")
        except ValueError as error:
            found, why = None, str(error)
        else:
            why = f"{type(found).__name__} instead of keys"
        if isinstance(found, dict):
            return found
        self._problems.append(f"{name} is damaged: {why}")
        return {}

    def _claim(self) -> Claim | None:
        try:
            return read_claim(self._folder)
        except LockedError as error:
            self._problems.append(str(error))
            return None

    def _owner(self, claim: Claim | None) -> dict[str, Any] | None:
        if claim is None:
            return None
        beat = self._json(HEARTBEAT).get("time")
        owner = claim.owner
        return {"run": claim.run, "host": owner.host, "pid": owner.pid, "since": claim.since, "heartbeat": beat}

    def _tiles(self) -> tuple[Totals | None, tuple[Failure, ...]]:
        try:
            ledger = Ledger.open(self._folder)
            totals = ledger.totals()
        except ResumeError as error:
            self._problems.append(str(error))
            return None, ()
        try:
            return totals, tuple(Failures.load(self._folder, ledger.grid))
        except ResumeError as error:
            self._problems.append(str(error))
            return totals, ()


def _state(stage: str, run: str, claim: Claim | None) -> str:
    """What a run is doing, from how far it said it had come and from who holds the lock."""
    alive = claim is not None and claim.is_alive
    if alive is None:
        return ELSEWHERE
    if claim is not None and alive:
        if claim.run.startswith(PROBE):
            return PROBING
        return stage if claim.run == run else STARTING
    return LOST if stage in _AT_WORK else stage


def _todo(info: Info) -> str:
    resume = "`tilewise run JOB.yaml --resume`"
    if info.state == PROBING:
        return "wait: it is probed"
    if info.state in (STARTING, *_AT_WORK):
        return "wait: it is at work"
    if info.state == ELSEWHERE:
        return f"wait; if that process is dead, {resume} takes over after a minute, and with --force-unlock at once"
    if info.stage == "creating":
        return f"{resume}; where it is refused, with --overwrite instead: the output was about to be replaced"
    if info.totals is None and info.state != LOST:
        return "`tilewise run JOB.yaml --overwrite`: what was done is not known"
    if info.failed:
        first = f", shown by `{info.replay(info.failures[0].number)}`" if info.failures else ""
        return f"mend what fails{first}, then {resume}"
    if info.count(TileState.DONE) < info.tiles or info.totals is None:
        return f"{resume}: it does what is not done"
    return f"nothing; `{info.command('audit')}` checks the output"
