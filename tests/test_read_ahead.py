"""Read-ahead: the same bits, the same order, failures as without it, and no more memory than is planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import stores
import tilewise
from faults import Copy, FailsAt, NeedsRoom, ShortOfMemory, Waits
from s3_server import S3Server
from tilewise import access
from tilewise.errors import BudgetError, ParameterError, TileError
from tilewise.limits import Probe
from tilewise.memory import ALLOCATOR_KEEPS
from tilewise.probing import refined
from tilewise.records import TileState
from tilewise.surveys import plan

CUBE = np.random.default_rng(0).standard_normal((3, 40, 60)).astype("float32")


def job_of(folder: Path, kernel: tilewise.Kernel | None = None, kind: Any = "threads", **options: Any) -> tilewise.Job:
    path = stores.write(folder / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 5, "x": 10})
    options = {"output": str(folder / "out.zarr"), "tile": {"y": 5, "x": 10}, "read_ahead": 3, **options}
    cluster = tilewise.Cluster(kind=kind, workers=2)
    return tilewise.Job(kernel=kernel or Copy(dim="band"), inputs={"x": path}, cluster=cluster, **options)


def result(folder: Path) -> np.ndarray[Any, Any]:
    return stores.read(str(folder / "out.zarr"), "copy")


@pytest.mark.parametrize("kind", ["threads", "processes", "local"])
def test_all_tiles_are_done_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    report = tilewise.run(job_of(tmp_path, kind=kind))
    assert (report.tiles, report.plan.read_ahead, report.plan.block) == (48, 3, 12)
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_a_tile_that_fails_ends_the_run_and_what_is_in_work_is_recorded(tmp_path: Path) -> None:
    job = job_of(tmp_path, FailsAt(dim="band", at=float(CUBE[0, 1, 11])), sidecar=str(tmp_path / "side"))
    with pytest.raises(TileError, match=r"tile 1 \("):
        tilewise.run(job)
    states = stores.read(f"{job.sidecar}/ledger.zarr", "state").flatten()
    # Of the first block: one had ended, three were in work beside, and the seven others were not begun.
    assert [*states[:12]] == [TileState.DONE, TileState.FAILED, *[TileState.DONE] * 3, *[TileState.PENDING] * 7]
    report = tilewise.run(replace(job, on_error="skip"), resume=True)
    assert (report.failed, report.tiles + report.resumed) == (1, 47)
    kept = np.isfinite(result(tmp_path))
    assert not kept[:, :5, 10:20].any()
    assert np.count_nonzero(~kept) == 3 * 50


def test_tiles_for_which_memory_is_short_are_done_alone(tmp_path: Path) -> None:
    report = tilewise.run(job_of(tmp_path, ShortOfMemory(dim="band", once=str(tmp_path / "once"))))
    assert (report.tiles, report.shrunk) == (48, 0)
    assert report.retries >= 1
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_no_two_tiles_that_are_to_be_alone_wait_for_each_other(tmp_path: Path) -> None:
    report = tilewise.run(job_of(tmp_path, NeedsRoom(dim="band"), tile={"y": 10, "x": 10}))
    assert (report.tiles, report.shrunk) == (24, 0)
    assert report.retries >= 1
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_no_more_tiles_are_computed_at_a_time_than_there_are_slots(tmp_path: Path) -> None:
    began, go, most = (tmp_path / name for name in ("began", "go", "most"))
    go.touch()
    kernel = Waits(dim="band", began=str(began), go=str(go), most=str(most), seconds=0.01)
    report = tilewise.run(job_of(tmp_path, kernel, "processes"))  # new ones: what counts is what they have seen
    assert (report.plan.slots, report.plan.read_ahead) == (1, 3)
    assert most.read_text() == "1"


def test_memory_is_planned_for_every_tile_in_work(tmp_path: Path) -> None:
    none, some = (plan(job_of(tmp_path / str(n), read_ahead=n)) for n in (0, 3))
    assert some.memory.slots == 4 * none.memory.slots
    assert some.memory.peak - none.memory.peak == 3 * none.slots * (none.memory.per_slot + ALLOCATOR_KEEPS)
    assert plan(job_of(tmp_path / "auto", read_ahead="auto")).memory == none.memory
    with pytest.raises(BudgetError):
        plan(job_of(tmp_path / "much", read_ahead=16, memory_limit=none.memory.peak + none.memory.per_slot))


def test_read_ahead_takes_what_memory_is_left(tmp_path: Path) -> None:
    found = plan(job_of(tmp_path, read_ahead=0))
    each = found.slots * (found.memory.per_slot + ALLOCATOR_KEEPS)
    for wanted, room, given in ((3, 10 * each, 3), (3, 2 * each, 2), (3, each - 1, 0), (0, 10 * each, 0)):
        assert found.with_read_ahead(wanted, found.memory.peak + room).read_ahead == given


@pytest.mark.parametrize("wrong", [-1, 17, 1.5, True, "all"])
def test_what_is_no_count_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="read_ahead is neither auto nor a count.*0 to 16"):
        job_of(tmp_path, read_ahead=wrong)


@pytest.mark.parametrize(("waiting", "waits", "chosen"), [(0.7, True, 3), (0.0, True, 0), (0.7, False, 0)])
def test_it_is_chosen_where_stores_are_waited_for(tmp_path: Path, waiting: float, waits: bool, chosen: int) -> None:
    found = plan(job_of(tmp_path, read_ahead="auto"))
    probe = Probe(2, 0.01, 0.01, 0.01, waiting, 20.0, 10.0)
    plenty = found.memory.peak + 100 * found.slots * (found.memory.per_slot + ALLOCATOR_KEEPS)
    assert refined(found, probe, wait_for_stores=waits, most=plenty).read_ahead == chosen
    assert refined(found, probe, wait_for_stores=waits, most=found.memory.peak).read_ahead == 0


def test_bits_behind_a_url_are_the_same_and_local_stores_are_not_read_ahead_of(s3: S3Server, tmp_path: Path) -> None:
    s3.make_bucket("ahead")
    job = job_of(tmp_path, read_ahead="auto", tile={"y": 10, "x": 10})
    assert tilewise.run(job).plan.read_ahead == 0
    for ahead in ("auto", 3):
        tilewise.run(replace(job, read_ahead=ahead, output=tilewise.Output(store=f"s3://ahead/{ahead}.zarr")))
        stored = zarr.open_array(access.zarr_store(f"s3://ahead/{ahead}.zarr", read_only=True), path="copy", mode="r")
        np.testing.assert_array_equal(stored[...], CUBE)
