"""Probes of real jobs: on every local kind of worker, without a trace."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stores
import tilewise
from faults import FailsAt
from tilewise import trial
from tilewise.cli import commands
from tilewise.errors import DamagedDataError, LockedError, TileError
from tilewise.limits import probe_grid, probe_numbers
from tilewise.locking import hold
from tilewise.opened import forget
from tilewise.program import Program
from tilewise.store import create
from tilewise.surveys import survey

CUBE = np.random.default_rng(0).standard_normal((2, 64, 64)).astype("float32")


#: As Zarr v3 metadata writes them.
CODECS = {
    "gzip": {"level": 1},
    "blosc": {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle"},
    "zstd": {"level": 0, "checksum": False},
}


def job_of(folder: Path, kind: Any = "threads", **options: Any) -> tilewise.Job:
    path = stores.write(folder / "in.zarr", {"x": (("c", "y", "x"), CUBE)}, chunks={"y": 8, "x": 8})
    output = tilewise.Output(store=str(folder / "out.zarr"), encoding={"norm": {"dtype": "int16", "scale_factor": 0.1}})
    options = {"kernel": tilewise.Norm(dim="c"), "output": output, "tile": {"y": 8, "x": 16}, **options}
    return tilewise.Job(inputs={"x": path}, cluster=tilewise.Cluster(kind=kind, workers=2), **options)


@pytest.mark.parametrize("kind", ["threads", "processes", "local"])
def test_a_probe_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    plan, probe = tilewise.probe(job_of(tmp_path, kind))
    assert 1 <= probe.tiles <= 2
    assert min(probe.read, probe.compute, probe.write, probe.decode, probe.encode) > 0
    assert probe.eta(plan) == pytest.approx(plan.tiles * probe.seconds / 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]


@pytest.mark.parametrize(("chunk", "ragged"), [(8, 1), (32, 0)])
def test_bytes_by_hand_are_those_that_were_decoded_and_encoded(tmp_path: Path, chunk: int, ragged: int) -> None:
    side = 64 + ragged
    cube = np.zeros((2, side, side), "float32")
    path = stores.write(tmp_path / "in.zarr", {"x": (("c", "y", "x"), cube)}, chunks={"y": chunk, "x": chunk})
    output = tilewise.Output(store=str(tmp_path / "out.zarr"), chunks={"y": 8, "x": 8})
    job = tilewise.Job(kernel=tilewise.Norm(dim="c"), inputs={"x": path}, output=output, tile={"y": 8, "x": 16})
    found = survey(job)
    create(output, found.work.targets, [], {})
    work, plan = found.work, found.plan
    program = Program("probe", job.kernel, work.signature, work.sources, work.targets, plan.grid, plan.panel)
    aside = replace(program, grid=probe_grid(work, plan))
    try:
        seen = trial.probe(program.ticket(), aside.ticket(), probe_numbers(aside.grid))
    finally:
        forget("probe")
    # A tile is two chunks of 2 x 8 x 8 float32, or part of one of 2 x 32 x 32; never the sliver at the edge.
    assert seen.nbytes == (2 * 8 * 16 * 4 if chunk == 8 else 2 * 32 * 32 * 4, 8 * 16 * 4)
    assert min(seen.by_hand) > 0


def test_a_resumed_run_with_little_left_is_not_probed(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert tilewise.run(job).limit is not None
    report = tilewise.run(job, resume=True, redo=[3])
    assert (report.tiles, report.limit) == (1, None)


def test_inputs_in_memory_are_probed_too(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path), inputs={"x": tilewise.Input(store=CUBE, dims=("c", "y", "x"))}, tile="auto")
    assert tilewise.probe(job)[1].seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]


def test_the_command_tells_how_long_all_would_take(tmp_path: Path) -> None:
    job_of(tmp_path)
    (tmp_path / "job.yaml").write_text(
        f"kernel: {{name: norm, dim: c}}\ninputs: {{x: {tmp_path}/in.zarr}}\noutput: {tmp_path}/out.zarr\n"
        "cluster: {kind: threads}\n"
    )
    text = CliRunner().invoke(commands, ["plan", str(tmp_path / "job.yaml"), "--probe"], catch_exceptions=False)
    assert "most of it" in text.stdout
    done = CliRunner().invoke(commands, ["plan", str(tmp_path / "job.yaml"), "--probe", "--json"])
    found = json.loads(done.stdout)["probe"]
    assert found["eta"] > 0
    assert not (tmp_path / "out.zarr").exists()


def test_a_run_that_is_long_enough_says_how_close_it_came_to_its_limit(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    report = tilewise.run(job)
    assert report.limit is not None
    assert report.limit > 0
    assert report.efficiency == report.limit / report.seconds
    assert set(report.phases) == {"read", "compute", "write", "scheduler", "wait"}
    assert sum(report.phases.values()) == pytest.approx(2 * report.seconds, rel=0.05)
    assert report.to_dict()["efficiency"] == report.efficiency
    assert tilewise.run(replace(job, tile={"y": 64, "x": 64}), overwrite=True).limit is None


def test_a_probe_that_fails_is_an_error_by_itself_and_a_warning_in_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cube = CUBE.copy()
    cube[0, (10, 30), (50, 60)] = 99  # in tiles 7 and 15 of 32: those that are computed
    path = stores.write(tmp_path / "bad.zarr", {"x": (("c", "y", "x"), cube)}, chunks={"y": 8, "x": 8})
    job = job_of(tmp_path, kernel=FailsAt(dim="c", at=99.0), output=str(tmp_path / "out.zarr"), on_error="skip")
    job = replace(job, inputs={"x": path})
    with pytest.raises(TileError, match=r"a tile of the probe \(y=24:32, x=48:64\) failed: ArithmeticError"):
        tilewise.probe(job)
    report = tilewise.run(job)
    assert (report.failed, report.limit) == (2, None)
    assert "goes on without a probe" in caplog.text


@pytest.mark.parametrize(("y", "x"), [(10, 50), (30, 60)])
def test_a_bad_tile_among_those_of_a_probe_does_not_spoil_it(tmp_path: Path, y: int, x: int) -> None:
    """Of 32 tiles, 7 and 15 are computed."""
    job = job_of(tmp_path, kernel=FailsAt(dim="c", at=float(CUBE[0, y, x])), output=str(tmp_path / "out.zarr"))
    assert tilewise.probe(job)[1].tiles == 1
    report = tilewise.run(replace(job, on_error="skip"))
    assert report.failed == 1
    assert report.limit is not None


@pytest.mark.parametrize("codec", [None, "gzip", "blosc", "zstd"])
@pytest.mark.parametrize("all_by_hand", [False, True])
def test_a_damaged_chunk_costs_its_own_tile_and_a_probe_that_has_no_other(
    tmp_path: Path, codec: str | None, all_by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(tmp_path, output=str(tmp_path / "out.zarr"), on_error="skip", retries=0)
    codecs = {"compressors": ({"name": codec, "configuration": CODECS[codec]},) if codec else None}
    path = stores.write(tmp_path / "bad.zarr", {"x": (("c", "y", "x"), CUBE)}, chunks={"y": 8, "x": 8}, **codecs)
    job = replace(job, inputs={"x": path})
    for chunk in ("7/7", "5/7") if all_by_hand else ("7/7",):  # of the last tile, and of 23, the other one by hand
        os.truncate(tmp_path / "bad.zarr" / "x" / "c" / "0" / chunk, 50)
    if all_by_hand:
        with pytest.raises(DamagedDataError, match=r"input 'x' is damaged: chunk .*x/c/0/7/7"):
            tilewise.probe(job)
    report = tilewise.run(job)
    assert (report.tiles, report.failed) == ((30, 2) if all_by_hand else (31, 1))
    assert (report.limit is None) == all_by_hand == ("goes on without a probe" in caplog.text)


def test_a_probe_removes_what_one_that_was_killed_has_left(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    left = job.sidecar_folder.child("scratch-0123456789ab")
    left.write_text("probe.zarr", "half")
    tilewise.probe(job)
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]


def test_a_probe_beside_a_run_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with hold(job.locked_folder, "other"), pytest.raises(LockedError):
        tilewise.probe(job)
