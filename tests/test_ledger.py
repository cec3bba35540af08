"""The ledger against a plain dict: whatever is added, flushed, torn or opened again."""

from __future__ import annotations

import math
import multiprocessing
import shutil
import threading
import tracemalloc
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from s3_server import S3Server
from tilewise import ledger_rows
from tilewise.errors import LockedError, ResumeError
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.ledger import KEPT_ROWS, LEDGER, Ledger
from tilewise.ledger_rows import MOST, Rows
from tilewise.records import TileRecord, TileState

PENDING, DONE, FAILED, QUARANTINED = TileState


def grid_of(*shape: int) -> TileGrid:
    return TileGrid(("z", "y", "x")[3 - len(shape) :], tuple(3 * n for n in shape), (3,) * len(shape))


def pending(ledger: Ledger, size: int = 1000) -> list[int]:
    return [n for block in ledger.blocks(size) for first, last in block for n in range(first, last)]


@settings(max_examples=50)
@given(shape=st.lists(st.integers(1, 30), max_size=4).map(tuple), most=st.integers(1, 40))
def test_rows_are_contiguous_boxes_that_cover_the_grid(shape: tuple[int, ...], most: int) -> None:
    rows = Rows(shape, most)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    stop = 0
    for row in range(len(rows)):
        first, last = rows.range(row)
        assert first == stop
        assert 0 < last - first <= most
        # The chunk that zarr stores for the row, and the row, are the same tiles in the same order.
        assert numbers[rows.box(row)].reshape(-1).tolist() == list(range(first, last))
        assert rows.find(first) == (row, 0)
        assert rows.find(last - 1) == (row, last - 1 - first)
        stop = last
    assert stop == numbers.size


@pytest.mark.parametrize("shape", [(10**6,), (1000, 1000), (7, 300, 70_000), (10**6, 3), ()])
def test_rows_are_bounded_and_few(shape: tuple[int, ...]) -> None:
    rows = Rows(shape)
    assert max(b - a for a, b in map(rows.range, range(min(len(rows), 100)))) <= MOST
    assert len(rows) <= 2 * math.prod(shape) // MOST + 1


RECORDS = st.builds(
    TileRecord,
    number=st.integers(0, 59),
    state=st.sampled_from(TileState),
    seconds=st.tuples(*[st.integers(0, 100).map(float)] * 3),
    statuses=st.dictionaries(st.sampled_from([0, 2, 8, 255]), st.integers(1, 2**31), max_size=2),
    misfits=st.integers(0, 2**40),
    attempts=st.integers(1, 9),
    panel=st.sampled_from([0, 0, 64, 128]),
)
STEPS = st.lists(st.one_of(RECORDS, st.sampled_from(["flush", "open"]), st.sets(st.integers(0, 59))), max_size=30)


@settings(max_examples=15)
@given(steps=STEPS, shape=st.sampled_from([(60,), (5, 12), (3, 2, 10)]))
def test_whatever_is_added_is_there_again(steps: list[object], shape: tuple[int, ...]) -> None:
    sidecar = Folder("memory://ledger-property")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "__init__", small_rows)
        ledger = Ledger.create(sidecar, grid_of(*shape), {})
        oracle: dict[int, TileRecord] = {}
        for step in steps:
            if isinstance(step, TileRecord):
                ledger.add(step)
                if step.state is not PENDING:
                    oracle[step.number] = step
            elif isinstance(step, set):
                ledger.reset(iter(step))
                oracle = {n: record for n, record in oracle.items() if n not in step}
            elif step == "flush":
                ledger.flush()
            else:
                ledger.flush()
                ledger = Ledger.open(sidecar, write=True)
            assert_equal(ledger, oracle)
        ledger.flush()
        assert_equal(Ledger.open(sidecar), oracle)


