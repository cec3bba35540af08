"""Real schedulers and workers of Dask as processes of their own, on loopback or where they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tilewise

TESTS = Path(__file__).resolve().parent
#: What workers import from: these tests, and the package that is tested.
PATH = os.pathsep.join([str(TESTS), str(Path(tilewise.__file__).parents[1])])


def until(true: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What a condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


@contextmanager
def process(
    command: Sequence[str], log: Path, *, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask, ended with its children at the end; `before` is put before its command."""
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "2", **(environment or {})}
    with log.open("ab") as out:
        started = subprocess.Popen(
            [*before, sys.executable, "-m", "dask", *command], stdout=out, stderr=out, env=env, cwd=log.parent
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def scheduler(
    folder: Path, *, host: str = "127.0.0.1", before: Sequence[str] = ()
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A scheduler: the file with its address, and its process."""
    file = folder / "scheduler.json"
    command = ["scheduler", "--scheduler-file", str(file), "--host", host, "--port", "0", "--no-dashboard"]
    with process(command, folder / "scheduler.log", before=before) as started:
        until(lambda: file.exists() and file.read_text().strip())
        yield file, started


@contextmanager
def worker(
    file: Path,
    *options: str,
    host: str = "127.0.0.1",
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker without a nanny, with one thread and no limit of memory unless options say otherwise."""
    command = ["worker", "--scheduler-file", str(file), "--host", host, "--no-dashboard", "--no-nanny"]
    command += ["--local-directory", str(file.parent)]
    given = {option for option in options if option.startswith("--")}
    for option, value in (("--nthreads", "1"), ("--memory-limit", "0")):
        command += [] if option in given else [option, value]
    log = file.parent / "workers.log"
    with process([*command, *options], log, before=before, environment=environment) as started:
        yield started


@contextmanager
def cluster(folder: Path, workers: int, *options: str) -> Iterator[Path]:
    """A scheduler and some workers, without waiting for these: its file."""
    with ExitStack() as stack:
        file, _ = stack.enter_context(scheduler(folder))
        for _ in range(workers):
            stack.enter_context(worker(file, *options))
        yield file


def address(file: Path) -> str:
    return str(json.loads(file.read_text())["address"])
