from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stores
import tilewise
from faults import Copy, FailsAt
from tilewise import engine
from tilewise.errors import TileError
from tilewise.fields import TileGrid
from tilewise.kernels.declaration import checked_signature
from tilewise.outputs import Output, lay_out
from tilewise.program import Program
from tilewise.session import forget, open_session
from tilewise.sources import Input, find
from tilewise.store import create

CUBE = np.arange(3 * 10 * 12, dtype="float32").reshape(3, 10, 12)


def program(tmp_path: Path, kernel: Any = None, **options: Any) -> Program:
    path = stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, chunks={"y": 5, "x": 4})
    kernel = kernel or Copy(dim="band")
    source = find("x", Input(store=path))
    signature = checked_signature(kernel, {"x": source.spec})
    output = Output(store=str(tmp_path / "out.zarr"))
    targets = lay_out(output, signature.outputs, [source], signature.tile_dims)
    create(output, targets, [source], {})
    settings: dict[str, Any] = {"grid": TileGrid(("y", "x"), (10, 12), (5, 4)), "block": 2, "run": tmp_path.name}
    return Program(
        kernel=kernel,
        signature=signature,
        sources={"x": source},
        targets=targets,
        panel=64,
        **{**settings, **options},
    )


def test_a_task_is_a_block_and_carries_no_data(tmp_path: Path) -> None:
    this = program(tmp_path, grid=TileGrid(("y", "x"), (10, 12), (1, 1)))
    windows = list(engine.windows(this))
    assert len(windows) == 1
    graph = dict(windows[0].__dask_graph__())
    assert len(graph) == 60
    assert all(len(pickle.dumps(task)) < 20_000 for task in graph.values())


def test_every_submission_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WINDOW", 2)
    this = program(tmp_path)
    names = [w.name for attempt in (0, 1) for w in engine.windows(this, attempt)]
    assert len(set(names)) == len(names) == 4
    assert all(this.run in name for name in names)


def test_windows_hold_a_bounded_number_of_tasks_however_many_tiles(tmp_path: Path) -> None:
    this = program(tmp_path, grid=TileGrid(("y", "x"), (10**9, 10**9), (1, 1)))
    windows = engine.windows(this)
    first, second = next(windows), next(windows)
    assert first.npartitions == second.npartitions == engine.WINDOW


def test_a_block_does_its_tiles_and_the_last_one_is_short(tmp_path: Path) -> None:
    this = program(tmp_path, block=4)
    records = [engine.run_block(this.ticket(), 0, block_id=(n,))[0] for n in range(2)]
    assert [[t.number for t in r.tiles] for r in records] == [[0, 1, 2, 3], [4, 5]]
    assert all(not t.error and min(t.seconds) >= 0 for r in records for t in r.tiles)
    np.testing.assert_array_equal(stores.read(this.targets[0].array.store, "copy"), CUBE)
    forget(this.run)


def test_an_exception_is_its_tiles_record_and_ends_its_block(tmp_path: Path) -> None:
    at = float(CUBE[0, 0, 4])  # in the second tile
    this = program(tmp_path, FailsAt(dim="band", at=at), block=6)
    record = engine.run_block(this.ticket(), 0, block_id=(0,))[0]
    assert [bool(t.error) for t in record.tiles] == [False, True]
    assert f"ArithmeticError: found {at}" in record.tiles[1].error
    result = stores.read(this.targets[0].array.store, "copy")
    np.testing.assert_array_equal(result[:, :5, :4], CUBE[:, :5, :4])
    assert np.isnan(result[:, 5:]).all()

    class One:
        def stream(self, windows: Any, on_result: Any) -> None:
            on_result(record)

    with pytest.raises(TileError, match=r"tile 1 \(y=0:5, x=4:8\) failed"):
        engine.run_program(this, One(), lambda r: None)  # type: ignore[arg-type]
    forget(this.run)


def test_buffers_are_reused_from_tile_to_tile(tmp_path: Path) -> None:
    this = program(tmp_path, grid=TileGrid(("y", "x"), (10, 12), (6, 5)))
    session = open_session(this.ticket())
    boxes = [session.read(this.grid.tile(n))["x"] for n in (0, 5)]
    assert np.shares_memory(boxes[0], boxes[1])
    assert [b.shape for b in boxes] == [(3, 6, 5), (3, 4, 2)]
    np.testing.assert_array_equal(boxes[1], CUBE[:, 6:, 10:])
    assert open_session(this.ticket()) is session
    forget(this.run)
    assert open_session(this.ticket()) is not session
    forget(this.run)


def test_pixels_are_counted_by_status() -> None:
    status = np.array([0] * 70000 + [3, 255, 3], dtype="uint8")
    assert engine._count(status) == {0: 70000, 3: 2, 255: 1}
    assert engine._count(None) == {}


LINE = np.stack([np.ones(5), np.arange(5.0)], axis=1)


def fit(tmp_path: Path, kernel: tilewise.Lstsq, b: Any) -> tilewise.Job:
    """A line through b (date, y, x), in this process."""
    fields = {"A": (("date", "term"), LINE), "b": (("date", "y", "x"), b)}
    path = stores.write(tmp_path / "in.zarr", fields, chunks={"y": 2, "x": 3})
    output = str(tmp_path / "out.zarr")
    return tilewise.Job(
        kernel=kernel, inputs={"A": path, "b": path}, output=output, cluster=tilewise.Cluster(kind="threads", workers=1)
    )


@dataclass(frozen=True, kw_only=True)
class Obstructs(tilewise.Lstsq, name="test_obstructs"):
    """Puts a file where the chunks of a diagnostic belong, once the output is there."""

    place: str

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        if Path(self.place).exists():
            (Path(self.place) / "c").touch()


@pytest.mark.parametrize("name", ["rank", "stderr"])
def test_no_status_is_written_before_all_else_of_its_tile(tmp_path: Path, name: Any) -> None:
    kernel = Obstructs(dim="date", diagnostics=(name,), place=str(tmp_path / "out.zarr" / name))
    with pytest.raises(TileError):
        tilewise.run(fit(tmp_path, kernel, np.ones((5, 4, 6))))
    assert (stores.read(tmp_path / "out.zarr", "status") == tilewise.Status.NOT_COMPUTED).all()


def test_a_failed_tile_says_once_what_to_do(tmp_path: Path) -> None:
    b = np.ones((5, 4, 6))
    b[1, 3, 4] = np.nan
    with pytest.raises(TileError, match=r"tile \d \(y=2:4, x=3:6\) failed: .* pixel \(1, 1\) of the tile") as found:
        tilewise.run(fit(tmp_path, tilewise.Lstsq(dim="date", nan_policy="raise"), b))
    assert str(found.value).count("To mend it") == 1
    assert ".." not in str(found.value)
