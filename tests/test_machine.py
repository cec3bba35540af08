from __future__ import annotations

import mmap
import subprocess
import sys
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


def test_the_cgroup_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(machine, "_CGROUP_FILES", ((limit, usage),))
    usage.write_text("1000\n")
    limit.write_text("max\n")
    unlimited = machine.available_memory()
    limit.write_text("5000\n")
    assert machine.available_memory() == 4000 < unlimited
    limit.write_text("500\n")
    assert machine.available_memory() == 0


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