def small_rows(self: Rows, shape: tuple[int, ...], most: int = 7) -> None:
    """Rows of 7 tiles, so that a few tiles are more rows than are kept in memory."""
    object.__setattr__(self, "shape", shape)
    object.__setattr__(self, "most", most)


def assert_equal(ledger: Ledger, oracle: dict[int, TileRecord]) -> None:
    states = {n: oracle[n].state if n in oracle else PENDING for n in range(len(ledger.grid))}
    assert pending(ledger) == [n for n, state in states.items() if state is not DONE]
    assert list(ledger.numbers(FAILED, QUARANTINED)) == [n for n, s in states.items() if s in (FAILED, QUARANTINED)]
    done = [record for record in oracle.values() if record.state is DONE]
    statuses: dict[int, int] = {}
    for record in done:
        for code, count in record.statuses.items():
            statuses[code] = statuses.get(code, 0) + count
    totals = ledger.totals()
    assert totals.states == {state: list(states.values()).count(state) for state in TileState}
    assert totals.seconds == tuple(sum(record.seconds[i] for record in oracle.values()) for i in range(3))
    assert totals.statuses == statuses
    assert totals.misfits == sum(record.misfits for record in done)
    assert totals.retried == sum(record.attempts > 1 for record in oracle.values())
    assert totals.panel == min((record.panel for record in oracle.values() if record.panel), default=0)


@settings(max_examples=15)
@given(done=st.sets(st.integers(0, 59)), size=st.integers(1, 20))
def test_blocks_are_of_one_size_with_ranges_that_are_joined(done: set[int], size: int) -> None:
    ledger = Ledger.create(Folder("memory://ledger-blocks"), grid_of(5, 12), {})
    for number in done:
        ledger.add(TileRecord(number))
    blocks = list(ledger.blocks(size))
    counts = [sum(last - first for first, last in block) for block in blocks]
    assert counts[:-1] == [size] * (len(counts) - 1)
    assert all(a[1] < b[0] for block in blocks for a, b in pairwise(block))
    assert pending(ledger, size) == [n for n in range(60) if n not in done]


