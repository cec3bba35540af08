from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import stores
import tilewise
from faults import Copy, FailsAt, LacksTileDimension, LeavesCells, NoOutputs, UndeclaredOutput, WrongShape
from tilewise import machine
from tilewise.errors import (
    BudgetError,
    CoordinateError,
    DimensionError,
    DTypeError,
    KernelContractError,
    MissingStoreError,
    OutputExistsError,
    ParameterError,
    TileError,
    TilewiseError,
    UnsupportedStoreError,
)

KINDS = ("threads", "processes", "local")
RNG = np.random.default_rng(7)
CUBE = RNG.standard_normal((3, 20, 30)).astype("float32")
DIMS = ("band", "y", "x")


def cube(tmp_path: Path, **options: Any) -> str:
    return stores.write(tmp_path / "in.zarr", {"x": (DIMS, CUBE)}, chunks={"y": 8, "x": 10}, **options)


def job(tmp_path: Path, source: Any = None, kernel: tilewise.Kernel | None = None, **options: Any) -> tilewise.Job:
    settings: dict[str, Any] = {"cluster": tilewise.Cluster(kind="threads"), "output": str(tmp_path / "out.zarr")}
    source = cube(tmp_path) if source is None else source
    return tilewise.Job(kernel=kernel or Copy(dim="band"), inputs={"x": source}, **{**settings, **options})


@pytest.mark.parametrize(
    ("kind", "shards"), [("threads", None), ("threads", {"y": 16, "x": 20}), ("processes", None), ("local", {"y": 16})]
)
def test_a_job_streams_from_store_to_store(tmp_path: Path, kind: str, shards: dict[str, int] | None) -> None:
    output = tilewise.Output(store=str(tmp_path / "out.zarr"), shards=shards)
    cluster = tilewise.Cluster(kind=kind, workers=1 if kind == "local" else 2)  # type: ignore[arg-type]
    events: list[tilewise.Event] = []
    report = tilewise.run(
        job(tmp_path, output=output, cluster=cluster, tile={"y": 16, "x": 20}), progress=events.append
    )
    np.testing.assert_array_equal(stores.read(output.store, "copy"), CUBE)
    assert report.tiles == report.plan.tiles == 4
    assert (events[-1].done, events[-1].total) == (4, 4)
    assert sorted(e.done for e in events) == [e.done for e in events]
    assert report.peak > report.plan.memory.baseline / 2
    with xr.open_zarr(output.store, chunks=None) as opened:
        assert opened["copy"].dims == DIMS
        assert opened.attrs["tilewise"]["job"]["kernel"]["dim"] == "band"
    sidecar = tmp_path / "out.zarr.tilewise"
    assert sorted(p.name for p in sidecar.iterdir()) == stores.RECORDS
    assert json.loads((sidecar / "report.json").read_text())["tiles"] == 4


def test_the_peak_of_threads_is_that_of_the_run(tmp_path: Path) -> None:
    # A map of its own: what an allocator is given back may stay in the process.
    with mmap.mmap(-1, 512 << 20) as block:
        np.frombuffer(block, dtype="uint8").fill(1)
    before = machine.peak()
    peak = tilewise.run(job(tmp_path)).peak
    if not machine.reset_peak():
        pytest.skip("this platform cannot reset the peak of a process")
    assert peak < before


def test_many_windows_are_done_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.engine.WINDOW", 3)
    report = tilewise.run(job(tmp_path, tile={"y": 8, "x": 10}))
    assert report.plan.blocks > 3
    np.testing.assert_array_equal(stores.read(report.output, "copy"), CUBE)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["bool", "int8", ">i4", "uint16", "float16", ">f8", "complex64"])
def test_every_dtype_arrives_native_and_floating(tmp_path: Path, zarr_format: int, dtype: str) -> None:
    data = (RNG.standard_normal((3, 5, 4)) * 50).astype(dtype)
    path = stores.write(tmp_path / "in.zarr", {"x": (DIMS, data)}, zarr_format=zarr_format, chunks={"y": 2})
    report = tilewise.run(job(tmp_path, path))
    result = stores.read(report.output, "copy")
    assert result.dtype == (np.dtype(dtype).newbyteorder("=") if data.dtype.kind in "fc" else np.dtype("float64"))
    np.testing.assert_array_equal(result, data)


