from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stores
from faults import Copy
from tilewise.errors import BudgetError, DimensionError
from tilewise.kernels.declaration import checked_signature
from tilewise.machine import ARENAS
from tilewise.memory import ALLOCATOR_KEEPS, Workload
from tilewise.outputs import Output, lay_out
from tilewise.planning import _touches, make_plan
from tilewise.plans import Plan
from tilewise.sources import Input, find

MIB = 1 << 20


def workload(path: str, output: Output | None = None) -> Workload:
    source = find("x", Input(store=path))
    kernel = Copy(dim="band")
    signature = checked_signature(kernel, {"x": source.spec})
    output = output or Output(store="unused")
    targets = lay_out(output, signature.outputs, [source], signature.tile_dims)
    return Workload(kernel, signature, {"x": source}, targets)


def cube(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> str:
    """A store without data: metadata is all that planning reads."""
    group = zarr.create_group(path, overwrite=True)
    group.create_array(
        "x", shape=shape, chunks=chunks, dtype="float32", dimension_names=("band", "y", "x")[: len(shape)], **options
    )
    return str(path)


def planned(work: Workload, limit: int = 1 << 40, **options: Any) -> Plan:
    settings: dict[str, Any] = {"baseline": 100 * MIB, "processes": 2, "slots": 1, **options}
    return make_plan(work, memory_limit=limit, **settings)


def test_tiles_are_whole_write_units_of_every_output(tmp_path: Path) -> None:
    path = cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100))
    for shards, unit in ((None, (60, 100)), ({"y": 240}, (240, 100))):
        plan = planned(workload(path, Output(store="o", chunks={"y": 60}, shards=shards)))
        assert plan.unit == unit
        assert all(t % u == 0 or t == n for t, u, n in zip(plan.grid.tile_shape, unit, (1000, 1000), strict=True))


def test_tiles_prefer_whole_input_chunks(tmp_path: Path) -> None:
    path = cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100))
    plan = planned(workload(path, Output(store="o", chunks={"y": 20, "x": 50})))
    assert plan.grid.tile_shape[0] % 100 == 0
    assert plan.read_amplification == 1.0


def test_a_tile_that_cuts_chunks_says_what_it_costs(tmp_path: Path) -> None:
    path = cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100))
    work = workload(path, Output(store="o", chunks={"y": 50, "x": 50}))
    assert planned(work, tile={"y": 50, "x": 100}).read_amplification == pytest.approx(2.0)


def test_tiles_grow_with_the_budget_and_never_beyond_it(tmp_path: Path) -> None:
    path = cube(tmp_path / "s", (50, 20000, 20000), (50, 100, 100))
    work = workload(path)
    previous = 0
    for limit in (260, 310, 360, 460, 660, 960):
        plan = planned(work, limit * MIB)
        assert plan.memory.peak <= limit * MIB
        assert math.prod(plan.grid.tile_shape) >= previous
        previous = math.prod(plan.grid.tile_shape)


def test_a_budget_too_small_for_one_write_unit_is_refused_with_the_one_that_would_do(tmp_path: Path) -> None:
    output = Output(store="o", chunks={"y": 1000, "x": 1000})
    work = workload(cube(tmp_path / "s", (50, 4000, 4000), (50, 1000, 1000)), output)
    with pytest.raises(BudgetError, match=r"y=1000, x=1000 .* memory_limit 300 MiB") as caught:
        planned(work, 300 * MIB)
    needed = int(caught.value.do.split("at least ")[1].split(" MiB")[0].replace(",", ""))
    assert planned(work, needed * MIB).grid.tile_shape == (1000, 1000)


def test_a_tile_that_shares_a_write_unit_is_refused(tmp_path: Path) -> None:
    work = workload(cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100)))
    with pytest.raises(DimensionError, match="two tiles would share one; got: 150; expected: a multiple of 100"):
        planned(work, tile={"y": 150})
    with pytest.raises(DimensionError, match="'z', which is no tile dimension; expected: one of y, x"):
        planned(work, tile={"z": 1})
    assert planned(work, tile={"y": 5000, "x": 300}).grid.tile_shape == (1000, 300)