def test_blocks_are_those_that_were_pending_when_their_row_was_reached(tmp_path: Path) -> None:
    ledger = Ledger.create(Folder(str(tmp_path)), grid_of(MOST + 4), {})
    blocks = ledger.blocks(MOST // 2 + 1)
    first = next(blocks)
    for number in range(3):
        ledger.add(TileRecord(number, FAILED))  # what fails is not tried again by this run
        ledger.add(TileRecord(MOST + number))
    rest = [n for block in (first, *blocks) for a, b in block for n in range(a, b)]
    assert rest == [*range(MOST), MOST + 3]


@pytest.mark.parametrize("kept", range(len(ledger_rows.columns(grid_of(1)))))
def test_a_flush_that_is_killed_never_says_more_than_was_done(tmp_path: Path, kept: int) -> None:
    before, after = Folder(str(tmp_path / "before")), Folder(str(tmp_path / "after"))
    for sidecar in (before, after):
        ledger = Ledger.create(sidecar, grid_of(4, 5), {})
        ledger.add(TileRecord(0, DONE, (1.0, 1.0, 1.0), {0: 9}, 1, 2, 64))
        ledger.flush()
    ledger.add(TileRecord(7, DONE, (1.0, 1.0, 1.0), {0: 9}, 1, 2, 64))
    ledger.flush()
    # Killed after so many of the arrays, in the order in which they are written.
    for column in ledger_rows.columns(ledger.grid)[:kept]:
        here, there = (Path(folder.place) / LEDGER / column.name for folder in (before, after))
        shutil.rmtree(here)
        shutil.copytree(there, here)
    torn = Ledger.open(before, write=True)
    assert torn.totals().states[DONE] == 1
    assert torn.totals().statuses == {0: 9}
    assert torn.totals().seconds == (1.0, 1.0, 1.0)
    torn.add(TileRecord(7, DONE, (2.0, 2.0, 2.0), {1: 9}))
    assert torn.totals().retried == 1


def test_a_flush_that_fails_forgets_nothing(tmp_path: Path) -> None:
    refused = True

    def guard() -> None:
        if refused:
            raise LockedError("the output is no longer this run's to write")

    sidecar = Folder(str(tmp_path))
    ledger = Ledger.create(sidecar, grid_of(4), {}, guard=guard)
    ledger.flush()  # nothing is to be written
    ledger.add(TileRecord(2))
    with pytest.raises(LockedError):
        ledger.flush()
    assert Ledger.open(sidecar).totals().states[DONE] == 0
    refused = False
    ledger.flush()
    assert list(Ledger.open(sidecar).numbers(DONE)) == [2]


def test_xarray_opens_it_as_a_map(tmp_path: Path) -> None:
    grid = TileGrid(("y", "state"), (10, 7), (4, 3))
    ledger = Ledger.create(Folder(str(tmp_path)), grid, {"run": "a", "limit": math.inf})
    ledger.add(TileRecord(4, QUARANTINED, (1.0, 2.0, 3.0)))
    ledger.add(TileRecord(0, DONE, statuses={0: 5, 77: 2}))
    ledger.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xr.open_zarr(tmp_path / LEDGER).load()
    # A dimension that is called like an array of the ledger gets another name there.
    assert found.state.dims == ("y", "state_of_grid")
    assert found.y.values.tolist() == [0, 4, 8]
    assert found.state_of_grid.values.tolist() == [0, 3, 6]
    assert found.state.values.tolist() == [[1, 0, 0], [0, 3, 0], [0, 0, 0]]
    assert found.state.attrs["flag_meanings"] == "pending done failed quarantined"
    assert found.seconds.sel(phase=1, y=4, state_of_grid=3) == 2.0
    assert found.pixels.sel(code=0).sum() == 5
    assert found.pixels.sel(code=254).sum() == 2  # a kernel's own code
    again = Ledger.open(Folder(str(tmp_path)))
    assert (again.grid, again.attrs) == (grid, {"run": "a", "limit": "inf"})


def test_a_new_ledger_replaces_an_old_one(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path))
    assert not Ledger.exists(sidecar)
    old = Ledger.create(sidecar, grid_of(4), {"run": "a"})
    old.add(TileRecord(0))
    old.flush()
    assert Ledger.exists(sidecar)
    assert pending(Ledger.create(sidecar, grid_of(2, 1), {"run": "b"})) == [0, 1]
    assert Ledger.open(sidecar).attrs == {"run": "b"}


def test_a_grid_of_one_cell(tmp_path: Path) -> None:
    ledger = Ledger.create(Folder(str(tmp_path)), TileGrid((), (), ()), {})
    assert list(ledger.blocks(5)) == [((0, 1),)]
    ledger.add(TileRecord(0, DONE, (1.0, 2.0, 3.0), {0: 1}))
    ledger.flush()
    again = Ledger.open(Folder(str(tmp_path)))
    assert list(again.blocks(5)) == []
    assert again.totals() == ledger.totals()
    assert again.totals().seconds == (1.0, 2.0, 3.0)


def damage_chunk(folder: Path) -> None:
    (chunk,) = (folder / "state" / "c").rglob("0")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")


def damage_state(folder: Path) -> None:
    zarr.open_group(folder)["state"][...] = 9


def damage_metadata(folder: Path) -> None:
    (folder / "zarr.json").write_text("{")


def damage_kind(folder: Path) -> None:
    shutil.rmtree(folder)
    zarr.create_group(folder)


