"""`scripts/slurm_job.sh` for real: scheduler and workers as processes of their own, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

import clusters
import stores
import tilewise

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "slurm_job.sh"
CUBE = np.random.default_rng(3).standard_normal((3, 20, 30)).astype("float32")
JOB = """
kernel: {name: norm, dim: band}
inputs: {x: in.zarr}
output: out.zarr
tile: {y: 8, x: 10}
"""
#: What srun does for the script, on one machine: as many processes as it is told, together, and their end with its own.
SRUN = """#!/usr/bin/env bash
count=1
while [[ "$1" == --* ]]; do
    case "$1" in --ntasks=*) count="${1#--ntasks=}" ;; esac
    shift
done
trap 'kill $(jobs -p) 2>/dev/null' TERM
for ((i = 0; i < count; i++)); do "$@" & done
wait
wait
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 8, "x": 10})
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "bin").mkdir()
    # The commands of the environment that runs the tests, whatever is installed as them.
    for name, module in (("tilewise", "tilewise.cli"), ("dask", "dask")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" -m {module} "$@"\n')
        command.chmod(0o755)
    return tmp_path


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": clusters.PATH, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **environment}
    env = {key: value for key, value in env.items() if not key.startswith("SLURM_") or key in environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(["bash", str(SCRIPT), *arguments], cwd=folder, env=env, **pipes)  # type: ignore[call-overload,no-any-return]


def left(folder: Path) -> list[str]:
    """Processes that still know of the folder."""
    found = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    return [" ".join(command) for command in found if any(f"{folder}/scheduler-" in part for part in command)]


@pytest.mark.parametrize("slurm", [False, True])
def test_a_job_runs_on_a_cluster_of_its_own(folder: Path, slurm: bool) -> None:
    environment = {"WORKERS": "2", "TIMEOUT": "5 min"}
    if slurm:
        (folder / "bin" / "srun").write_text(SRUN)
        (folder / "bin" / "srun").chmod(0o755)
        environment = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_MEM_PER_CPU": "2000"}
    process = start(folder, "job.yaml", "--set", "kernel.ord=1", "--json", **environment)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="band", ord=1),
        inputs={"x": str(folder / "in.zarr")},
        output=str(folder / "threads.zarr"),
        tile={"y": 8, "x": 10},
        cluster=tilewise.Cluster(kind="threads"),
    )
    threads = tilewise.run(job)
    assert stores.read(folder / "out.zarr", "norm").tobytes() == stores.read(threads.output, "norm").tobytes()
    assert '"processes": 2' in out
    assert left(folder) == []
    assert not list(folder.glob("scheduler-*.json"))


def test_its_exit_code_is_that_of_the_run(folder: Path) -> None:
    process = start(folder, "job.yaml", "--set", "kernel.dim=bnd", WORKERS="1")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 2
    assert "no dimension 'bnd'" in err
    assert left(folder) == []
    assert start(folder).communicate(timeout=60)[1].startswith("usage: ")


def test_a_signal_takes_everything_down(folder: Path) -> None:
    slow = ["kernel.name=faults:Waits", f"kernel.began={folder / 'began'}", f"kernel.go={folder / 'go'}"]
    process = start(folder, "job.yaml", *(part for item in slow for part in ("--set", item)), WORKERS="1")
    clusters.until(lambda: (folder / "began").exists() or process.poll() is not None, 250)
    process.send_signal(signal.SIGTERM)
    clusters.until(lambda: process.poll() is not None or not (folder / "go").touch(), 60)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "stopped by SIGTERM" in err
    assert left(folder) == []