def test_the_core_dimension_may_lie_anywhere(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "in.zarr", {"x": (("y", "x", "band"), CUBE.transpose(1, 2, 0))}, chunks={"band": 2})
    report = tilewise.run(job(tmp_path, path))
    np.testing.assert_array_equal(stores.read(report.output, "copy"), CUBE)


def test_stacked_variables_are_read_as_one_field(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "in.zarr", {"u": (("y", "x"), CUBE[0]), "v": (("y", "x"), CUBE[1])})
    source = tilewise.Input(store=path, variables=("v", "u"), stack="band")
    report = tilewise.run(job(tmp_path, source))
    np.testing.assert_array_equal(stores.read(report.output, "copy"), CUBE[[1, 0]])


def test_a_field_without_tile_dimensions_is_done(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "in.zarr", {"x": (("band",), CUBE[:, 0, 0])})
    report = tilewise.run(job(tmp_path, path))
    np.testing.assert_array_equal(stores.read(report.output, "copy"), CUBE[:, 0, 0])


MEMORY = {
    "numpy": tilewise.Input(store=CUBE, dims=DIMS),
    "xarray": xr.DataArray(CUBE, dims=DIMS, coords={"y": np.arange(20), "band": ["r", "g", "b"]}),
    "dask": xr.DataArray(CUBE, dims=DIMS).chunk({"y": 7, "x": 9}),
    "dataset": xr.Dataset({"x": (DIMS, CUBE)}),
    "stacked": tilewise.Input(
        store=xr.Dataset({n: (DIMS[1:], CUBE[i]) for i, n in enumerate("abc")}), variables=tuple("abc"), stack="band"
    ),
}


@pytest.mark.parametrize("form", MEMORY)
def test_in_memory_inputs_are_written_down_first_and_removed_last(tmp_path: Path, form: str) -> None:
    this = job(tmp_path, MEMORY[form])
    plan = tilewise.plan(this)
    assert not this.sidecar_folder.exists()
    report = tilewise.run(this)
    assert report.plan.grid == plan.grid
    np.testing.assert_array_equal(stores.read(report.output, "copy"), CUBE)
    assert not this.sidecar_folder.child("scratch").exists()
    if form == "xarray":
        with xr.open_zarr(report.output, chunks=None) as opened:
            assert opened["band"].values.tolist() == ["r", "g", "b"]


def refusals(tmp_path: Path) -> dict[str, tuple[dict[str, Any], type[TilewiseError], str]]:
    good = cube(tmp_path)
    return {
        "store": ({"source": str(tmp_path / "none")}, MissingStoreError, "not there"),
        "dimension": ({"kernel": Copy(dim="bnd")}, DimensionError, "no dimension 'bnd'"),
        "budget": ({"memory_limit": "10 MB"}, BudgetError, "memory_limit 10 MiB"),
        "output": ({"output": good}, OutputExistsError, "same store"),
        "shape": ({"kernel": WrongShape(dim="band")}, KernelContractError, "first pixel"),
        "undeclared": ({"kernel": UndeclaredOutput(dim="band")}, KernelContractError, "other"),
        "cells": ({"kernel": LeavesCells(dim="band")}, KernelContractError, "2 of 3 cells"),
        "tile dims": ({"kernel": LacksTileDimension(dim="band")}, KernelContractError, "without every tile"),
        "no outputs": ({"kernel": NoOutputs(dim="band")}, KernelContractError, "no outputs"),
        "numpy": ({"source": CUBE}, DimensionError, "without dimension names"),
        "list": ({"source": [1, 2]}, DTypeError, "neither a store nor an array"),
        "text": ({"source": tilewise.Input(store=np.array(["a"]), dims=("band",))}, DTypeError, "not numeric"),
        "empty": ({"source": tilewise.Input(store=CUBE[:, :0], dims=DIMS)}, DimensionError, "is empty"),
        "dtype": ({"output": tilewise.Output(store=str(tmp_path / "o"), dtype="int16")}, DTypeError, "int16"),
    }


