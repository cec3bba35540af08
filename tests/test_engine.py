from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stores
from faults import Copy, FailsAt
from tilewise import engine
from tilewise.errors import TileError
from tilewise.fields import TileGrid
from tilewise.kernels.declaration import checked_signature
from tilewise.opened import forget
from tilewise.outputs import Output, lay_out
from tilewise.program import Program
from tilewise.records import Ranges
from tilewise.sources import Input, find
from tilewise.store import create
from tilewise.tiles import run_block

CUBE = np.arange(3 * 10 * 12, dtype="float32").reshape(3, 10, 12)


def program(tmp_path: Path, kernel: Any = None, **options: Any) -> Program:
    path = stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 5, "x": 4})
    kernel = kernel or Copy(dim="band")
    source = find("x", Input(store=path))
    signature = checked_signature(kernel, {"x": source.spec})
    output = Output(store=str(tmp_path / "out.zarr"), chunks=options.pop("chunks", {}))
    targets = lay_out(output, signature.outputs, [source], signature.tile_dims)
    create(output, targets, [source], {})
    settings: dict[str, Any] = {"grid": TileGrid(("y", "x"), (10, 12), (5, 4)), "run": tmp_path.name}
    return Program(
        kernel=kernel,
        signature=signature,
        sources={"x": source},
        targets=targets,
        panel=64,
        **{**settings, **options},
    )


class Here:
    """Workers that do a block when they are told to, in this thread."""

    def __init__(self) -> None:
        self.windows: list[Any] = []

    def stream(self, windows: Any, on_result: Any, go_on: Any) -> None:
        for window in windows:
            self.windows.append(window)
            for key, task in window.tasks():
                if go_on():
                    on_result(key, task()[0])


def blocks_of(this: Program, size: int) -> list[Ranges]:
    return [((a, min(a + size, len(this.grid))),) for a in range(0, len(this.grid), size)]


def test_a_task_is_a_block_and_carries_no_data(tmp_path: Path) -> None:
    this = program(tmp_path, grid=TileGrid(("y", "x"), (10, 12), (5, 1)), chunks={"x": 1})
    here = Here()
    engine.run_program(this, here, blocks_of(this, 1), lambda r: None, lambda: True)  # type: ignore[arg-type]
    assert len(here.windows) == 1
    graph = dict(here.windows[0].array().__dask_graph__())
    assert len(graph) == 24
    assert all(len(pickle.dumps(task)) < 20_000 for task in graph.values())
    forget(this.run)


def test_every_submission_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WINDOW", 2)
    this = program(tmp_path)
    here = Here()
    engine.run_program(this, here, blocks_of(this, 2), lambda r: None, lambda: True)  # type: ignore[arg-type]
    names = [window.name for window in here.windows]
    assert len(set(names)) == len(names) == 2
    assert all(this.run in name for name in names)
    forget(this.run)


def test_windows_hold_a_bounded_number_of_tasks_however_many_tiles(tmp_path: Path) -> None:
    this = program(tmp_path, grid=TileGrid(("y", "x"), (10**9, 10**9), (1, 1)), chunks={"y": 1, "x": 1})

    class Counts:
        def stream(self, windows: Any, on_result: Any, go_on: Any) -> None:
            first, second = next(windows), next(windows)
            assert first.count == second.count == first.array().npartitions == engine.WINDOW

    endless = (((n, n + 1),) for n in range(10**18))
    engine.run_program(this, Counts(), endless, lambda r: None, lambda: True)  # type: ignore[arg-type]


def test_a_block_does_its_tiles_and_the_last_one_is_short(tmp_path: Path) -> None:
    this = program(tmp_path)
    blocks = tuple(blocks_of(this, 4))
    records = [run_block(this.ticket(), blocks, block_id=(n,))[0] for n in range(2)]
    assert [[t.number for t in r.tiles] for r in records] == [[0, 1, 2, 3], [4, 5]]
    assert all(not t.error and min(t.seconds) >= 0 for r in records for t in r.tiles)
    np.testing.assert_array_equal(stores.read(this.targets[0].array.store, "copy"), CUBE)
    forget(this.run)


def test_an_exception_is_its_tiles_record_and_ends_its_block(tmp_path: Path) -> None:
    at = float(CUBE[0, 0, 4])  # in the second tile
    this = program(tmp_path, FailsAt(dim="band", at=at))
    record = run_block(this.ticket(), (((0, 6),),), block_id=(0,))[0]
    assert [bool(t.error) for t in record.tiles] == [False, True]
    assert f"ArithmeticError: found {at}" in record.tiles[1].error
    result = stores.read(this.targets[0].array.store, "copy")
    np.testing.assert_array_equal(result[:, :5, :4], CUBE[:, :5, :4])
    assert np.isnan(result[:, 5:]).all()
    with pytest.raises(TileError, match=r"tile 1 \(y=0:5, x=4:8\) failed"):
        engine.run_program(this, Here(), blocks_of(this, 6), lambda r: None, lambda: True)  # type: ignore[arg-type]
    forget(this.run)


def test_who_hands_blocks_out_loads_neither_torch_nor_dask() -> None:
    """A scheduler unpickles a window, and a client needs no more: a second and a hundred megabytes of each."""
    code = (
        "import pickle, sys\n"
        "import tilewise.engine, tilewise.pools, tilewise.streaming\n"
        "from tilewise.task import run_block\n"
        "pickle.loads(pickle.dumps(run_block))\n"
        "assert not {'torch', 'dask.array', 'xarray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
