"""Fingerprints: equal for what gives the same bits, and a difference is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import stores
import tilewise
from tilewise import Cluster, Input, Job, Output
from tilewise.fingerprint import difference, environment, environment_changes, fingerprint
from tilewise.surveys import described, workload


def store(path: Path, chunk: int = 4) -> str:
    return stores.write(path, {"x": (("p", "y", "x"), np.ones((2, 8, 9), "float32"))}, chunks={"y": chunk, "x": 9})


def job(tmp_path: Path, **changes: Any) -> Job:
    base = {
        "kernel": tilewise.Norm(dim="p"),
        "inputs": {"x": Input(store=tmp_path / "in.zarr")},
        "output": Output(store=str(tmp_path / "o.zarr")),
        "memory_limit": "2 GiB",
    }
    return Job(**{**base, **changes})


def print_of(job: Job) -> dict[str, Any]:
    return fingerprint(workload(job, described(job)), job)


def test_it_survives_being_written_down_and_differs_from_itself_in_nothing(tmp_path: Path) -> None:
    store(tmp_path / "in.zarr")
    found = print_of(job(tmp_path))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert difference(found, print_of(job(tmp_path))) is None


def test_budget_workers_and_what_becomes_of_errors_are_no_part_of_it(tmp_path: Path) -> None:
    store(tmp_path / "in.zarr")
    first = job(tmp_path, tile={"y": 4, "x": 9})
    other = replace(
        first, memory_limit="3 GiB", cluster=Cluster(kind="processes", workers=2), on_error="skip", retries=0
    )
    assert difference(print_of(first), print_of(other)) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kernel": tilewise.Norm(dim="p", ord=1)}, "kernel.ord was 2.0, is 1.0"),
        ({"output": {"dtype": "float64"}}, "outputs.norm.dtype was float32, is float64"),
        ({"output": {"chunks": {"y": 8}}}, r"outputs.norm.chunks was \[4, 9\], is \[8, 9\]"),
        ({"output": {"shards": {"y": 8}}}, r"outputs.norm.shards was null, is \[8, 9\]"),
        ({"output": {"codec": "gzip"}}, "outputs.norm.codec was .*zstd.*, is .*gzip"),
        ({"output": {"attrs": {"norm": {"units": "m"}}}}, "outputs.norm.attrs.units was absent, is m"),
        ({"output": {"encoding": {"norm": {"dtype": "int16", "scale_factor": 0.1}}}}, "outputs.norm.dtype was"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    store(tmp_path / "in.zarr")
    if "output" in changes:
        changes = {"output": Output(store=str(tmp_path / "o.zarr"), **changes["output"])}
    before = print_of(job(tmp_path, tile={"y": 8}))
    after = print_of(job(tmp_path, **{"tile": {"y": 8}, **changes}))
    found = difference(before, after)
    assert found is not None
    assert re.search(named, found), found


def test_another_input_is_named_by_its_place_and_metadata(tmp_path: Path) -> None:
    store(tmp_path / "in.zarr")
    before = print_of(job(tmp_path, tile={"y": 8}))
    store(tmp_path / "other.zarr", chunk=8)
    output = Output(store=str(tmp_path / "o.zarr"), chunks={"y": 4})
    after = print_of(job(tmp_path, tile={"y": 8}, inputs={"x": tmp_path / "other.zarr"}, output=output))
    found = difference(before, after)
    assert found == (
        "inputs.x.chunks was [2, 4, 9], is [2, 8, 9]; "
        f'inputs.x.arrays was ["{tmp_path}/in.zarr/x"], is ["{tmp_path}/other.zarr/x"]'
    )


def test_arrays_in_memory_are_told_apart_by_their_values(tmp_path: Path) -> None:
    data = np.ones((2, 8, 9), "float32")
    labelled = xr.DataArray(data, dims=("p", "y", "x"))
    lazily = labelled.chunk({"y": 4})
    other = labelled.copy(data=data * 2)

    def of(values: Any) -> dict[str, Any]:
        given = Input(store=values, dims=("p", "y", "x")) if isinstance(values, np.ndarray) else Input(store=values)
        return print_of(job(tmp_path, inputs={"x": given}))

    assert difference(of(data), of(data.copy())) is None
    assert difference(of(data), of(labelled)) is None
    assert str(difference(of(labelled), of(other))).startswith("inputs.x.values was ")
    assert difference(of(lazily), of(labelled.chunk({"y": 4}))) is None
    for name, values in (("one", labelled), ("two", other)):
        values.to_dataset(name="v").to_zarr(tmp_path / name, consolidated=False)
    with (
        xr.open_zarr(tmp_path / "one", chunks=None, consolidated=False) as one,
        xr.open_zarr(tmp_path / "two", chunks=None, consolidated=False) as two,
    ):
        assert difference(of(one["v"]), of(one["v"])) is None
        assert str(difference(of(one["v"]), of(two["v"]))).startswith("inputs.x.values was ")
    here, there = (labelled.assign_coords(y=np.arange(8) + shift) for shift in (0, 1))
    assert str(difference(of(here), of(there))).startswith("inputs.x.values was ")
    assert str(difference(of(lazily), of(other.chunk({"y": 4})))).startswith("inputs.x.values was ")


def test_many_differences_are_counted() -> None:
    old = {"a": {str(i): i for i in range(5)}}
    new = {"a": {str(i): i + 1 for i in range(5)}}
    assert difference(old, new) == "a.0 was 0, is 1; a.1 was 1, is 2; a.2 was 2, is 3, and 2 more"


def test_libraries_and_the_cpu_are_compared_apart() -> None:
    now = environment("AVX2")
    assert environment_changes(now, environment("AVX2")) == ()
    (change,) = environment_changes(now, environment("AVX512"))
    assert change.startswith("CPU capability was AVX2, is AVX512: tiles that are done now may differ")