CASES = ["store", "dimension", "budget", "output", "shape", "undeclared", "cells", "tile dims", "no outputs"]
CASES += ["numpy", "list", "text", "empty", "dtype"]


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    options, error, text = refusals(tmp_path)[case]
    options.setdefault("source", str(tmp_path / "in.zarr"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=text) as caught:
        tilewise.run(job(tmp_path, **options), overwrite=True)
    assert caught.value.do
    assert sorted(tmp_path.rglob("*")) == before


def test_an_existing_output_stays_unless_asked(tmp_path: Path) -> None:
    this = job(tmp_path)
    tilewise.run(this)
    with pytest.raises(OutputExistsError, match="already exists"):
        tilewise.run(this)
    failing = job(tmp_path, this.inputs["x"], LeavesCells(dim="band"))
    with pytest.raises(KernelContractError):
        tilewise.run(failing, overwrite=True)
    np.testing.assert_array_equal(stores.read(this.output.store, "copy"), CUBE)
    tilewise.run(this, overwrite=True)
    np.testing.assert_array_equal(stores.read(this.output.store, "copy"), CUBE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_tile_is_named_with_its_region_and_cause(tmp_path: Path, kind: str) -> None:
    kernel = FailsAt(dim="band", at=float(CUBE[0, 9, 25]))
    cluster = tilewise.Cluster(kind=kind, workers=1)  # type: ignore[arg-type]
    this = job(tmp_path, kernel=kernel, tile={"y": 8, "x": 10}, cluster=cluster)
    with pytest.raises(TileError, match=r"tile \d+ \(y=8:16, x=20:30\) failed: ArithmeticError: found") as caught:
        tilewise.run(this)
    assert "raise ArithmeticError" in str(caught.value.__cause__)


def test_the_dtype_of_the_output_is_the_jobs(tmp_path: Path) -> None:
    output = tilewise.Output(store=str(tmp_path / "o"), dtype="float64")
    assert stores.read(tilewise.run(job(tmp_path, output=output)).output, "copy").dtype == "float64"


def test_unequal_coordinates_of_two_inputs_are_refused(tmp_path: Path) -> None:
    fields = {"A": (("band", "p"), np.ones((3, 2))), "band": (("band",), [1, 2, 4])}
    library = stores.write(tmp_path / "A.zarr", fields)
    fields = {"b": (DIMS, CUBE), "band": (("band",), [1, 2, 3])}
    pixels = stores.write(tmp_path / "b.zarr", fields)
    this = tilewise.Job(
        kernel=tilewise.Lstsq(dim="band"), inputs={"A": library, "b": pixels}, output=str(tmp_path / "o")
    )
    with pytest.raises(CoordinateError, match="along 'band'; got: 4 and 3 at index 2"):
        tilewise.plan(this)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tile": "large"}, "tile is neither"),
        ({"memory_limit": "three"}, "memory_limit is not"),
        ({"memory_limit": -1}, "memory_limit is not"),
        ({"tile": 512}, "tile is neither"),
        ({"tile": (512, 512)}, "tile is neither"),
        ({"kernel": "norm"}, "kernel of a job"),
        ({"kernel": Copy}, "got: the class Copy; .* To mend it: call it: Copy"),
        ({"inputs": "x.zarr"}, "inputs of a job have no names; got: str"),
        ({"inputs": np.zeros(3)}, "inputs of a job have no names; got: ndarray"),
        ({"cluster": "threads"}, "cluster of a job is not one; got: str"),
    ],
)
def test_values_that_cannot_be_are_refused_when_the_job_is_made(tmp_path: Path, options: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        tilewise.Job(**{"kernel": Copy(dim="band"), "inputs": {"x": "x"}, "output": "o", **options})


@pytest.mark.parametrize("options", [{"chunks": (512, 512)}, {"chunks": 512}, {"shards": [512]}])
def test_sizes_without_dimensions_are_refused(options: Any) -> None:
    with pytest.raises(ParameterError, match=r"output\.(chunks|shards) names no dimensions; .* such as {'y': 512}"):
        tilewise.Output(store="o", **options)


@pytest.mark.parametrize("do", [tilewise.plan, tilewise.run])
@pytest.mark.parametrize("given", ["job.yaml", Copy(dim="band"), None])
def test_what_is_no_job_is_refused(do: Any, given: Any) -> None:
    with pytest.raises(ParameterError, match=r"is not a job; .* tilewise\.config\.load"):
        do(given)


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        (
            {"coyp": {"units": "m"}},
            r"names 'coyp', which is no output; expected: one of copy\. To mend it: write copy in",
        ),
        ({"units": {}}, r"names 'units', which is no output; .* mend output\.attrs\.units"),
        ({"copy": "m"}, "of 'copy' are not attributes by name; got: 'm'"),
    ],
)
def test_attributes_of_no_output_are_refused(tmp_path: Path, attrs: Any, text: str) -> None:
    output = tilewise.Output(store=str(tmp_path / "o"), attrs=attrs)
    this = tilewise.Job(kernel=Copy(dim="band"), inputs={"x": cube(tmp_path)}, output=output)
    with pytest.raises(ParameterError, match=text):
        tilewise.run(this)
    assert not (tmp_path / "o").exists()


