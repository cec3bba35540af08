from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import zarr
from threadpoolctl import threadpool_info

from tasks import dask_configuration, facts, lives_with_its_parent, refuse, square
from tilewise.clients import open_workers
from tilewise.cluster import Layout
from tilewise.errors import ParameterError
from tilewise.memory import CONCURRENCY
from tilewise.workers import Window, environment, hidden_main

LAYOUTS = {
    "threads": Layout("threads", 1, 2, "cpu"),
    "processes": Layout("processes", 2, 1, "cpu"),
    "local": Layout("local", 2, 1, "cpu"),
}


def GO_ON() -> bool:  # noqa: N802 - a constant
    return True


def window(function: Any, first: int, count: int, name: str) -> Window:
    return Window(name, partial(function, first), count)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_block_of_every_window_comes_back_once(kind: str) -> None:
    before = (zarr.config.get("async.concurrency"), dict(os.environ), dict(vars(sys.modules["__main__"])))
    results: list[int] = []
    with open_workers(LAYOUTS[kind], "test") as workers:
        windows = (window(square, 10 * k, 10, f"test-{kind}-{k}") for k in range(5))
        workers.stream(windows, lambda key, result: results.append(result), GO_ON)
        pid, concurrency, script = workers.call(facts)
        with pytest.raises(ParameterError, match="no; got: 1"):
            workers.call(refuse)
    assert sorted(results) == [n**2 for n in range(50)]
    assert concurrency == CONCURRENCY
    assert (pid == os.getpid()) == (kind == "threads")
    assert kind == "threads" or not script
    assert before == (zarr.config.get("async.concurrency"), dict(os.environ), dict(vars(sys.modules["__main__"])))


def test_a_local_cluster_does_not_watch_itself() -> None:
    before = dask_configuration()
    with open_workers(LAYOUTS["local"], "test") as workers:
        there = workers.call(dask_configuration)
    assert not there["worker"]["profile"]["enabled"]
    assert there["admin"]["tick"]["interval"] == "1s"
    assert dask_configuration() == before


def test_overlapping_local_clusters_leave_the_configuration_alone() -> None:
    before = dask_configuration()
    first, second = (open_workers(LAYOUTS["local"], run) for run in ("first", "second"))
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert dask_configuration() == before
    assert dask_configuration() == before


def test_windows_are_asked_for_as_they_are_needed() -> None:
    asked: list[int] = []
    done: list[int] = []

    def windows() -> Any:
        for k in range(4):
            asked.append(len(done))
            yield window(square, 10 * k, 10, f"test-rolling-{k}")

    with open_workers(LAYOUTS["threads"], "test") as workers:
        workers.stream(windows(), lambda key, result: done.append(result), GO_ON)
    # A window is asked for when all before it are handed out: two tasks for each thread are.
    assert all(10 * k - 4 <= done <= 10 * k for k, done in enumerate(asked))


def test_what_a_watcher_raises_ends_the_stream() -> None:
    def stop(key: Any, result: int) -> None:
        raise KeyError(result)

    with open_workers(LAYOUTS["threads"], "test") as workers, pytest.raises(KeyError):
        workers.stream([window(square, 0, 10, "test-stop")], stop, GO_ON)
    assert not [t for t in threading.enumerate() if t.name.startswith("tilewise")]


def blas_threads() -> dict[str, int]:
    return {i["filepath"]: i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"}


def test_blas_gets_its_threads_back() -> None:
    before = blas_threads()
    with open_workers(LAYOUTS["threads"], "test"):
        assert set(blas_threads().values()) == {1}
    assert blas_threads() == before


def test_the_users_script_is_hidden_and_comes_back() -> None:
    main = sys.modules["__main__"]
    before = dict(vars(main))
    with hidden_main():
        assert not hasattr(main, "__file__")
        assert main.__spec__ is None
    assert dict(vars(main)) == before


def test_the_last_of_several_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_A", "as it was")
    monkeypatch.delenv("TILEWISE_TEST_B", raising=False)
    first = environment({"TILEWISE_TEST_A": "1"}, also=["TILEWISE_TEST_B"])
    second = environment({"TILEWISE_TEST_A": "2", "TILEWISE_TEST_B": "2"})
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert (os.environ["TILEWISE_TEST_A"], os.environ["TILEWISE_TEST_B"]) == ("2", "2")
    assert os.environ["TILEWISE_TEST_A"] == "as it was"
    assert "TILEWISE_TEST_B" not in os.environ


def test_a_worker_process_ends_when_the_one_that_started_it_is_killed() -> None:
    code = "import multiprocessing, tasks; multiprocessing.get_context('spawn').Process(target=tasks.{}).start()"
    command = [sys.executable, "-c", code.format(lives_with_its_parent.__name__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        assert not psutil.wait_procs([worker], timeout=60)[1]
