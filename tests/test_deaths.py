"""Workers that die at work, on every kind that has processes of its own."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import stores
import tasks
from clusters import until
from faults import Copy, DiesAt
from tilewise.clients import open_workers
from tilewise.cluster import Layout
from tilewise.dask_workers import DistributedWorkers
from tilewise.engine import run_program
from tilewise.errors import ClusterError
from tilewise.fields import TileGrid
from tilewise.kernels.declaration import checked_signature
from tilewise.opened import forget
from tilewise.outputs import Output, lay_out
from tilewise.program import Program
from tilewise.records import BlockRecord, Ranges, TileState
from tilewise.sources import Input, find
from tilewise.store import create
from tilewise.workers import Window, WorkerDied

CUBE = np.arange(3 * 8 * 12, dtype="float32").reshape(3, 8, 12)
GRID = TileGrid(("y", "x"), (8, 12), (2, 2))  # 24 tiles
# A process takes its own block with it, and a worker with two threads its neighbour too.
LAYOUTS = {"processes": Layout("processes", 2, 1, "cpu"), "local": Layout("local", 1, 2, "cpu")}


def program(folder: Path, kernel: Copy) -> Program:
    path = stores.write(folder / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 2, "x": 2})
    source = find("x", Input(store=path))
    signature = checked_signature(kernel, {"x": source.spec})
    output = Output(store=str(folder / "out.zarr"))
    targets = lay_out(output, signature.outputs, [source], signature.tile_dims)
    create(output, targets, [source], {})
    return Program("deaths", kernel, signature, {"x": source}, targets, GRID, panel=64, hosted=True, skip=True)


def window(function: Any, count: int, name: str) -> Window:
    return Window(name, function, count)


def on() -> bool:
    return True


@pytest.mark.parametrize("kind", LAYOUTS)
def test_only_the_guilty_tile_is_given_up(tmp_path: Path, kind: str) -> None:
    kernel = DiesAt(dim="band", at=float(CUBE[1, 4, 6]), seconds=0.02)
    this = program(tmp_path, kernel)
    guilty = 2 * 6 + 3
    blocks: list[Ranges] = [((a, a + 3),) for a in range(0, len(GRID), 3)]
    records: list[BlockRecord] = []
    with open_workers(LAYOUTS[kind], this.run) as workers:
        run_program(this, workers, blocks, records.append, on)
    tiles = [tile for record in records for tile in record.tiles]
    states = {tile.number: tile.state for tile in tiles}
    assert states == {n: TileState.QUARANTINED if n == guilty else TileState.DONE for n in range(len(GRID))}
    assert [t.error for t in tiles if t.error] == [t.error for t in tiles if t.number == guilty]
    expected = CUBE.copy()
    expected[:, 4:6, 6:8] = np.nan
    np.testing.assert_array_equal(stores.read(this.targets[0].array.store, "copy"), expected)
    forget(this.run)
    assert not multiprocessing.active_children()


def test_a_process_is_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[int] = []
    with open_workers(replace(LAYOUTS["processes"], processes=1), "test") as workers:
        with pytest.raises(WorkerDied, match=r"a worker process died; got: process \d+\. ") as caught:
            workers.stream([window(tasks.die_in_third, 40, "die")], lambda key, n: results.append(n), on)
        # The one in work, and not the one that was to follow it.
        assert caught.value.keys == (("die", 2),)
        assert isinstance(caught.value.reason, ClusterError)
        assert results == [0, 1]
        assert workers.call(tasks.facts)
        # What does not end when it is told to stop is given up.
        monkeypatch.setattr("tilewise.pools.WIND_DOWN", 0.2)
        slow = [window(partial(tasks.long, str(tmp_path / f"long-{k}"), 300), 4, f"long-{k}") for k in range(2)]
        workers.stream(slow[:1], lambda key, n: results.append(n), Going(tmp_path / "long-0"))
        assert results == [0, 1]
        # One that has died with nothing in work is nobody's loss.
        workers.stream([window(tasks.number, 10, "on")], lambda key, n: results.append(n), on)
        assert results[2:] == list(range(10))
        # So is what is in work when anything else ends the run.
        with pytest.raises(KeyboardInterrupt):
            workers.stream(slow[1:], print, partial(_interrupt, tmp_path / "long-1"))
    assert not multiprocessing.active_children()


class Going:
    """Says yes until a file is there."""

    def __init__(self, until: Path) -> None:
        self._until = until

    def __call__(self) -> bool:
        return not self._until.exists()


def _interrupt(once: Path) -> bool:
    if once.exists():
        raise KeyboardInterrupt
    return True


def test_nothing_more_begins_once_it_is_told_to_stop() -> None:
    results: list[int] = []
    with open_workers(Layout("threads", 1, 2, "cpu"), "test") as workers:
        windows = (window(tasks.number, 10, f"stop-{k}") for k in range(10**9))
        workers.stream(windows, lambda key, n: results.append(n), lambda: len(results) < 5)
    assert set(range(4)) <= set(results) <= set(range(8))


def test_a_client_gives_up_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.dask_workers.WIND_DOWN", 0.2)
    results: list[int] = []
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        workers = DistributedWorkers(client, "test")
        windows = (window(tasks.number, 10, f"tilewise-test-{k}") for k in range(10**9))
        workers.stream(windows, lambda key, n: results.append(n), lambda: len(results) < 5)
        assert 5 <= len(results) <= 10  # no second window: all of the first may have been done by then
        results.clear()
        slow = window(partial(tasks.long, str(tmp_path / "long"), 3), 40, "tilewise-test-long")
        workers.stream([slow], lambda key, n: results.append(n), Going(tmp_path / "long"))
        assert not results
        until(lambda: not client.run_on_scheduler(tasks.of_runs))
