"""The promise: no process ever needs more than the plan said. Bytes do not jitter, so they are asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import tilewise
from faults import Copy
from s3_server import S3Server
from tilewise import access
from tilewise.memory import megabytes

SHAPE, CHUNK = (20, 1500, 1000), (20, 250, 250)


def cube(path: Path, dtype: str, **options: Any) -> str:
    rng, attrs = np.random.default_rng(0), options.pop("attrs", {})
    group = zarr.create_group(path, zarr_format=options.pop("zarr_format", 3))
    names = {"dimension_names": ("band", "y", "x")} if group.metadata.zarr_format == 3 else {}
    array = group.create_array("x", shape=SHAPE, dtype=dtype, **{"chunks": CHUNK, **names, **options})
    array.attrs["_ARRAY_DIMENSIONS"] = ["band", "y", "x"]
    array.attrs.update(attrs)
    for y in range(0, SHAPE[1], 500):
        array[:, y : y + 500] = (rng.standard_normal((SHAPE[0], 500, SHAPE[2])) * 1000).astype(dtype)
    return str(path)


def netcdf(path: Path, chunks: tuple[int, ...] | None) -> str:
    values = (np.random.default_rng(0).standard_normal(SHAPE) * 1000).astype("int16")
    data = xr.Dataset({"v": (("band", "y", "x"), values, PACKED)})
    encoding = {"chunksizes": chunks, "zlib": True, "complevel": 1} if chunks else {}
    data.to_netcdf(path, engine="netcdf4", encoding={"v": encoding})
    return str(path)


PACKED = {"scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -1}
STORES: dict[str, dict[str, Any]] = {
    "chunked": {"dtype": "float32"},
    "sharded": {"dtype": "float32", "chunks": (20, 50, 50), "shards": CHUNK},
    "promoted": {"dtype": ">i2", "zarr_format": 2},
    "row by row": {"dtype": "float32", "chunks": (1, 500, 1000)},
    "packed and sharded": {"dtype": "int16", "attrs": PACKED, "chunks": (20, 50, 50), "shards": CHUNK},
}
OUTPUTS: dict[str, dict[str, Any]] = {
    "chunked": {"chunks": {"y": 250, "x": 250}},
    "sharded": {"chunks": {"y": 125, "x": 125}, "shards": {"y": 500, "x": 500}},
    "ragged": {"chunks": {"y": 350, "x": 300}, "dtype": "float64"},
    "packed": {"chunks": {"y": 250, "x": 250}, "encoding": {"copy": {"dtype": "int16", "scale_factor": 0.1}}},
}


@pytest.mark.parametrize(
    ("source", "output", "kind"),
    [
        ("chunked", "chunked", "processes"),
        ("sharded", "ragged", "processes"),
        ("promoted", "sharded", "local"),
        ("row by row", "sharded", "local"),
        ("packed and sharded", "packed", "processes"),
        ("netcdf", "chunked", "processes"),
        ("netcdf without chunks", "packed", "processes"),
    ],
)
def test_no_process_needs_more_than_the_plan_says(tmp_path: Path, source: str, output: str, kind: Any) -> None:
    if source.startswith("netcdf"):
        path = netcdf(tmp_path / "in.nc", CHUNK if source == "netcdf" else None)
    else:
        path = cube(tmp_path / "in.zarr", **STORES[source])
    job = tilewise.Job(
        kernel=Copy(dim="band"),
        inputs={"x": path},
        output=tilewise.Output(store=str(tmp_path / "out.zarr"), **OUTPUTS[output]),
        cluster=tilewise.Cluster(kind=kind, workers=1),
        tile={"x": 1000},
    )
    report = tilewise.run(job)
    memory = report.plan.memory
    print(megabytes(memory.baseline), megabytes(memory.per_slot), megabytes(memory.peak), megabytes(report.peak))
    assert report.peak <= memory.peak
    assert report.peak > memory.baseline + memory.boxes


@pytest.mark.parametrize("scheme", ["s3", "obstore+s3"])
def test_no_process_needs_more_for_a_remote_job(s3: S3Server, scheme: str) -> None:
    bucket = "memory" + scheme[:2]
    s3.make_bucket(bucket)
    store = access.zarr_store(f"{scheme}://{bucket}/in.zarr", read_only=False)
    group = zarr.create_group(store)
    options: dict[str, Any] = {"chunks": CHUNK, "compressors": None, "dimension_names": ("band", "y", "x")}
    array = group.create_array("x", shape=(20, 500, 1000), dtype="float64", **options)
    array[...] = np.random.default_rng(0).standard_normal(array.shape)
    job = tilewise.Job(
        kernel=Copy(dim="band"),
        inputs={"x": f"{scheme}://{bucket}/in.zarr"},
        output=tilewise.Output(store=f"{scheme}://{bucket}/out.zarr", codec="none", chunks={"y": 250, "x": 250}),
        cluster=tilewise.Cluster(kind="processes", workers=1),
        tile={"y": 250, "x": 500},
    )
    report = tilewise.run(job)
    memory = report.plan.memory
    print(megabytes(memory.baseline), megabytes(memory.per_slot), megabytes(memory.peak), megabytes(report.peak))
    assert report.peak <= memory.peak
    assert report.peak > memory.baseline + memory.boxes
