from __future__ import annotations

from pathlib import Path

import pytest

from tilewise import recorder
from tilewise.errors import LockedError
from tilewise.failures import Failures
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.ledger import Ledger
from tilewise.ledger_rows import PHASES
from tilewise.locking import Lock, hold
from tilewise.memory import Memory
from tilewise.outcome import Event, Report, Tally
from tilewise.plans import Plan
from tilewise.recorder import Recorder
from tilewise.records import BlockRecord, TileRecord, TileState
from tilewise.stopping import Stop

GRID = TileGrid(("y",), (100,), (10,))
PLAN = Plan(GRID, (10,), 2, 64, Memory(1, 0, 1, 0, 0, 0), 2, 1, 1, 1000, 1000, 1000)
BLOCK = BlockRecord(
    (
        TileRecord(0, seconds=(1.0, 2.0, 3.0), statuses={0: 7, 2: 3}, attempts=3),
        TileRecord(1, TileState.FAILED, error="ValueError: no"),
        TileRecord(2, TileState.PENDING, error="given up"),
    ),
    "here-1",
    77,
)


def made(sidecar: Folder, lock: Lock, stop: Stop | None = None, **options: object) -> tuple[Recorder, Tally]:
    tally = Tally(PLAN, "out", 0.0, **options)  # type: ignore[arg-type]
    ledger = Ledger.create(sidecar, GRID, {})
    return Recorder(ledger, Failures(sidecar, GRID), tally, lock, stop or Stop(), retries=0), tally


def done(sidecar: Folder) -> list[int]:
    return list(Ledger.open(sidecar).numbers(TileState.DONE))


def test_records_reach_the_ledger_in_time_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Folder(str(tmp_path))
    with hold(sidecar, "a") as lock:
        this, _ = made(sidecar, lock)
        this.add(BLOCK)
        assert done(sidecar) == []
        this.flush()
        assert done(sidecar) == [0]
        assert list(Ledger.open(sidecar).numbers(TileState.FAILED)) == [1]
        monkeypatch.setattr(recorder, "FLUSH", 0.0)
        this.add(BlockRecord((TileRecord(5),), "here-1", 0))
        assert done(sidecar) == [0, 5]
        assert [failure.number for failure in Failures.load(sidecar, GRID)] == [1]


def test_nothing_is_recorded_for_a_run_that_has_lost_its_output(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path))
    with hold(sidecar, "a") as lock:
        this, _ = made(sidecar, lock)
        assert this.go_on()
        with hold(sidecar, "b", force=True):
            this.add(BLOCK)
            with pytest.raises(LockedError):
                this.flush()
            assert not this.go_on()
            assert done(sidecar) == []


def test_a_signal_is_heard(tmp_path: Path) -> None:
    sidecar, stop = Folder(str(tmp_path)), Stop()
    with hold(sidecar, "a") as lock:
        this, _ = made(sidecar, lock, stop)
        stop.ask(15)
        assert not this.go_on()


def test_sums_are_those_of_the_records_after_those_of_earlier_runs(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path))
    events: list[Event] = []
    ledger = Ledger.create(sidecar, GRID, {})
    ledger.add(TileRecord(9, statuses={0: 4}, misfits=5))
    ledger.flush()
    with hold(sidecar, "a") as lock:
        this, tally = made(sidecar, lock, earlier=ledger.totals(), progress=events.append)
        this.add(BLOCK)
    found: Report = tally.report()
    assert (found.tiles, found.resumed, found.failed, found.retries, found.misfits) == (1, 1, 1, 2, 5)
    assert found.statuses == {"ok": 11, "rank_deficient": 3}
    assert {name: found.phases[name] for name in PHASES} == {"read": 1.0, "compute": 2.0, "write": 3.0}
    assert found.peaks == {"here-1": 77}
    assert (events[-1].done, events[-1].total, events[-1].resumed, events[-1].failed) == (2, 10, 1, 1)
