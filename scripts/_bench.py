"""What the benchmarks share: alternated times, and the memory that one call takes, measured in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

MIB = 2**20


def alternated(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in every round; the calls take turns, and the first round, which warms up, is left out."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if number:
                times[name].append(time.perf_counter() - begin)
    return times


def ratios(slow: list[float], fast: list[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of the ratios of two calls, round by round."""
    each = [a / b for a, b in zip(slow, fast, strict=True)]
    return statistics.median(each), min(each), max(each)


def peak_rise(call: Callable[[], object]) -> int:
    """Bytes by which the resident set of this process rose at most while `call` ran."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from now
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def peak_in_child(script: str, name: str) -> int:
    """What `script --peak name` prints, run as a process that has done nothing else."""
    done = subprocess.run([sys.executable, script, "--peak", name], check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))
