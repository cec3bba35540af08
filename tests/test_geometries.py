"""No two tiles share a write unit, whatever the geometry; scripts/check_geometries.py runs a thousand of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import geometries
import stores
import tilewise
from tilewise.errors import DimensionError
from tilewise.fields import OutputSpec, TileGrid
from tilewise.outputs import Output, lay_out
from tilewise.program import refuse_shared_units
from user_kernels import Total

THREADS = tilewise.Cluster(kind="threads", workers=4)


@pytest.mark.parametrize("number", range(6))
def test_random_geometries_lose_no_cell(tmp_path: Path, number: int) -> None:
    geometry = geometries.random_geometry(np.random.default_rng([6, number]))
    report = tilewise.run(geometry.job(tmp_path, THREADS))
    assert report.tiles == report.plan.tiles
    assert geometry.wrong(tmp_path) == 0


@pytest.mark.parametrize("sharded", [False, True])
def test_tiles_that_share_write_units_are_refused_by_plan_and_program(tmp_path: Path, sharded: bool) -> None:
    job = geometries.planted(sharded=sharded).job(tmp_path, THREADS)
    with pytest.raises(DimensionError, match="so two tiles would share one"):
        tilewise.run(replace(job, tile=geometries.MISALIGNED))
    assert not (tmp_path / "out.zarr").exists()
    text = r"share write units of output 'copy'; got: tiles of 3 for write units of 8; .* set tile\.a to 8"
    with pytest.raises(DimensionError, match=text):
        geometries.misaligned(job, tmp_path.name)


def test_past_the_guard_cells_would_be_lost(tmp_path: Path) -> None:
    """Else the comparison above would be blind."""
    geometry = geometries.planted(sharded=False)
    program = geometries.misaligned(geometry.job(tmp_path, THREADS), tmp_path.name, guarded=False)
    geometries.stream(program, THREADS)
    assert geometry.wrong(tmp_path) > 0


def guard(tile: tuple[int, ...], size: tuple[int, ...] = (10, 7), dims: tuple[str, ...] = ("y", "x")) -> None:
    spec = OutputSpec("o", dims, tuple({"y": 10, "x": 7}[dim] for dim in dims), "float64")
    targets = lay_out(Output(store="o.zarr", chunks={"y": 4, "x": 3} if len(dims) == 2 else {}), [spec], [], dims)
    refuse_shared_units(TileGrid(("y", "x"), size, tile), targets)


def test_the_guard_knows_whole_units_and_whole_dimensions() -> None:
    for fits in [(4, 3), (8, 6), (10, 7), (12, 3), (4, 9)]:
        guard(fits)
    for shares in [(2, 3), (4, 4), (9, 3), (5, 7)]:
        with pytest.raises(DimensionError, match="would share write units"):
            guard(shares)


def test_an_output_without_a_tile_dimension_is_one_unit_along_it() -> None:
    guard((10, 7), dims=("y",))
    with pytest.raises(DimensionError, match="along 'x' would share write units of output 'o'"):
        guard((10, 1), dims=("y",))


def test_an_output_of_a_single_value_is_not_sharded(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "in.zarr", {"x": (("band",), np.arange(3.0))})
    output = tilewise.Output(store=tmp_path / "out.zarr", shards={})
    tilewise.run(tilewise.Job(kernel=Total(dim="band"), inputs={"x": path}, output=output))
    assert stores.read(tmp_path / "out.zarr", "total") == 3
