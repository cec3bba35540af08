"""Two machines as far as the network goes: scheduler and a worker in one namespace, client and a worker in another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import clusters
import stores
import tilewise

CUBE = np.random.default_rng(5).standard_normal((3, 20, 30)).astype("float32")
#: Of a network for documentation (RFC 5737): nothing else is there.
THERE, HERE = "198.51.100.1", "198.51.100.2"
SCRIPT = """
import tilewise

job = tilewise.Job(
    kernel=tilewise.Norm(dim="band"), inputs={{"x": "in.zarr"}}, output="out.zarr", tile={{"y": 8, "x": 10}},
    cluster=tilewise.Cluster(kind="address", address="{address}", wait_for=2, timeout="2 min"),
)
report = tilewise.run(job)
print(report.plan.processes, len(report.warnings))
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces that see each other and nothing else; removed at the end."""
    if not shutil.which("ip"):
        pytest.skip("there is no ip command here")
    there, here = (f"tilewise-{os.getpid()}-{n}" for n in "ab")
    try:
        try:
            ip("netns", "add", there)
            ip("netns", "add", here)
            ip("link", "add", "tw-a", "netns", there, "type", "veth", "peer", "name", "tw-b", "netns", here)
            for name, device, address in ((there, "tw-a", THERE), (here, "tw-b", HERE)):
                ip("-n", name, "address", "add", f"{address}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces can be made here: {error.stderr.decode().strip()}")
        yield there, here
    finally:
        for name in (there, here):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_a_job_runs_over_a_network(tmp_path: Path, namespaces: tuple[str, str]) -> None:
    there, here = (["ip", "netns", "exec", name] for name in namespaces)
    source = stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 8, "x": 10})
    with (
        clusters.scheduler(tmp_path, host=THERE, before=there) as (file, _),
        clusters.worker(file, host=THERE, before=there),
        clusters.worker(file, host=HERE, before=here),
    ):
        script = SCRIPT.format(address=clusters.address(file))
        done = subprocess.run(
            [*here, sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": clusters.PATH},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "0"]
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": source},
        output=str(tmp_path / "threads.zarr"),
        tile={"y": 8, "x": 10},
        cluster=tilewise.Cluster(kind="threads"),
    )
    threads = stores.read(tilewise.run(job).output, "norm")
    assert stores.read(tmp_path / "out.zarr", "norm").tobytes() == threads.tobytes()
