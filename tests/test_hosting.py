"""A process that hosts runs: settings are counted, and blocks get places."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import zarr
from threadpoolctl import threadpool_info

import tasks
from tilewise import hosting
from tilewise.errors import ClusterError
from tilewise.memory import CONCURRENCY


def test_the_last_of_several_runs_and_workers_restores_the_settings() -> None:
    before = tasks.settings()
    hosting.arrive("a", slots=1)
    hosting.arrive("a", slots=1)
    hosting.arrive("b", slots=1)
    assert zarr.config.get("async.concurrency") == CONCURRENCY
    assert {i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"} == {1}
    assert not hosting.leave("a", slots=1)
    assert hosting.leave("a", slots=1)
    hosting.end("a")
    assert zarr.config.get("async.concurrency") == CONCURRENCY
    assert tasks.settings()["guests"] == ["b"]
    assert hosting.leave("b", slots=1)
    hosting.end("b")
    assert tasks.settings() == before


def test_what_never_arrived_leaves_without_a_word() -> None:
    before = tasks.settings()
    assert not hosting.leave("nobody", slots=1)
    hosting.end("nobody")
    assert tasks.settings() == before


def test_a_run_has_as_many_places_as_its_workers_brought() -> None:
    within, go, most = [0], threading.Event(), [0]
    lock = threading.Lock()

    def block() -> None:
        with hosting.place("a"):
            with lock:
                within[0] += 1
                most[0] = max(most[0], within[0])
            go.wait(60)
            with lock:
                within[0] -= 1

    hosting.arrive("a", slots=1)
    hosting.arrive("a", slots=2)
    try:
        with ThreadPoolExecutor(8) as pool:
            blocks = [pool.submit(block) for _ in range(8)]
            while within[0] < 3:
                pass
            assert hosting.working("a") == 3
            go.set()
            for done in blocks:
                done.result()
    finally:
        hosting.leave("a", slots=1)
        hosting.leave("a", slots=2)
        hosting.end("a")
    assert most[0] == 3


def test_a_block_that_comes_too_late_is_turned_away() -> None:
    with pytest.raises(ClusterError, match="not set up for the run"), hosting.place("gone"):
        pass
    hosting.arrive("a", slots=1)
    assert hosting.leave("a", slots=1)
    assert hosting.is_over("a")
    with pytest.raises(ClusterError, match="not set up for the run"), hosting.place("a"):
        pass
    hosting.end("a")
    assert hosting.is_over("a")


def test_a_thread_that_first_calls_torch_during_a_run_keeps_the_usual_number() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with hosting.hosted("a", slots=2), ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:

            def tile() -> int:
                with hosting.place("a"):
                    torch.set_num_threads(1)
                    found = other.submit(beside).result()
                    torch.set_num_threads(3)
                    return found

            def beside() -> int:
                with hosting.place("a"):
                    return torch.get_num_threads()

            assert one.submit(tile).result() == 3
        with ThreadPoolExecutor(1) as new:
            assert new.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(usual)