@pytest.mark.parametrize("damage", [damage_chunk, damage_state, damage_metadata, damage_kind])
def test_a_damaged_ledger_is_named(tmp_path: Path, damage: object) -> None:
    ledger = Ledger.create(Folder(str(tmp_path)), grid_of(4), {})
    ledger.add(TileRecord(2))
    ledger.flush()
    assert callable(damage)
    damage(tmp_path / LEDGER)
    with pytest.raises(ResumeError, match=r"damaged; got: .*ledger\.zarr.*--overwrite"):
        Ledger.open(Folder(str(tmp_path))).totals()


def test_no_ledger_and_one_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match=r"no record of the tiles.*begin again with --overwrite"):
        Ledger.open(Folder(str(tmp_path)))
    Ledger.create(Folder(str(tmp_path)), grid_of(4), {})
    group = zarr.open_group(tmp_path / LEDGER)
    group.attrs["tilewise"] = {**group.attrs["tilewise"], "ledger": 99}
    with pytest.raises(ResumeError, match="another version of tilewise; got: version 99"):
        Ledger.open(Folder(str(tmp_path)))


def test_behind_a_url(s3: S3Server) -> None:
    s3.make_bucket("ledger")
    sidecar = Folder("s3://ledger/out.tilewise")
    ledger = Ledger.create(sidecar, grid_of(4, 5), {"run": "a"})
    ledger.add(TileRecord(3, FAILED))
    ledger.add(TileRecord(4))
    ledger.flush()
    again = Ledger.open(sidecar, write=True)
    assert list(again.numbers(FAILED)) == [3]
    again.reset([4])
    assert Ledger.open(sidecar).totals().states[DONE] == 0


def test_several_threads(tmp_path: Path) -> None:
    ledger = Ledger.create(Folder(str(tmp_path)), grid_of(400), {})

    def work(first: int) -> None:
        for number in range(first, 400, 4):
            ledger.add(TileRecord(number))
            if number % 40 == 0:
                ledger.flush()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.flush()
    assert pending(Ledger.open(Folder(str(tmp_path)))) == []


def allocated(folder: str) -> tuple[int, int]:
    """Bytes of one row in memory, and the peak of a ledger of a million tiles of which one in every row is done."""
    rows = Rows((1000, 1000))
    # With all that can be known of it: every row is read, changed and written.
    records = [TileRecord(rows.range(row)[0], DONE, (1.0, 1.0, 1.0), {0: 1}, 1, 2, 64) for row in range(len(rows))]
    ledger = Ledger.create(Folder(folder), grid_of(1000, 1000), {})
    table = ledger_rows.columns(ledger.grid)
    row = sum(math.prod(n for _, n in column.lead) * np.dtype(column.dtype).itemsize for column in table) * MOST
    tracemalloc.start()
    for record in records:
        ledger.add(record)
    ledger.flush()
    assert sum(1 for _ in ledger.blocks(4096)) == 245
    assert ledger.totals().states[DONE] == len(records)
    return row, tracemalloc.get_traced_memory()[1]


def test_memory_does_not_grow_with_the_tiles(tmp_path: Path) -> None:
    # In a process of its own: what threads of other tests allocate meanwhile would count.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        row, peak = pool.submit(allocated, str(tmp_path)).result()
    # The rows that are kept, and one that is encoded: zarr holds its widest array, 60 % of it, three times meanwhile.
    assert peak < (KEPT_ROWS + 3) * row
    assert peak < 24 << 20


def test_a_row_that_cannot_be_written_stays_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_rows, "MOST", 4)
    away = [True]

    def guard() -> None:
        if away[0]:
            raise ConnectionError("no answer")

    sidecar = Folder(str(tmp_path))
    ledger = Ledger.create(sidecar, grid_of(4 * (KEPT_ROWS + 3)), {}, guard=guard)
    for number in range(len(ledger.grid)):
        ledger.add(TileRecord(number))
    with pytest.raises(ConnectionError):
        ledger.flush()
    assert pending(Ledger.open(sidecar)) == list(range(len(ledger.grid)))
    away[0] = False
    ledger.flush()
    assert pending(Ledger.open(sidecar)) == []
