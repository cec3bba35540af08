from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import faulty
import stores
from faults import Copy, NeedsRoom, ShortOfMemory
from tilewise import tries
from tilewise.errors import StoreAccessError, UnsupportedStoreError
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.kernels.declaration import checked_signature
from tilewise.locking import LOCK, Claim, Lease
from tilewise.outputs import Output, lay_out
from tilewise.owners import this_process
from tilewise.preflight import try_kernel
from tilewise.program import Program
from tilewise.records import TileRecord, TileState
from tilewise.session import Session, open_session
from tilewise.sources import Input, find
from tilewise.store import create
from tilewise.tiles import run_block, run_tile
from tilewise.tries import Pauses

CUBE = np.random.default_rng(5).normal(size=(3, 10, 12)).astype("float32")
GRID = TileGrid(("y", "x"), (10, 12), (5, 4))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSING", "UNREADABLE"):
        monkeypatch.setattr(tries, name, Pauses(0.001, 1.0, 0.001))


def program(
    tmp_path: Path, kernel: Any = None, *, url: Any = str, output: dict[str, Any] | None = None, **options: Any
) -> Program:
    """Six tiles of 5 by 4 pixels; `url` makes places of local folders."""
    stored = {"chunks": {"y": 5, "x": 4}, **options.pop("stored", {})}
    path = stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), CUBE)}, **stored)
    kernel = kernel or Copy(dim="band")
    source = find("x", Input(store=url(path)))
    signature = checked_signature(kernel, {"x": source.spec})
    targets = lay_out(
        Output(store=url(str(tmp_path / "out.zarr")), **(output or {})), signature.outputs, [source], ("y", "x")
    )
    create(Output(store=url(str(tmp_path / "out.zarr"))), targets, [source], {})
    given: dict[str, Any] = {"grid": GRID, "run": tmp_path.name, "panel": 64, **options}
    return Program(kernel=kernel, signature=signature, sources={"x": source}, targets=targets, **given)


def records_of(this: Program) -> list[TileRecord]:
    session = Session(this)
    try:
        return [run_tile(session, this.grid.tile(n)) for n in range(len(this.grid))]
    finally:
        session.close()


def result(tmp_path: Path) -> Any:
    return stores.read(tmp_path / "out.zarr", "copy")


# --- stores that fail


@pytest.mark.parametrize("shards", [None, {"y": 10, "x": 8}])
@pytest.mark.parametrize(
    "options",
    [{"first": 2}, {"fail": 0.2}, {"late": 0.3}, {"torn": 0.3}, {"short": 0.3}, {"delay": 0.01}],
    ids=lambda options: next(iter(options)),
)
def test_what_may_pass_is_tried_again_and_no_cell_is_wrong(tmp_path: Path, options: Any, shards: Any) -> None:
    on = tmp_path / "faults" / "on"
    on.parent.mkdir()
    with faulty.faults(folder=str(on.parent), seed=3, **options):
        output = {"shards": shards, "chunks": {"y": 5, "x": 4}} if shards else {}
        grid = TileGrid(("y", "x"), (10, 12), (10, 8)) if shards else GRID
        this = program(tmp_path, url=faulty.url, grid=grid, retries=30, output=output)
        on.touch()
        records = records_of(this)
    assert all(record.state is TileState.DONE for record in records), records
    if "first" in options:
        assert max(record.attempts for record in records) > 1
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_a_store_that_stays_away_is_named_with_the_input_and_its_cells(tmp_path: Path) -> None:
    on = tmp_path / "faults" / "on"
    on.parent.mkdir()
    with faulty.faults(folder=str(on.parent), fail=1.0):
        this = program(tmp_path, url=faulty.url, retries=2)
        session = Session(this)
        on.touch()
        record = run_tile(session, GRID.tile(4))
    assert (record.state, record.attempts, record.halt) == (TileState.FAILED, 3, "")
    assert record.error.startswith("StoreAccessError: input 'x' cannot be read at band=0:3, y=5:10, x=4:8")
    assert "no answer" in record.error


