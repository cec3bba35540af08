from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Any

import pytest
import zarr
from threadpoolctl import threadpool_info

from tasks import facts, refuse, square
from tilewise.clients import open_workers
from tilewise.cluster import Layout
from tilewise.errors import ParameterError
from tilewise.memory import CONCURRENCY
from tilewise.workers import Window, hidden_main

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
