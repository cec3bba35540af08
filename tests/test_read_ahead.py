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
from faults import Copy, FailsAt, ShortOfMemory
from s3_server import S3Server
from tilewise import places
from tilewise.errors import BudgetError, ParameterError, TileError
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
    job = job_of(tmp_path, FailsAt(dim="band", at=float(CUBE[0, 1, 11])))
    with pytest.raises(TileError, match=r"tile 1 \("):
        tilewise.run(job)
    report = tilewise.run(replace(job, on_error="skip"), resume=True)
    assert report.failed == 1
    assert 3 <= report.resumed <= 3 + 2 * 12  # of the first block those beside, and what the other worker was given
    kept = np.isfinite(result(tmp_path))
    assert not kept[:, :5, 10:20].any()
    assert np.count_nonzero(~kept) == 3 * 50


def test_tiles_for_which_memory_is_short_are_done_alone(tmp_path: Path) -> None:
    report = tilewise.run(job_of(tmp_path, ShortOfMemory(dim="band", once=str(tmp_path / "once"))))
    assert (report.tiles, report.shrunk) == (48, 0)
    assert report.retries >= 1
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_memory_is_planned_for_every_tile_in_work(tmp_path: Path) -> None:
    none, some = (plan(job_of(tmp_path / str(n), read_ahead=n)) for n in (0, 3))
    assert some.memory.slots == 4 * none.memory.slots
    assert some.memory.peak - none.memory.peak == 3 * none.slots * none.memory.per_slot
    assert plan(job_of(tmp_path / "auto", read_ahead="auto")).memory == none.memory
    with pytest.raises(BudgetError):
        plan(job_of(tmp_path / "much", read_ahead=16, memory_limit=none.memory.peak + none.memory.per_slot))


def test_read_ahead_takes_what_memory_is_left(tmp_path: Path) -> None:
    found = plan(job_of(tmp_path, read_ahead=0))
    each = found.slots * found.memory.per_slot
    for wanted, room, given in ((3, 10 * each, 3), (3, 2 * each, 2), (3, each - 1, 0), (0, 10 * each, 0)):
        assert found.with_read_ahead(wanted, found.memory.peak + room).read_ahead == given


@pytest.mark.parametrize("wrong", [-1, 17, 1.5, True, "all"])
def test_what_is_no_count_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="read_ahead is neither auto nor a count.*0 to 16"):
        job_of(tmp_path, read_ahead=wrong)


def test_a_store_that_is_waited_for_is_read_ahead_of_by_itself(s3: S3Server, tmp_path: Path) -> None:
    s3.make_bucket("ahead")
    job = job_of(tmp_path, read_ahead="auto")
    assert tilewise.run(job).plan.read_ahead == 0
    report = tilewise.run(replace(job, output=tilewise.Output(store="s3://ahead/out.zarr")))
    assert report.plan.read_ahead in range(9)
    stored = zarr.open_array(places.zarr_store("s3://ahead/out.zarr", read_only=True), path="copy", mode="r")
    np.testing.assert_array_equal(stored[...], CUBE)
