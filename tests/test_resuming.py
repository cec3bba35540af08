"""Runs that ended early and are resumed: only what is not done is done, and the bits are those of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import faulty
import stores
import tilewise
from clusters import until
from faults import Copy, DiesAt, FailsUntil, OwnStatus, Waits
from tilewise.errors import (
    BudgetError,
    LockedError,
    OutputExistsError,
    ParameterError,
    ResumeError,
    StoreFullError,
    TileError,
    TilewiseError,
)
from tilewise.info import info
from tilewise.ledger import Ledger
from tilewise.records import TileState
from tilewise.runfile import RunRecord

DIMS = ("band", "y", "x")
CUBE = np.arange(3 * 20 * 30, dtype="float32").reshape(3, 20, 30)
TILES = 30
#: In the middle of the cube.
AT = float(CUBE[0, 9, 15])


def cube(tmp_path: Path) -> str:
    return stores.write(tmp_path / "in.zarr", {"x": (DIMS, CUBE)}, chunks={"y": 4, "x": 5})


def job(tmp_path: Path, kernel: Any = None, **options: Any) -> tilewise.Job:
    source = str(tmp_path / "in.zarr") if (tmp_path / "in.zarr").exists() else cube(tmp_path)
    settings: dict[str, Any] = {
        "inputs": {"x": source},
        "output": str(tmp_path / "out.zarr"),
        "cluster": tilewise.Cluster(kind="threads", workers=1),
        "tile": {"y": 4, "x": 5},
    }
    return tilewise.Job(kernel=kernel or broken(tmp_path), **{**settings, **options})


def broken(tmp_path: Path) -> FailsUntil:
    return FailsUntil(dim="band", at=AT, mended=str(tmp_path / "mended"), log=str(tmp_path / "log"))


def fail(this: tilewise.Job) -> None:
    with pytest.raises(TileError, match="found"):
        tilewise.run(this)


def mend(tmp_path: Path) -> None:
    (tmp_path / "mended").touch()


def computed(tmp_path: Path) -> list[str]:
    return (tmp_path / "log").read_text().splitlines()


def check_complete(tmp_path: Path) -> None:
    np.testing.assert_array_equal(stores.read(tmp_path / "out.zarr", "copy"), CUBE)


@pytest.mark.parametrize("kind", ["threads", "processes", "local"])
def test_only_what_is_not_done_is_done(tmp_path: Path, kind: str) -> None:
    cluster = tilewise.Cluster(kind=kind, workers=1)  # type: ignore[arg-type]
    this = job(tmp_path, cluster=cluster)
    fail(this)
    before = len(computed(tmp_path))
    mend(tmp_path)
    report = tilewise.run(this, resume=True)
    assert report.resumed > 0
    assert (report.tiles + report.resumed, report.failed) == (TILES, 0)
    assert len(computed(tmp_path)) == before + report.tiles
    check_complete(tmp_path)
    assert not this.sidecar_folder.read_text("lock.json")


def test_a_finished_run_returns_at_once_and_touches_nothing(tmp_path: Path) -> None:
    mend(tmp_path)
    this = job(tmp_path)
    first = tilewise.run(this)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out.zarr").rglob("*")}
    again = tilewise.run(replace(this, cluster=tilewise.Cluster(kind="processes", workers=2)), resume=True)
    assert (again.tiles, again.resumed) == (0, TILES)
    assert again.plan.grid == first.plan.grid
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "out.zarr").rglob("*")}
    assert len(computed(tmp_path)) == TILES


def test_where_there_is_nothing_to_resume_a_run_begins(tmp_path: Path) -> None:
    report = tilewise.run(job(tmp_path, Copy(dim="band")), resume=True)
    assert (report.tiles, report.resumed) == (TILES, 0)
    check_complete(tmp_path)


def test_an_output_of_somebody_else_is_not_resumed(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "out.zarr", {"copy": (DIMS, CUBE)})
    with pytest.raises((ResumeError, OutputExistsError)) as caught:
        tilewise.run(job(tmp_path), resume=True)
    assert caught.value.do
    np.testing.assert_array_equal(stores.read(path, "copy"), CUBE)


def differences(tmp_path: Path) -> dict[str, tuple[dict[str, Any], str]]:
    other = stores.write(tmp_path / "other.zarr", {"x": (DIMS, CUBE + 1)}, chunks={"y": 4, "x": 5})
    out = str(tmp_path / "out.zarr")
    return {
        "kernel": ({"kernel": replace(broken(tmp_path), at=1.0)}, "at"),
        "input": ({"inputs": {"x": other}}, "inputs.x"),
        "chunks": ({"output": tilewise.Output(store=out, chunks={"y": 2})}, "chunks"),
        "dtype": ({"output": tilewise.Output(store=out, dtype="float64")}, "dtype"),
        "codec": ({"output": tilewise.Output(store=out, codec="gzip")}, "codec"),
        "tile": ({"tile": {"y": 8, "x": 5}}, "tile of 'y' .* got: 8; expected: 4"),
    }


@pytest.mark.parametrize("what", ["kernel", "input", "chunks", "dtype", "codec", "tile"])
def test_a_job_that_differs_is_refused_with_the_difference(tmp_path: Path, what: str) -> None:
    this = job(tmp_path)
    fail(this)
    mend(tmp_path)
    options, text = differences(tmp_path)[what]
    with pytest.raises(ResumeError, match=text) as caught:
        tilewise.run(replace(this, **options), resume=True)
    assert "--overwrite" in caught.value.do
    assert tilewise.run(this, resume=True).resumed > 0
    check_complete(tmp_path)


def test_budget_workers_and_what_is_done_about_failures_may_differ(tmp_path: Path) -> None:
    this = job(tmp_path, tile={"y": 8, "x": 10})
    fail(this)
    mend(tmp_path)
    other = replace(
        this, tile="auto", retries=7, on_error="skip", memory_limit="6 GiB", cluster=tilewise.Cluster(kind="processes")
    )
    report = tilewise.run(other, resume=True)
    assert report.plan.grid.tile_shape == (8, 10)
    check_complete(tmp_path)


def test_a_budget_too_small_for_the_tile_is_refused(tmp_path: Path) -> None:
    this = job(tmp_path)
    fail(this)
    with pytest.raises(BudgetError):
        tilewise.run(replace(this, tile="auto", memory_limit="20 MB"), resume=True)


def test_resume_and_overwrite_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="overwrite and resume"):
        tilewise.run(job(tmp_path), resume=True, overwrite=True)
    with pytest.raises(ParameterError, match="redo is given"):
        tilewise.run(job(tmp_path), redo=[3])


def test_an_output_that_was_about_to_be_replaced_is_gone_on_with(tmp_path: Path) -> None:
    """A run that replaces another is killed after it has said so, and before it has touched anything."""
    this = job(tmp_path)
    fail(this)
    record = RunRecord.load(this.sidecar_folder)
    assert record is not None
    RunRecord.begin("new", this.output.store, {}, record).save(this.sidecar_folder)
    mend(tmp_path)
    with pytest.raises(OutputExistsError, match="--resume"):
        tilewise.run(this)
    assert tilewise.run(this, resume=True).resumed > 0
    check_complete(tmp_path)


def test_a_damaged_record_of_the_run_is_made_again(tmp_path: Path) -> None:
    this = job(tmp_path)
    fail(this)
    mend(tmp_path)
    this.sidecar_folder.write_text("run.json", "{")
    report = tilewise.run(this, resume=True)
    assert report.resumed > 0
    assert any("are not known" in text for text in report.warnings)
    check_complete(tmp_path)


def test_a_place_may_be_written_in_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = job(tmp_path)
    fail(this)
    mend(tmp_path)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert tilewise.run(replace(this, inputs={"x": "../in.zarr"}, output="../out.zarr"), resume=True).resumed > 0
    check_complete(tmp_path)


def test_tiles_that_are_done_can_be_done_once_more(tmp_path: Path) -> None:
    mend(tmp_path)
    this = job(tmp_path)
    tilewise.run(this)
    report = tilewise.run(this, resume=True, redo=[4, 17])
    assert (report.tiles, report.resumed) == (2, TILES - 2)
    check_complete(tmp_path)


def test_a_refused_run_leaves_what_was_to_be_done_again_as_it_was(tmp_path: Path) -> None:
    mend(tmp_path)
    this = job(tmp_path)
    tilewise.run(this)
    with pytest.raises(BudgetError):
        tilewise.run(replace(this, memory_limit="64 MiB"), resume=True, redo=[4, 17])
    assert Ledger.open(this.sidecar_folder).totals().states[TileState.DONE] == TILES


def test_a_run_that_was_killed_while_it_made_the_output_begins_anew(tmp_path: Path) -> None:
    this = job(tmp_path)
    fail(this)
    mend(tmp_path)
    record = RunRecord.load(this.sidecar_folder)
    assert record is not None
    record.at("creating").save(this.sidecar_folder)
    (tmp_path / "out.zarr" / "copy" / "zarr.json").unlink()
    report = tilewise.run(this, resume=True)
    assert (report.tiles, report.resumed) == (TILES, 0)
    check_complete(tmp_path)


def test_a_failing_tile_is_skipped_recorded_and_tried_again(tmp_path: Path) -> None:
    this = job(tmp_path, on_error="skip")
    report = tilewise.run(this)
    assert (report.tiles, report.failed) == (TILES - 1, 1)
    assert list(Ledger.open(this.sidecar_folder).numbers(TileState.FAILED)) == [15]
    found = json.loads(this.sidecar_folder.read_text("failures.json") or "")
    assert "ArithmeticError: found" in json.dumps(found)
    missing = stores.read(tmp_path / "out.zarr", "copy")
    assert np.isnan(missing[:, 8:12, 15:20]).all()
    assert np.isnan(missing).sum() == 3 * 4 * 5
    mend(tmp_path)
    report = tilewise.run(this, resume=True)
    assert (report.tiles, report.resumed, report.failed) == (1, TILES - 1, 0)
    check_complete(tmp_path)
    assert list(Ledger.open(this.sidecar_folder).numbers(TileState.FAILED)) == []


def test_a_run_that_begins_anew_forgets_what_failed(tmp_path: Path) -> None:
    this = job(tmp_path, on_error="skip")
    tilewise.run(this)
    mend(tmp_path)
    report = tilewise.run(this, overwrite=True)
    assert (report.tiles, report.resumed, report.failed) == (TILES, 0, 0)
    assert "failures.json" not in this.sidecar_folder.names()


def test_the_ledger_is_a_map_of_the_run(tmp_path: Path) -> None:
    this = job(tmp_path, on_error="skip")
    tilewise.run(this)
    with xr.open_zarr(this.sidecar_folder.child("ledger.zarr").place, consolidated=False) as opened:
        state = opened["state"]
        assert dict(state.sizes) == {"y": 5, "x": 6}
        assert int((state == TileState.DONE).sum()) == TILES - 1
        assert int(state[2, 3]) == TileState.FAILED


@pytest.mark.parametrize("where", ["memory", "numpy"])
def test_inputs_in_memory_are_written_down_once_more(tmp_path: Path, where: str) -> None:
    data = xr.DataArray(CUBE, dims=DIMS)
    source = data if where == "memory" else tilewise.Input(store=CUBE, dims=DIMS)
    output = tilewise.Output(store=str(tmp_path / "out.zarr"), chunks={"y": 4, "x": 5})
    this = job(tmp_path, inputs={"x": source}, output=output)
    fail(this)
    mend(tmp_path)
    assert tilewise.run(this, resume=True).resumed > 0
    check_complete(tmp_path)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    kernel = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"))
    this = job(tmp_path, kernel)
    # Its trial of one pixel waits as well.
    first = threading.Thread(target=tilewise.run, args=(this,))
    first.start()
    try:
        until((tmp_path / "began").exists)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(LockedError) as caught:
                tilewise.run(this, **options)
            assert "--force-unlock" in str(caught.value)
    finally:
        (tmp_path / "go").touch()
        first.join()
    check_complete(tmp_path)


def test_a_run_that_is_taken_over_before_it_writes_leaves_the_output_alone(tmp_path: Path) -> None:
    slow = job(tmp_path, Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go")))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tilewise.run, slow)  # waits where its kernel is tried, as it may wait while it probes
        try:
            until((tmp_path / "began").exists)
            taken = tilewise.run(job(tmp_path, Copy(dim="band")), force_unlock=True)
        finally:
            (tmp_path / "go").touch()
        with pytest.raises(LockedError, match="no longer this run's"):
            first.result()
    assert taken.tiles == TILES
    check_complete(tmp_path)
    assert info(str(tmp_path / "out.zarr")).state == "finished"


def test_an_output_has_one_lock_wherever_records_lie(tmp_path: Path) -> None:
    kernel = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"))
    first = threading.Thread(target=tilewise.run, args=(job(tmp_path, kernel, sidecar=str(tmp_path / "a")),))
    first.start()
    try:
        until((tmp_path / "began").exists)
        for sidecar in (None, str(tmp_path / "b")):
            with pytest.raises(LockedError):
                tilewise.run(job(tmp_path, kernel, sidecar=sidecar), overwrite=True)
    finally:
        (tmp_path / "go").touch()
        first.join()
    check_complete(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("out*")) == ["out.zarr"]


def test_records_of_an_unfinished_run_are_not_taken_for_another_output(tmp_path: Path) -> None:
    sidecar = str(tmp_path / "records")
    this = job(tmp_path, sidecar=sidecar)
    fail(this)
    other = replace(this, output=tilewise.Output(store=str(tmp_path / "other.zarr")))
    with pytest.raises(OutputExistsError, match="unfinished run on another output"):
        tilewise.run(other)
    (tmp_path / "records" / ".DS_Store").touch()
    mend(tmp_path)
    assert tilewise.run(this, resume=True).resumed > 0
    check_complete(tmp_path)


@pytest.mark.parametrize(("code", "dtype"), [(42, "uint8"), (300, "int16"), (-1, "int16")])
def test_a_kernel_may_have_codes_of_its_own(tmp_path: Path, code: int, dtype: str) -> None:
    this = job(tmp_path, OwnStatus(dim="band", code=code, dtype=dtype))
    assert tilewise.run(this).statuses == {"other": CUBE[0].size}
    assert tilewise.run(this, resume=True).statuses == {"other": CUBE[0].size}


def test_what_had_no_time_to_be_recorded_is_recorded_later(tmp_path: Path) -> None:
    this = job(tmp_path, Copy(dim="band"))
    tilewise.run(this)
    record = RunRecord.load(this.sidecar_folder)
    assert record is not None
    record.at("running").save(this.sidecar_folder)
    this.sidecar_folder.remove_text("report.json")
    assert tilewise.run(this, resume=True).resumed == TILES
    assert RunRecord.load(this.sidecar_folder) == record
    assert this.sidecar_folder.read_text("report.json")


def test_no_report_speaks_for_a_run_that_fails(tmp_path: Path) -> None:
    mend(tmp_path)
    this = job(tmp_path)
    tilewise.run(this)
    (tmp_path / "mended").unlink()
    with pytest.raises(TileError):
        tilewise.run(this, resume=True, redo=range(TILES))
    assert "report.json" not in this.sidecar_folder.names()


@pytest.mark.parametrize("number", [-1, TILES])
def test_tiles_that_there_are_not_cannot_be_redone(tmp_path: Path, number: int) -> None:
    this = job(tmp_path, Copy(dim="band"))
    tilewise.run(this)
    with pytest.raises(ParameterError, match=f"no tile of that number; got: {number}; expected: 0 to 29"):
        tilewise.run(this, resume=True, redo=[number])


def test_a_run_that_was_killed_is_resumed_at_once(tmp_path: Path) -> None:
    """The process that runs the job dies with all its threads: nobody tells anybody, and its lock stays."""
    kernel = DiesAt(dim="band", at=AT)
    this = job(tmp_path, kernel)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_resuming as t
from pathlib import Path
t.tilewise.run(t.job(Path({str(tmp_path)!r}), t.DiesAt(dim="band", at=t.AT)))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert this.sidecar_folder.read_text("lock.json")
    with pytest.raises(OutputExistsError):
        tilewise.run(this)
    stray = tmp_path / "out.zarr" / "copy" / "c" / "0" / "0" / f"0.{32 * 'a'}.partial"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.touch()
    # The same job, but for the fault: a kernel that differs is refused.
    with pytest.raises(ResumeError, match="kernel"):
        tilewise.run(replace(this, kernel=Copy(dim="band")), resume=True)
    record = RunRecord.load(this.sidecar_folder)
    assert record is not None
    assert record.stage == "running"
    assert not stray.exists()


@pytest.mark.parametrize("name", ["state/c/0/0", "zarr.json"])
def test_a_damaged_ledger_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    this = job(tmp_path)
    fail(this)
    mend(tmp_path)
    target = Path(this.sidecar_folder.child("ledger.zarr").place) / name
    (target / "zarr.json" if target.is_dir() else target).write_text("{")
    with pytest.raises(TilewiseError) as caught:
        tilewise.run(this, resume=True)
    assert isinstance(caught.value, ResumeError)
    assert caught.value.do
    assert any((tmp_path / "out.zarr").iterdir())


def test_a_run_that_finds_no_room_for_its_records_says_so_and_can_be_begun_again(tmp_path: Path) -> None:
    mine = job(tmp_path, Copy(dim="band"), output=faulty.url(tmp_path / "out.zarr"))
    (tmp_path / "on").touch()
    with (
        faulty.faults(folder=str(tmp_path), room=8),
        pytest.raises(StoreFullError, match="no space is left for the output and its records"),
    ):
        tilewise.run(mine)
    with faulty.faults():
        tilewise.run(mine, resume=True)
    check_complete(tmp_path)