def test_a_session_is_opened_again_too(tmp_path: Path) -> None:
    """Metadata, and inputs that all tiles share: A of lstsq."""
    from tilewise import Lstsq

    on = tmp_path / "faults" / "on"
    on.parent.mkdir()
    path = stores.write(tmp_path / "in.zarr", {"A": (("row", "p"), CUBE[0, :, :3]), "b": (("row", "x"), CUBE[0])})
    with faulty.faults(folder=str(on.parent), first=1):
        sources = {name: find(name, Input(store=faulty.url(path), variable=name)) for name in ("A", "b")}
        kernel = Lstsq(dim="row")
        signature = checked_signature(kernel, {name: source.spec for name, source in sources.items()})
        this = Program("r", kernel, signature, sources, (), TileGrid(("x",), (12,), (4,)), 64)
        on.touch()
        Session(this)
        faulty.FaultyFileSystem.clear_instance_cache()
        with pytest.raises(StoreAccessError, match="cannot be reached"):
            Session(replace(this, retries=0))


# --- data that is damaged


def damage(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("stored", "key", "named"),
    [
        ({}, "x/c/0/1/2", "chunk {}/x/c/0/1/2 (band=0:3, y=5:10, x=8:12)"),
        ({"zarr_format": 2}, "x/0.1.2", "chunk {}/x/0.1.2 (band=0:3, y=5:10, x=8:12)"),
        ({"compressors": zarr.codecs.BloscCodec()}, "x/c/0/1/2", "chunk {}/x/c/0/1/2"),
        ({"compressors": None}, "x/c/0/1/2", "chunk {}/x/c/0/1/2"),
        ({"shards": {"y": 10, "x": 4}}, "x/c/0/0/2", "shard {}/x/c/0/0/2"),
    ],
    ids=["zstd", "format 2", "blosc", "raw", "shard"],
)
def test_a_chunk_that_is_cut_off_fails_its_tile_and_no_other(tmp_path: Path, stored: Any, key: str, named: str) -> None:
    """Blosc by itself would read on behind the end: wrong numbers, or the end of the process."""
    this = program(tmp_path, stored=stored, retries=1)
    damage(tmp_path / "in.zarr" / key)
    records = records_of(this)
    failed = [record for record in records if record.state is not TileState.DONE]
    assert [record.number for record in failed] == ([2, 5] if "shards" in stored else [5])
    assert failed[-1].error.startswith("DamagedDataError: input 'x' is damaged: ")
    assert named.format(tmp_path / "in.zarr") in failed[-1].error
    assert failed[-1].attempts == 2
    np.testing.assert_array_equal(result(tmp_path)[:, :, :8], CUBE[:, :, :8])


def test_a_kernel_is_tried_all_the_same_where_the_first_chunk_is_damaged_and_failing_tiles_are_skipped(
    tmp_path: Path,
) -> None:
    this = program(tmp_path, retries=0)
    damage(tmp_path / "in.zarr" / "x" / "c" / "0" / "0" / "0")
    with pytest.raises(UnsupportedStoreError, match="x/c/0/0/0"):
        try_kernel(this.ticket())
    try_kernel(replace(this, skip=True, run="other").ticket())


def test_a_shard_that_a_crash_has_torn_is_written_again(tmp_path: Path) -> None:
    """zarr would read it first, and fail."""
    output = {"chunks": {"y": 5, "x": 2}, "shards": {"y": 5, "x": 8}}  # the last shard along x is ragged
    this = program(tmp_path, output=output, grid=TileGrid(("y", "x"), (10, 12), (5, 8)))
    records_of(this)
    for shard in (tmp_path / "out.zarr" / "copy" / "c").rglob("*"):
        if shard.is_file():
            damage(shard)
    assert all(record.attempts == 1 and not record.error for record in records_of(this))
    np.testing.assert_array_equal(result(tmp_path), CUBE)


# --- an output that is full, or another run's


