"""A program run to its end, with its time, processor time and memory, and those of all processes that it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

#: Seconds between two looks at the memory, and between two at which processes there are, which costs more.
LOOK, SEARCH = 0.1, 0.5


@dataclass(frozen=True)
class Ended:
    """A program that has come to its end.

    Attributes
    ----------
    started
        When it was started, by the system's monotonic clock.
    seconds
        Wall time from its start to its end.
    cpu
        Seconds of processor time that all its processes had taken, by the time at which that was seen.
    largest
        Largest resident bytes of any of its processes, as the system keeps them.
    together
        Largest sum of the resident bytes of its processes that was seen; pages that they share count in each.
    text
        What it printed.
    """

    started: float
    seconds: float
    cpu: tuple[tuple[float, float], ...]
    largest: int
    together: int
    text: str

    def cpu_between(self, begin: float, end: float) -> float:
        """Seconds of processor time between two moments, from what was seen next to them."""
        times, taken = zip(*self.cpu, strict=True)
        first, last = np.interp([begin, end], times, taken)
        return float(last - first)


class Watch:
    """Looks at a process and its descendants until it is told to stop: peaks, and the processor time they take."""

    def __init__(self, pid: int) -> None:
        self.largest = 0
        self.together = 0
        self.cpu = [(time.monotonic(), 0.0)]
        self._taken: dict[int, float] = {}
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        searched, pids = float("-inf"), [self._pid]
        while not self._over.wait(LOOK):
            if time.monotonic() - searched > SEARCH:
                pids, searched = _family(self._pid), time.monotonic()
            for pid in pids:
                self._taken[pid] = max(self._taken.get(pid, 0.0), _processor_time(pid))
            self.cpu.append((time.monotonic(), sum(self._taken.values())))
            found = [_resident(pid) for pid in pids]
            self.largest = max([self.largest, *(peak for _, peak in found)])
            self.together = max(self.together, sum(now for now, _ in found))


def _family(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _processor_time(pid: int) -> float:
    """Seconds that a process has taken; 0 where it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _resident(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, now and at their peak; none where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    split = (line.partition(":") for line in lines)
    found = {key: int(rest.split()[0]) << 10 for key, _, rest in split if key in ("VmRSS", "VmHWM")}
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
    """Run a program, watched.

    Raises
    ------
    SystemExit
        It failed; the end of what it said is in the message.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, **(environment or {})})
        watch = Watch(process.pid)
        process.wait()
        seconds = time.monotonic() - started
        watch.stop()
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            said = errors.read().decode(errors="replace")[-3000:]
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
        text = out.read().decode()
    return Ended(started, seconds, tuple(watch.cpu), watch.largest, watch.together, text)
