from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tilewise import machine
from tilewise.errors import ParameterError


@pytest.mark.parametrize(("text", "count"), [("1 GiB", 1 << 30), ("800MB", 800_000_000), (5, 5), ("1.5 kB", 1500)])
def test_bytes_are_numbers_or_text(text: object, count: int) -> None:
    assert machine.parse_bytes(text, "memory_limit") == count  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "three", "-1 GB", 0, True, None, [1], "1e400 GiB", float("inf"), float("nan")])
def test_what_is_no_number_of_bytes_is_refused(text: object) -> None:
    with pytest.raises(ParameterError, match="memory_limit is not a number of bytes"):
        machine.parse_bytes(text, "memory_limit")  # type: ignore[arg-type]


def cgroup(folder: Path, names: Sequence[str], *, limit: object, usage: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 17\n{names[2]} {cached}\n")


#: Version of cgroups: what a process is in, folder of the root, names of the files.
CGROUPS = {
    2: ("0::/batch/job\n", ".", ("memory.max", "memory.current", "inactive_file")),
    1: (
        "5:cpu,cpuacct:/elsewhere\n4:memory:/batch/job\n",
        "memory",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ),
}


@pytest.mark.parametrize("version", CGROUPS)
def test_the_cgroups_of_the_process_are_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    inside, root, names = CGROUPS[version]
    membership, outer = tmp_path / "self", tmp_path / root / "batch"
    membership.write_text(inside)
    monkeypatch.setattr(machine, "_MEMBERSHIP", membership)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    unlimited = machine.available_memory()  # no such folders: another namespace
    cgroup(outer / "job", names, limit="max", usage=1000)
    assert machine.available_memory() > 1000
    cgroup(outer / "job", names, limit=5000, usage=1000)
    assert machine.available_memory() == 4000 < unlimited
    cgroup(outer, names, limit=6000, usage=2500)  # of all jobs together
    assert machine.available_memory() == 3500
    cgroup(outer, names, limit=6000, usage=2500, cached=300)  # what files have left there can be dropped
    assert machine.available_memory() == 3800
    cgroup(outer / "job", names, limit=500, usage=1000, cached=100)
    assert machine.available_memory() == 0


def test_a_container_is_the_root_of_its_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership, folder = tmp_path / "self", tmp_path / "cgroup"
    monkeypatch.setattr(machine, "_MEMBERSHIP", membership)
    monkeypatch.setattr(machine, "_CGROUPS", folder)
    cgroup(folder, CGROUPS[2][2], limit=5000, usage=1000)
    for path in ("/", "/of/the/host", "/../../outside"):
        membership.write_text(f"0::{path}\n")
        assert machine.available_memory() == 4000
    membership.unlink()
    assert machine.available_memory() == 4000


def test_the_peak_starts_anew() -> None:
    # A map of its own: what an allocator is given back may stay in the process.
    with mmap.mmap(-1, 40 << 20) as block:
        np.frombuffer(block, dtype="uint8").fill(1)
        before = machine.peak()
    if not machine.reset_peak():
        pytest.skip("this platform cannot reset the peak of a process")
    assert machine.peak() < before
    assert machine.resident() <= machine.peak()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_the_allocator_takes_its_settings() -> None:
    # In a process of its own: the settings last.
    code = "from tilewise import machine; print(machine.set_allocator())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
