"""Probes of real jobs: on every local kind of worker, without a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stores
import tilewise
from faults import FailsAt
from tilewise.cli import commands
from tilewise.errors import LockedError, TileError
from tilewise.locking import hold

CUBE = np.random.default_rng(0).standard_normal((2, 64, 64)).astype("float32")


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
    job = job_of(tmp_path, kernel=FailsAt(dim="c", at=float(CUBE[0, 20, 40])), output=str(tmp_path / "out.zarr"))
    job = replace(job, on_error="skip")
    with pytest.raises(TileError, match=r"tile 10 .* failed: ArithmeticError"):
        tilewise.probe(job)
    report = tilewise.run(job)
    assert (report.failed, report.limit) == (1, None)
    assert "goes on without a probe" in caplog.text


def test_a_probe_beside_a_run_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with hold(job.locked_folder, "other"), pytest.raises(LockedError):
        tilewise.probe(job)
