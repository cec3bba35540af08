"""One job by every door: lazy, streamed, on workers of somebody else, and from and to S3.

Streamed runs of one tiling have the same bits wherever they run and whatever they read from and write to; the lazy door
is within the bound of its kernel, which is 0 for norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import clusters
import contract
import harness
import tilewise
from s3_server import S3Server
from tilewise import access

#: One whose bits never depend on the tile, and one with a shared input, several outputs and a status.
EXAMPLES = [next(e for e in contract.examples() if e.kernel.name == name) for name in ("norm", "lstsq")]


@dataclass(frozen=True)
class Doors:
    """A folder and a bucket with the inputs of every example, and workers of somebody else that see both."""

    folder: Path
    scheduler_file: Path

    def place(self, where: str, name: str) -> str:
        return {"disk": f"{self.folder}/{name}", "s3": f"s3://doors/{name}", "obstore": f"obstore+s3://doors/{name}"}[
            where
        ]

    def cluster(self, kind: Any) -> tilewise.Cluster:
        more = {
            "address": {"address": clusters.address(self.scheduler_file)},
            "scheduler-file": {"scheduler_file": str(self.scheduler_file)},
        }
        return tilewise.Cluster(kind=kind, workers=2, **more.get(kind, {}))


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, _s3_server: S3Server, workers_of_others: Path) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in _s3_server.environment.items():
            patch.setenv(key, value)
        _s3_server.make_bucket("doors")
        found = Doors(folder, workers_of_others)
        for example in EXAMPLES:
            for name, (dims, data) in example.fields.items():
                write(found, f"{example.kernel.name}-{name}.zarr", name, tuple(dims), np.asarray(data))
        yield found


def write(doors: Doors, store: str, name: str, dims: tuple[str, ...], data: np.ndarray[Any, Any]) -> None:
    chunks = tuple(-(-size // 3) for size in data.shape)
    for where in ("disk", "s3"):
        group = zarr.create_group(access.zarr_store(doors.place(where, store), read_only=False))
        group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=chunks, dimension_names=dims)[...] = data


def tiles(example: contract.Example) -> dict[str, int]:
    signature = harness.declare(example.kernel, example.fields)
    return {dim: max(2, -(-signature.sizes[dim] // 3)) for dim in signature.tile_dims}


def streamed(doors: Doors, example: contract.Example, kind: str, source: str, target: str) -> dict[str, Any]:
    """Outputs of a run from one place to another."""
    name = example.kernel.name
    store = doors.place(target, f"{name}-{kind}-{source}.zarr")
    job = tilewise.Job(
        kernel=example.kernel,
        inputs={n: doors.place(source, f"{name}-{n}.zarr") for n in example.fields},
        output=tilewise.Output(store=store, chunks=tiles(example)),
        tile=tiles(example),
        cluster=doors.cluster(kind),
    )
    tilewise.run(job, overwrite=True)
    with xr.open_zarr(access.zarr_store(store, read_only=True), chunks=None, mask_and_scale=False) as result:
        return {n: np.array(values) for n, values in result.data_vars.items()}


#: What tests/test_contract.py and tests/test_places.py do not run: workers of others, and all ways from and to S3.
RUNS = [
    ("address", "disk", "disk"),
    ("address", "s3", "s3"),
    ("scheduler-file", "disk", "s3"),
    ("threads", "s3", "s3"),
    ("threads", "obstore", "obstore"),
]


@pytest.mark.parametrize(("kind", "source", "target"), RUNS, ids="-".join)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.kernel.name)
def test_a_run_has_the_same_bits_everywhere(
    doors: Doors, example: contract.Example, kind: str, source: str, target: str
) -> None:
    expected = streamed(doors, example, "threads", "disk", "disk")
    for n, values in streamed(doors, example, kind, source, target).items():
        assert values.tobytes() == expected[n].tobytes(), n


@pytest.mark.parametrize("source", ["disk", "s3"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.kernel.name)
def test_the_lazy_door_agrees(doors: Doors, example: contract.Example, source: str) -> None:
    expected = streamed(doors, example, "threads", "disk", "disk")
    signature = harness.declare(example.kernel, example.fields)
    fields = {}
    for n in example.fields:
        store = access.zarr_store(doors.place(source, f"{example.kernel.name}-{n}.zarr"), read_only=True)
        field = xr.open_zarr(store, mask_and_scale=False, consolidated=False)[n]
        cut = {dim: -1 if dim in signature.core[n] else tiles(example)[dim] for dim in field.dims}
        fields[n] = field.chunk(cut)
    found = example.kernel(**fields).compute()
    found = found if isinstance(found, xr.Dataset) else found.to_dataset()
    for n, values in expected.items():
        contract.agree(n, found[n].values, values, example.bound(n, expected))
