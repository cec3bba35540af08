"""Real schedulers and workers of Dask as processes of their own, on loopback or where they are told.

Loading Dask, torch and the rest takes a process several seconds, and that is not what most tests are about: where it is
not, processes are forked from one that has loaded them (`FORKS`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import tilewise
from tilewise.workers import environment as environment_of_this_process

TESTS = Path(__file__).resolve().parent
#: What workers import from: these tests, and the package that is tested.
PATH = os.pathsep.join([str(TESTS), str(Path(tilewise.__file__).parents[1])])
#: Of every process of Dask here.
ENVIRONMENT = {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "2"}
Process = subprocess.Popen[bytes] | ForkServerProcess
#: Makes processes by a fork of one that has loaded what they need; that one runs nothing else, and has no threads.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["clusters", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "tilewise.engine", "xarray"]
)


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
    """A process of Dask that loads everything itself, ended at the end; `before` is put before its command."""
    env = {**os.environ, **ENVIRONMENT, **(environment or {})}
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


def forked(function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that runs a function of a module that it can import, with everything loaded."""
    started = FORKS.Process(target=function, args=arguments)
    with environment_of_this_process(ENVIRONMENT):  # which the one that forks keeps
        started.start()
    return started


@contextmanager
def forked_dask(command: Sequence[str], log: Path) -> Iterator[ForkServerProcess]:
    """A process of Dask with everything loaded, ended at the end."""
    started = forked(_dask, command, log)
    try:
        yield started
    finally:
        started.terminate()
        started.join(20)
        if started.is_alive():
            started.kill()
            started.join()


def _dask(command: Sequence[str], log: Path) -> None:
    """What `python -m dask` does with a command."""
    from dask.cli import run_cli

    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(log.parent)
    sys.argv = ["dask", *command]
    run_cli()


@contextmanager
def scheduler(
    folder: Path, *, host: str = "127.0.0.1", before: Sequence[str] | None = None
) -> Iterator[tuple[Path, Process]]:
    """A scheduler: the file with its address, and its process; forked unless there is a `before`, though empty."""
    file = folder / "scheduler.json"
    command = ["scheduler", "--scheduler-file", str(file), "--host", host, "--port", "0", "--no-dashboard"]
    log = folder / "scheduler.log"
    with forked_dask(command, log) if before is None else process(command, log, before=before) as started:
        until(lambda: file.exists() and file.read_text().strip())
        yield file, started


@contextmanager
def worker(
    file: Path,
    *options: str,
    host: str = "127.0.0.1",
    before: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A worker without a nanny, with one thread and no limit of memory unless options say otherwise.

    It is forked unless it has a `before`, though empty, or an environment of its own.
    """
    command = ["worker", "--scheduler-file", str(file), "--host", host, "--no-dashboard", "--no-nanny"]
    command += ["--local-directory", str(file.parent)]
    given = {option for option in options if option.startswith("--")}
    for option, value in (("--nthreads", "1"), ("--memory-limit", "0")):
        command += [] if option in given else [option, value]
    command, log = [*command, *options], file.parent / "workers.log"
    if before is None and environment is None:
        started = forked_dask(command, log)
    else:
        started = process(command, log, before=before or (), environment=environment)
    with started as found:
        yield found


@contextmanager
def cluster(folder: Path, workers: int, *options: str, before: Sequence[str] | None = None) -> Iterator[Path]:
    """A scheduler and some workers, without waiting for these: its file."""
    with ExitStack() as stack:
        file, _ = stack.enter_context(scheduler(folder, before=before))
        there = [stack.enter_context(worker(file, *options, before=before)) for _ in range(workers)]
        yield file
        for one in there:  # so that one does not wait for the end of another
            one.terminate()


def address(file: Path) -> str:
    return str(json.loads(file.read_text())["address"])
