"""What a probe says: arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stores
import tilewise
from tilewise.fields import TileGrid
from tilewise.limits import PROBE_BYTES, Measured, Probe, probe_grid, probe_numbers
from tilewise.memory import Workload
from tilewise.surveys import Survey, survey


@pytest.fixture
def found(tmp_path: Path) -> Survey:
    values = np.zeros((2, 40, 60), "float32")
    path = stores.write(tmp_path / "in.zarr", {"x": (("c", "y", "x"), values)}, chunks={"y": 10, "x": 20})
    return survey(tilewise.Job(kernel=tilewise.Norm(dim="c"), inputs={"x": path}, output=str(tmp_path / "out.zarr")))


def test_seconds_of_a_tile_of_the_plan_are_those_of_its_pixels(found: Survey) -> None:
    plan = replace(found.plan, grid=replace(found.plan.grid, tile_shape=(20, 20)), processes=2, slots=3)
    assert (plan.tiles, plan.in_work) == (6, 6)
    seen = Measured(((1.0, 2.0, 1.0), (3.0, 2.0, 1.0)), pixels=100, busy=7.5, by_hand=(0.5, 0.25), nbytes=(960, 480))
    probe = Probe.of(seen, found.work, plan)
    assert (probe.tiles, probe.read, probe.compute, probe.write) == (2, 16.0, 16.0, 8.0)
    assert (probe.waiting, probe.seconds, probe.eta(plan)) == (0.25, 40.0, 40.0)
    # 19 200 bytes of input and 9 600 of output.
    assert (probe.decode, probe.encode, probe.limit(plan)) == (10.0, 5.0, 2.5)
    assert probe.to_dict(plan)["bound"] == "reading"


def test_slots_that_are_left_over_in_the_last_round_do_not_shorten_it(found: Survey) -> None:
    plan = replace(found.plan, grid=replace(found.plan.grid, tile_shape=(20, 20)), processes=2, slots=2)
    probe = Probe(2, 1.0, 0.5, 0.5, waiting=0.0, decode=6.0, encode=6.0)
    assert (plan.tiles, probe.eta(plan), probe.limit(plan)) == (6, 4.0, 3.0)


def test_more_cores_at_work_than_one_are_no_negative_waiting(found: Survey) -> None:
    seen = Measured(((1.0, 1.0, 1.0),), pixels=10, busy=4.0, by_hand=(0.0, 0.0), nbytes=(0, 0))
    probe = Probe.of(seen, found.work, found.plan)
    assert (probe.waiting, probe.limit(found.plan)) == (0.0, 0.0)


def test_a_tile_that_is_probed_is_whole_write_units_and_bounded(found: Survey) -> None:
    signature = tilewise.Norm(dim="c").declare({"x": replace(found.work.signature.fields["x"], shape=(2, 4000, 6000))})
    work = replace(found.work, signature=signature)
    plan = replace(found.plan, grid=replace(found.plan.grid, size=(4000, 6000), tile_shape=(3990, 5980)))
    y, x = probe_grid(work, plan).tile_shape
    assert (y % 10, x % 20) == (0, 0)
    assert PROBE_BYTES / 4 < 2 * y * x * 4 <= PROBE_BYTES
    small = replace(plan, grid=replace(plan.grid, tile_shape=(10, 20)))
    assert probe_grid(work, small) == small.grid


def with_input(found: Survey, size: int, chunk: int) -> Workload:
    """The workload on an input of size x size pixels of two bands, in square chunks; write units stay 10 x 20."""
    source = found.work.sources["x"]
    source = replace(source, spec=replace(source.spec, shape=(2, size, size)), chunks=(2, chunk, chunk))
    signature = tilewise.Norm(dim="c").declare({"x": source.spec})
    return replace(found.work, signature=signature, sources={"x": source})


def test_a_tile_that_is_probed_cuts_no_chunk_that_one_of_the_plan_does_not_cut(found: Survey) -> None:
    # 32 MB a chunk: more than is probed otherwise, and half of it would be decoded as a whole.
    work = with_input(found, 16_000, 2000)
    grid = replace(found.plan.grid, size=(16_000, 16_000), tile_shape=(4000, 8000))
    assert probe_grid(work, replace(found.plan, grid=grid)).tile_shape == (2000, 2000)
    cutting = replace(found.plan, grid=replace(grid, tile_shape=(3000, 3000)))
    assert probe_grid(work, cutting) == cutting.grid


@pytest.mark.parametrize(
    ("size", "tile"), [((2001, 2001), (250, 500)), ((7, 100, 3), (2, 30, 3)), ((5,), (8,)), ((), ())]
)
def test_tiles_that_are_probed_are_as_large_as_the_first(size: tuple[int, ...], tile: tuple[int, ...]) -> None:
    grid = TileGrid(("t", "y", "x")[: len(size)], size, tile)
    numbers = probe_numbers(grid)
    assert {tuple(grid.tile(number).sizes.values()) for number in numbers} == {tuple(grid.tile(0).sizes.values())}
    assert list(numbers) == sorted(numbers)
