"""The contract, over every kernel: declarations are true, doors and schedulers agree, tiles do not matter."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize

import clusters
import contract
import harness
import stores
import tilewise
from tilewise import config
from tilewise.kernels.base import Kernel, Signature

EXAMPLES = contract.examples()
FIRST = list({type(e.kernel): e for e in reversed(EXAMPLES)}.values())


def name(example: contract.Example) -> str:
    return f"{example.kernel.name}-{EXAMPLES.index(example)}"


def built_in() -> set[str]:
    return {n for n, cls in Kernel.registered().items() if cls.__module__.startswith("tilewise.")} - {"doc_mean"}


def test_every_kernel_of_the_package_has_an_example() -> None:
    assert {e.kernel.name for e in EXAMPLES} == built_in()


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_declarations_are_true(example: contract.Example) -> None:
    signature = harness.declare(example.kernel, example.fields)
    outputs = harness.evaluate(example.kernel, example.fields)
    assert set(outputs) == {spec.name for spec in signature.outputs}
    for spec in signature.outputs:
        assert outputs[spec.name].shape == spec.shape
        assert outputs[spec.name].dtype == spec.dtype
        assert spec.dims[len(spec.dims) - len(signature.tile_dims) :] == signature.tile_dims
    assert example.kernel.panel(signature) % 64 == 0
    assert example.kernel.workspace(signature, signature.sizes, panel=example.kernel.panel(signature)) >= 0


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_kernels_are_values_that_travel(example: contract.Example) -> None:
    kernel = example.kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert pickle.loads(cloudpickle.dumps(kernel)) == kernel
    hash(kernel)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_a_job_file_says_the_same_kernel(example: contract.Example) -> None:
    job = tilewise.Job(kernel=example.kernel, inputs={n: f"{n}.zarr" for n in example.fields}, output="o.zarr")
    assert config.loads(config.dump(job)).kernel == example.kernel


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_inputs_are_never_written_to(example: contract.Example) -> None:
    before = {n: np.array(data) for n, (_, data) in example.fields.items()}
    harness.evaluate(example.kernel, example.fields)
    for n, (_, data) in example.fields.items():
        np.testing.assert_array_equal(np.array(data), before[n])


def store_fields(folder: Path, example: contract.Example) -> dict[str, Any]:
    found = {}
    for n, (dims, data) in example.fields.items():
        chunks = {dim: -(-size // 3) for dim, size in zip(dims, np.asarray(data).shape, strict=True)}
        found[n] = stores.write(folder / f"{n}.zarr", {n: (dims, data)}, chunks=chunks)
    return found


def run(folder: Path, example: contract.Example, kind: Any, tile: dict[str, int], **place: Any) -> dict[str, Any]:
    inputs = {n: str(folder / f"{n}.zarr") for n in example.fields}
    if not (folder / f"{next(iter(inputs))}.zarr").exists():
        store_fields(folder, example)
    signature = harness.declare(example.kernel, example.fields)
    output = tilewise.Output(store=str(folder / "out.zarr"), chunks=smallest_tile(signature))
    job = tilewise.Job(
        kernel=example.kernel,
        inputs=inputs,
        output=output,
        tile=tile,
        cluster=tilewise.Cluster(kind=kind, workers=2, **place),
    )
    report = tilewise.run(job, overwrite=True)
    return {spec.name: stores.read(report.output, spec.name) for spec in signature.outputs}


def smallest_tile(signature: Signature) -> dict[str, int]:
    """At least two cells, and at most nine tiles, along each dimension."""
    return {dim: max(2, -(-signature.sizes[dim] // 9)) for dim in signature.tile_dims}


def tilings(example: contract.Example) -> list[dict[str, int]]:
    """Three tile shapes: the smallest, all of it, and one that is wide along the last dimension."""
    signature = harness.declare(example.kernel, example.fields)
    sizes = {dim: signature.sizes[dim] for dim in signature.tile_dims}
    smallest = smallest_tile(signature)
    wide = {**smallest, **dict(list(sizes.items())[-1:])}
    return [smallest, sizes, wide]


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_tiles_do_not_matter(tmp_path: Path, example: contract.Example) -> None:
    results = [run(tmp_path, example, "threads", tile) for tile in tilings(example)]
    whole = harness.evaluate(example.kernel, example.fields)
    for result in [*results, whole]:
        for n, values in result.items():
            contract.agree(n, values, results[0][n], example.bound(n, results[0]))


#: Workers of others run every kernel (below). Those that are started here differ in how they are started, of which no
#: kernel knows: one without and one with a shared input to prepare in each process.
LOCAL = [("processes", example) for example in FIRST if example.kernel.name in ("norm", "nnls")]
LOCAL += [("local", example) for example in FIRST if example.kernel.name == "lstsq"]


@pytest.mark.parametrize(("kind", "example"), LOCAL, ids=lambda value: value if isinstance(value, str) else name(value))
def test_every_local_kind_gives_the_same_bits(tmp_path: Path, example: contract.Example, kind: str) -> None:
    tile = tilings(example)[2]
    threads = run(tmp_path, example, "threads", tile)
    for n, values in run(tmp_path, example, kind, tile).items():
        assert values.tobytes() == threads[n].tobytes()


def lazily(example: contract.Example, chunks: dict[str, int] | None) -> xr.Dataset:
    """The example by the lazy door, its inputs cut into chunks along their tile dimensions; in memory for None."""
    signature = harness.declare(example.kernel, example.fields)
    fields = {n: xr.DataArray(data, dims=tuple(dims)) for n, (dims, data) in example.fields.items()}
    if chunks is not None:
        for n, field in fields.items():
            fields[n] = field.chunk({d: -1 if d in signature.core[n] else chunks[d] for d in field.dims})
    found = example.kernel(**fields)
    assert isinstance(found, xr.Dataset) == (len(signature.outputs) > 1)
    return found if isinstance(found, xr.Dataset) else found.to_dataset()


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_the_lazy_door_agrees_with_the_others(tmp_path: Path, example: contract.Example) -> None:
    streamed = run(tmp_path, example, "threads", tilings(example)[0])
    whole = harness.evaluate(example.kernel, example.fields)
    for chunks in [None, *tilings(example)]:
        found = lazily(example, chunks).compute(scheduler="threads")
        for n, values in whole.items():
            bound = example.bound(n, whole)
            contract.agree(n, found[n].values, values, bound)
            contract.agree(n, found[n].values, streamed[n], bound)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_the_lazy_door_declares_what_it_computes(example: contract.Example) -> None:
    signature = harness.declare(example.kernel, example.fields)
    for chunks in tilings(example):
        lazy = lazily(example, chunks)
        assert list(lazy.data_vars) == [spec.name for spec in signature.outputs]
        for spec in signature.outputs:
            array = lazy[spec.name].data
            assert (lazy[spec.name].dims, array.shape, str(array.dtype)) == (spec.dims, spec.shape, spec.dtype)
            assert (type(array._meta), array._meta.ndim, array._meta.dtype) == (np.ndarray, array.ndim, array.dtype)
            cut = dict(zip(spec.dims, array.chunks, strict=True))
            assert {d: c[0] for d, c in cut.items() if d in chunks} == chunks
            assert all(len(c) == 1 for d, c in cut.items() if d not in chunks)
            for index in np.ndindex(array.numblocks):
                block = array.blocks[index]
                done = np.asarray(block.compute(scheduler="sync"))
                assert (done.shape, done.dtype) == (block.shape, array.dtype)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_kernels_have_one_token(example: contract.Example) -> None:
    with dask.config.set({"tokenize.ensure-deterministic": True}):
        token = tokenize(example.kernel)
        assert token == tokenize(pickle.loads(pickle.dumps(example.kernel)))
        assert len({tokenize(e.kernel) for e in FIRST}) == len(FIRST)


@pytest.mark.parametrize("example", FIRST, ids=name)
def test_workers_of_somebody_else_give_the_same_bits(
    tmp_path: Path, example: contract.Example, workers_of_others: Path
) -> None:
    tile, address = tilings(example)[2], clusters.address(workers_of_others)
    threads = run(tmp_path, example, "threads", tile)
    for n, values in run(tmp_path, example, "address", tile, address=address).items():
        assert values.tobytes() == threads[n].tobytes()


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_a_poisoned_pixel_changes_no_other(example: contract.Example) -> None:
    signature = harness.declare(example.kernel, example.fields)
    streamed = [n for n in signature.streamed if set(signature.fields[n].dims) >= set(signature.tile_dims)]
    if not streamed:
        pytest.skip("no input has every tile dimension")
    n = streamed[0]
    dims, data = example.fields[n]
    poisoned = np.array(data)
    if poisoned.dtype.kind not in "fc":
        pytest.skip("integers hold no NaN")
    pixel = {dim: size // 2 for dim, size in signature.sizes.items() if dim in signature.tile_dims}
    poisoned[tuple(pixel.get(dim, slice(None)) for dim in dims)] = np.nan
    clean = harness.evaluate(example.kernel, example.fields)
    hurt = harness.evaluate(example.kernel, {**example.fields, n: (dims, poisoned)})
    for spec in signature.outputs:
        other = np.ones(spec.shape, dtype=bool)
        other[tuple(pixel.get(dim, slice(None)) for dim in spec.dims)] = False
        assert clean[spec.name][other].tobytes() == hurt[spec.name][other].tobytes()


def test_declaring_imports_no_torch() -> None:
    code = "import sys, tilewise.kernels; assert not {'torch', 'numpy', 'dask'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_footprints_are_bytes(example: contract.Example) -> None:
    signature = harness.declare(example.kernel, example.fields)
    footprint = example.kernel.footprint(signature)
    assert 0 <= footprint.state <= footprint.peak