def test_a_full_store_ends_the_block_and_is_no_fault_of_the_tile(tmp_path: Path) -> None:
    folder = tmp_path / "faults"
    folder.mkdir()
    with faulty.faults(folder=str(folder), room=2):
        this = program(tmp_path, url=faulty.url, skip=True)
        (folder / "on").touch()
        tiles = run_block(this.ticket(), (((0, 6),),), block_id=(0,))[0].tiles
    assert [(tile.state, tile.halt) for tile in tiles] == [
        (TileState.DONE, ""),
        (TileState.DONE, ""),
        (TileState.PENDING, "full"),
    ]
    assert os.strerror(errno.ENOSPC) in tiles[-1].error
    assert "credentials" not in tiles[-1].error  # what to do is said of the run
    assert np.isnan(result(tmp_path)[:, :5, 8:]).all()


def hand_over(sidecar: Folder, run: str) -> None:
    sidecar.write_text(LOCK, Claim(run, "token", "out.zarr", "now", this_process()).to_json())


def test_a_run_that_has_lost_its_output_writes_nothing_more(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path / "side"))
    hand_over(sidecar, "mine")
    this = program(tmp_path, lease=Lease(sidecar.place, "mine"), skip=True)
    session = open_session(this.ticket())
    assert run_tile(session, GRID.tile(0)).state is TileState.DONE
    hand_over(sidecar, "other")
    record = run_block(this.ticket(), (((1, 6),),), block_id=(0,))[0].tiles
    assert [(tile.number, tile.state, tile.halt) for tile in record] == [(1, TileState.PENDING, "lost")]
    assert np.isnan(result(tmp_path)[:, :, 4:]).all()


class TakesOver(Lease):
    """A lease of which another run takes the output over while it is being written."""

    def check(self) -> None:
        super().check()
        hand_over(Folder(self.sidecar), "other")


def test_a_tile_during_which_the_output_is_lost_does_not_count(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path / "side"))
    hand_over(sidecar, "mine")
    record = run_tile(Session(program(tmp_path, lease=TakesOver(sidecar.place, "mine"))), GRID.tile(0))
    assert (record.state, record.halt) == (TileState.PENDING, "lost")


# --- memory that is short


def test_memory_that_was_short_once_costs_a_try_and_no_bit(tmp_path: Path) -> None:
    kernel = ShortOfMemory(dim="band", once=str(tmp_path / "once"))
    records = records_of(program(tmp_path, kernel))
    assert [(r.state, r.attempts, r.panel) for r in records[:2]] == [(TileState.DONE, 2, 0), (TileState.DONE, 1, 0)]
    np.testing.assert_array_equal(result(tmp_path), CUBE)


def test_panels_shrink_only_where_nothing_else_helps_and_are_told(tmp_path: Path) -> None:
    record = run_tile(Session(program(tmp_path, ShortOfMemory(dim="band", panels=16))), GRID.tile(0))
    assert (record.state, record.attempts, record.panel) == (TileState.DONE, 3, 16)


def test_a_tile_that_never_fits_fails_and_leaves_no_buffers(tmp_path: Path) -> None:
    session = Session(program(tmp_path, ShortOfMemory(dim="band", panels=0)))
    record = run_tile(session, GRID.tile(0))
    assert (record.state, record.attempts) == (TileState.FAILED, 5)
    assert "DefaultCPUAllocator" in record.error
    assert not session._buffers().arrays


def test_a_tile_that_is_short_of_memory_is_done_alone(tmp_path: Path) -> None:
    this = program(tmp_path, NeedsRoom(dim="band"))
    session = Session(this)
    with ThreadPoolExecutor(3) as pool:
        records = list(pool.map(lambda n: run_tile(session, this.grid.tile(n)), range(3)))
    assert all((r.state, r.panel) == (TileState.DONE, 0) for r in records), records
    assert max(r.attempts for r in records) == 2
    np.testing.assert_array_equal(result(tmp_path)[:, :5], CUBE[:, :5])