def test_a_plain_script_without_a_guard_works_with_a_kernel_of_its_own(tmp_path: Path) -> None:
    """One after the other on workers of every kind, none of which runs the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(source=cube(tmp_path), folder=tmp_path, kinds=KINDS))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["once", *(f"{kind} 4" for kind in KINDS)]
    for kind in KINDS:
        np.testing.assert_array_equal(stores.read(tmp_path / f"{kind}.zarr", "twice"), 2 * CUBE)


SCRIPT = """
from dataclasses import dataclass
import tilewise
from tilewise.fields import OutputSpec

print("once")

@dataclass(frozen=True, kw_only=True)
class Twice(tilewise.Kernel, name="twice"):
    dim: str
    input_sets = (("x",),)

    def declare(self, fields):
        x = fields["x"]
        own = OutputSpec("twice", (self.dim,), (x.sizes[self.dim],), x.dtype)
        return tilewise.Signature.of(fields, core={{"x": (self.dim,)}}, outputs=[own])

    def compute(self, state, fields, out, *, panel):
        out["twice"].copy_(fields["x"]).mul_(2)

    def workspace(self, signature, sizes, *, panel):
        return 0

for kind in {kinds}:
    job = tilewise.Job(
        kernel=Twice(dim="band"), inputs={{"x": "{source}"}}, output=f"{folder}/{{kind}}.zarr",
        tile={{"y": 16, "x": 20}}, cluster=tilewise.Cluster(kind=kind, workers=1 if kind == "local" else 2),
    )
    print(kind, tilewise.run(job).tiles)
"""


def test_coordinates_that_no_store_can_hold_are_refused_by_name(tmp_path: Path) -> None:
    data = xr.DataArray(np.ones((2, 3, 2)), dims=DIMS, coords={"y": [1, 2, 3], "x": [0, 1]}).stack(pixel=("y", "x"))
    job = tilewise.Job(kernel=tilewise.Norm(dim=DIMS[0]), inputs={"x": data}, output=tmp_path / "out.zarr")
    with pytest.raises(UnsupportedStoreError, match="input 'x' cannot be written to a store.*of pixel, y, x"):
        tilewise.run(job)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attrs", [{}, {"_FillValue": np.float32("nan")}, {"_FillValue": np.float32(-1)}])
def test_planning_loads_no_more_than_it_needs(tmp_path: Path, attrs: dict[str, Any]) -> None:
    """Seconds of every plan and every refusal: torch computes tiles, xarray reads other formats and packed numbers."""
    path = str(tmp_path / "in.zarr")
    xr.Dataset({"x": (DIMS, CUBE)}).to_zarr(path, encoding={"x": attrs or {"_FillValue": None}}, consolidated=False)
    code = f"""
import sys, tilewise
kernel = tilewise.Norm(dim={DIMS[0]!r})
tilewise.plan(tilewise.Job(kernel=kernel, inputs={{"x": {path!r}}}, output="o.zarr", memory_limit="8 GiB"))
assert not {{"torch", "xarray", "pandas", "distributed", "dask.array"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