def test_empty_dimensions_are_refused(tmp_path: Path) -> None:
    for shape in ((0, 5, 5), (3, 0, 5)):
        path = cube(tmp_path / str(shape), shape, tuple(max(1, n) for n in shape))
        with pytest.raises(DimensionError, match="is empty"):
            planned(workload(path))


def test_an_allocator_that_nobody_has_set_keeps_something_for_each_tile_in_work(tmp_path: Path) -> None:
    plan = planned(workload(cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100))), slots=2, settled=False)
    assert plan.memory.allocator == 3 * ALLOCATOR_KEEPS
    assert plan.with_read_ahead(3, 1 << 40).memory.allocator == 9 * ALLOCATOR_KEEPS
    assert Plan.from_dict(plan.to_dict(), plan.grid.size).memory == plan.memory


def test_memory_is_the_sum_of_its_lines(tmp_path: Path) -> None:
    memory = planned(workload(cube(tmp_path / "s", (4, 1000, 1000), (4, 100, 100))), slots=3).memory
    box = 4 * 4 * math.prod(planned(workload(str(tmp_path / "s")), slots=3).grid.tile_shape)
    assert memory.boxes == memory.outputs == box
    assert memory.peak == 100 * MIB + 3 * (2 * box + memory.transient) + ARENAS * ALLOCATOR_KEEPS


def test_every_slot_gets_several_tiles_and_a_block_is_a_few(tmp_path: Path) -> None:
    plan = planned(workload(cube(tmp_path / "s", (4, 100000, 100000), (4, 100, 100))))
    assert plan.tiles >= 16
    assert plan.blocks * plan.block >= plan.tiles > (plan.blocks - 1) * plan.block


def test_a_field_without_tile_dimensions_is_one_tile(tmp_path: Path) -> None:
    plan = planned(workload(cube(tmp_path / "s", (7,), (3,))))
    assert (plan.tiles, plan.grid.shape, plan.read_amplification) == (1, (), pytest.approx(9 / 7))


def test_a_petabyte_is_planned_like_a_megabyte(tmp_path: Path) -> None:
    plan = planned(workload(cube(tmp_path / "s", (50, 2_300_000, 2_300_000), (50, 100, 100))))
    assert plan.needed_bytes > 10**15
    assert plan.tiles > 10**6


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 70))
def test_touches_counts_pairs_of_tiles_and_chunks(size: int, chunk: int, tile: int) -> None:
    pairs = {(cell // tile, cell // chunk) for cell in range(size)}
    assert _touches(size, chunk, min(tile, size)) == len(pairs)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60, deadline=None
)
@given(data=st.data())
def test_any_plan_covers_the_grid_and_shares_no_write_unit(tmp_path: Path, data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.integers(1, 300)) for _ in range(2))
    chunks = tuple(draw(st.integers(1, 64)) for _ in range(2))
    path = cube(tmp_path / "s", (3, *shape), (3, *(min(c, n) for c, n in zip(chunks, shape, strict=True))))
    unit = draw(st.integers(1, 40))
    shard = draw(st.sampled_from([None, {"y": unit * draw(st.integers(1, 4))}]))
    work = workload(path, Output(store="o", chunks={"y": unit}, shards=shard))
    try:
        plan = planned(work, draw(st.integers(165, 200)) * MIB)
    except BudgetError:
        return
    owners: dict[tuple[int, ...], int] = {}
    for tile in plan.grid:
        for cell in itertools.product(*(range(a, b) for a, b in zip(tile.start, tile.stop, strict=True))):
            key = tuple(c // u for c, u in zip(cell, work.targets[0].unit[1:], strict=True))
            assert owners.setdefault(key, tile.number) == tile.number
    assert sum(math.prod(t.sizes.values()) for t in plan.grid) == math.prod(shape)


def test_planning_reads_no_chunk(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "s", {"x": (("band", "y", "x"), np.ones((2, 8, 8)))})
    for chunk in (tmp_path / "s" / "x" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"not a chunk")
    assert planned(workload(path)).tiles >= 1
