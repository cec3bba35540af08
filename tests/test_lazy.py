"""The lazy door: kernels called on xarray objects."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from dask._task_spec import Task
from distributed import Client

import stores
import tilewise as tw
from tilewise.errors import CoordinateError, DimensionError, DTypeError, MissingVariableError, ParameterError
from tilewise.lazy import readable
from user_kernels import Five, Shifted

Y, X = 9, 8
CHUNKS = {"time": -1, "y": 4, "x": 3}
BLOCKS = 3 * 3


@pytest.fixture(scope="module")
def client(workers_of_others):
    with Client(scheduler_file=str(workers_of_others)) as found:
        found.wait_for_workers(2, timeout=120)
        yield found


def scene(dtype: str = "float64") -> xr.DataArray:
    """b (time, y, x) with coordinates of every kind."""
    rng = np.random.default_rng(3)
    data = (rng.normal(size=(12, Y, X)) * 50).astype(dtype)
    coords = {
        "time": pd.date_range("2020-01-01", periods=12),
        "y": ("y", np.arange(Y) * 10.0, {"units": "m"}),
        "x": np.arange(X),
        "season": ("time", list("wwsssuuuaaaw")),
        "row": ("y", np.arange(Y) % 2),
        "lat": (("y", "x"), rng.normal(size=(Y, X)), {"standard_name": "latitude"}),
        "spatial_ref": ((), 0, {"crs_wkt": "GEOGCRS[...]", "grid_mapping_name": "latitude_longitude"}),
        "orbit": 7,
    }
    return xr.DataArray(
        data, dims=("time", "y", "x"), name="b", coords=coords, attrs={"units": "mm", "grid_mapping": "spatial_ref"}
    )


def design(count: int = 12) -> xr.DataArray:
    return xr.DataArray(
        np.stack([np.ones(count), np.arange(count)], axis=1),
        dims=("time", "parameter"),
        name="A",
        coords={"parameter": ["mean", "trend"]},
        attrs={"units": "1"},
    )


def tasks(*collections: object) -> int:
    """Tasks in the graph as it is computed, all together: what runs, not other names of it, nor data."""
    graph = {key: node for found in dask.optimize(*collections) for key, node in dict(found.__dask_graph__()).items()}
    return sum(isinstance(node, Task) for node in graph.values())


def no_compute(dsk, keys, **kwargs):
    raise AssertionError("something was computed while building")


def calls(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def lstsq_of(b: xr.DataArray, A: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """numpy's solution, and by how much another backward stable one may differ from it.

    Each is the exact solution for data off by n p eps, so that (Higham, Accuracy and Stability, theorem 20.1) it is off
    by at most n p eps cond (|x| + cond |r| / |A|); two of them by twice that.
    """
    flat = b.values.reshape(len(b.time), -1)
    x = np.linalg.lstsq(A.values, flat, rcond=None)[0]
    r, cond, eps = np.linalg.norm(flat - A.values @ x, axis=0), np.linalg.cond(A.values), np.finfo(float).eps
    bound = 2 * A.size * eps * cond * (np.linalg.norm(x, axis=0) + cond * r / np.linalg.norm(A.values, 2))
    return x.reshape(-1, Y, X), bound.reshape(Y, X)


# --- what a call means


def ways_to_call() -> dict[str, xr.Dataset]:
    b, A, kernel = scene(), design(), tw.Lstsq(dim="time")
    both = xr.Dataset({"b": b, "A": A})
    return {
        "position": kernel(A, b),
        "pipe": b.pipe(kernel, A=A),
        "names": kernel(b=b, A=A),
        "dataset": both.pipe(kernel),
        "dataset of one variable": b.to_dataset(name="anything").pipe(kernel, A=A),
        "dataset and name": kernel(both[["b"]], A=A),
        "datasets by name": kernel(A=both[["A"]], b=both[["b"]]),
        "numpy": kernel(b=b, A=tw.Input(store=A.values, dims=A.dims)),
        "dask": kernel(b=b, A=tw.Input(store=da.from_array(A.values), dims=A.dims)),
        "variable": kernel(b=tw.Input(store=both, variable="b"), A=A),
        "other names": kernel(b=tw.Input(store=b.drop_vars("time").rename(time="t"), dims=b.dims), A=A),
    }


@pytest.mark.parametrize("way", list(ways_to_call()))
def test_inputs_are_told_apart(way):
    found = ways_to_call()[way]
    expected, bound = lstsq_of(scene(), design())
    assert found.solution.dims == ("parameter", "y", "x")
    assert (found.status == 0).all()
    assert (abs(found.solution.values - expected) <= bound).all()


def test_the_set_of_inputs_is_the_first_that_fits():
    points = xr.DataArray(np.ones((5, 3)), dims=("point", "xyz"))
    boxes = xr.DataArray(np.ones((4, 6)), dims=("box", "parameter"))
    scale, offset = boxes[:, :3].rename(parameter="xyz"), boxes[:, 3:].rename(parameter="xyz")
    kernel = tw.AffineNorm(dim="xyz")
    two = tw.AffineNorm(dim="xyz", parameter_dim="parameter")(points, boxes)
    for found in (kernel(points, scale, offset), points.pipe(kernel, offset=offset, scale=scale), two):
        assert found.dims == ("point", "box")
        np.testing.assert_allclose(found, np.sqrt(12), rtol=2 * np.finfo(float).eps)  # sqrt and a sum of exact squares


@pytest.mark.parametrize("lazy", [False, True])
def test_variables_are_stacked_as_one_input(lazy):
    wind = xr.Dataset({n: (("y", "x"), np.full((Y, X), v, "float32")) for n, v in {"u": 3, "v": 4, "w": 9}.items()})
    wind = wind.assign_coords(y=np.arange(Y), component=1.0)
    if lazy:
        wind = wind.chunk(y=4)
        wind["v"] = wind.v.chunk(y=2)
    norm = wind.pipe(tw.Norm(dim="component"), variables=["u", "v"], stack="component")
    assert (norm.chunks is not None) == lazy
    assert norm.dtype == "float32"
    assert set(norm.coords) == {"y"}
    assert (norm == 5).all()
    same = tw.Norm(dim="component")(tw.Input(store=wind, variables=["u", "v"], stack="component"))
    xr.testing.assert_identical(norm, same)


def test_a_field_may_have_its_own_name_for_a_dimension():
    ds = xr.Dataset({"x": (("time", "x"), np.ones((4, 3))), "other": ("x", np.ones(3))})
    np.testing.assert_array_equal(ds.pipe(tw.Norm(dim="time")), [2, 2, 2])
    np.testing.assert_array_equal(tw.Norm(dim="time")(x=ds), [2, 2, 2])


def test_map_applies_a_kernel_to_every_variable():
    both = xr.Dataset({"one": scene().chunk(CHUNKS), "two": scene() * 2})
    found = both.map(tw.Norm(dim="time"))
    assert found.one.chunks == ((4, 4, 1), (3, 3, 2))
    assert found.two.chunks is None
    np.testing.assert_array_equal(found.two, 2 * found.one)  # a power of two rounds nothing
    fits = both[["one"]].map(lambda b, A: tw.Lstsq(dim="time")(b=b, A=A).solution, args=(design(),))
    assert fits.one.dims == ("parameter", "y", "x")


# --- labels


def test_coordinates_survive_and_attributes_do_not():
    b, A = scene().chunk(CHUNKS), design()
    fit = b.pipe(tw.Lstsq(dim="time"), A=A)
    assert set(fit.coords) == {"y", "x", "row", "lat", "spatial_ref", "orbit", "parameter"}
    for name in ("y", "x", "row", "lat", "spatial_ref", "orbit"):
        xr.testing.assert_identical(fit.coords[name].variable.compute(), b.coords[name].variable.compute())
    assert set(fit.solution.coords) == set(fit.coords)
    assert set(fit.status.coords) == set(fit.coords) - {"parameter"}
    assert list(fit.parameter.values) == ["mean", "trend"]
    assert fit.solution.attrs == {"long_name": "solution of A x = b", "grid_mapping": "spatial_ref"}
    assert fit.status.attrs["flag_values"][:2] == [0, 1]
    assert fit.attrs == {}
    assert set(fit.indexes) == {"y", "x", "parameter"}


def test_encoding_does_not_travel(tmp_path):
    scene("float32").drop_vars("season").to_dataset().to_zarr(
        tmp_path / "in.zarr", encoding={"b": {"chunks": (12, 2, 8)}}, consolidated=False
    )
    b = xr.open_zarr(tmp_path / "in.zarr", consolidated=False, chunks={}).b.chunk(y=3)
    found = tw.Norm(dim="time")(b)
    assert found.encoding == {}
    assert all(coordinate.encoding == {} for coordinate in found.coords.values())
    found.to_zarr(tmp_path / "out.zarr", consolidated=False)  # the chunks that b was stored in do not fit these
    np.testing.assert_array_equal(stores.read(tmp_path / "out.zarr", "norm"), found.values)


def test_a_multi_index_of_pixels_survives():
    stacked = scene().drop_vars(["lat", "row"]).stack(pixel=("y", "x"))
    norm = tw.Norm(dim="time")(stacked.chunk(pixel=20))
    assert isinstance(norm.indexes["pixel"], pd.MultiIndex)
    xr.testing.assert_identical(norm.unstack("pixel").compute(), tw.Norm(dim="time")(scene().drop_vars(["lat", "row"])))
    other = stacked.isel(pixel=slice(None, None, -1))
    with pytest.raises(CoordinateError, match=r"b and A have different coordinates along 'pixel'; got: .* at index 0"):
        tw.Lstsq(dim="time")(b=stacked, A=other.expand_dims(parameter=2))


def test_kernels_are_functions_of_groups():
    b = scene()
    found = b.groupby("season").map(tw.Norm(dim="time", ord=1))
    xr.testing.assert_allclose(found, abs(b).groupby("season").sum("time"), rtol=12 * np.finfo(float).eps)


def test_the_first_input_in_the_order_of_the_kernel_labels_the_result():
    b, A = scene().assign_coords(note="of b"), design().assign_coords(note="of A", only=1)
    fit = tw.Lstsq(dim="time")(A, b)
    assert fit.note == "of b"
    assert fit.only == 1
    fit = tw.Lstsq(dim="time")(A, b.assign_coords(parameter=5))  # a label of b where A has a dimension
    assert list(fit.parameter.values) == ["mean", "trend"]


def test_missing_labels_are_no_contradiction():
    b = scene()
    fit = tw.Lstsq(dim="time")(b=b, A=design().assign_coords(time=b.time))
    assert (fit.status == 0).all()


def test_labels_that_differ_are_refused():
    b = scene()
    late = design().assign_coords(time=b.time + np.timedelta64(1, "D"))
    with pytest.raises(CoordinateError, match="A and b have different coordinates along 'time'; got: 2020-01-02"):
        tw.Lstsq(dim="time")(A=late, b=b.chunk(CHUNKS))


def test_an_output_does_not_share_its_name_with_a_coordinate():
    with pytest.raises(DimensionError, match="has the name of the output 'norm'"):
        tw.Norm(dim="time")(scene().assign_coords(norm=1))
    assert tw.Norm(dim="time")(scene().assign_coords(norm=("time", np.arange(12)))).name == "norm"  # it goes away


# --- laziness


def test_building_computes_nothing_and_declares_everything():
    b, A = scene("int16").chunk(CHUNKS), design().chunk()
    with dask.config.set(scheduler=no_compute):
        fit = b.pipe(tw.Lstsq(dim="time", diagnostics=["rank"]), A=A)
    assert fit.chunks == {"parameter": (2,), "y": (4, 4, 1), "x": (3, 3, 2)}
    assert {n: str(v.dtype) for n, v in fit.items()} == {"solution": "float64", "status": "uint8", "rank": "int32"}
    done = fit.compute(scheduler="sync")
    for name, lazy in fit.items():
        assert type(lazy.data._meta) is np.ndarray
        assert (lazy.dtype, lazy.shape, lazy.dims) == (done[name].dtype, done[name].shape, done[name].dims)
        assert lazy.data._meta.dtype == done[name].dtype
        for block in lazy.data.blocks[:, 0, 0] if lazy.ndim == 3 else lazy.data.blocks[:, 0]:
            assert np.asarray(block.compute(scheduler="sync")).shape == block.shape


def test_in_memory_arrays_are_computed_at_once():
    fit = scene().pipe(tw.Lstsq(dim="time"), A=design())
    assert fit.chunks == {}
    assert all(isinstance(v.data, np.ndarray) for v in fit.values())


def test_one_task_a_block():
    b, A = scene().reset_coords(drop=True).chunk(CHUNKS) * 1, design()
    norm, fit, five = tw.Norm(dim="time")(b), b.pipe(tw.Lstsq(dim="time"), A=A), Five(dim="time")(b)
    inputs = tasks(b)
    assert inputs == BLOCKS
    with dask.config.set({"optimization.fuse.active": False}):
        assert tasks(norm) == inputs + BLOCKS
        assert tasks(fit) == inputs + 3 * BLOCKS + 1  # one to prepare; one a block, and one for each output of it
        assert tasks(five) == inputs + 6 * BLOCKS
        assert tasks(norm.isel(y=0, x=0)) == 3  # a block of the input, one of ours, and the selection
    # As it is run: a chain is one task.
    assert tasks(norm) == BLOCKS
    assert tasks(five.least) == BLOCKS
    assert tasks(fit.status) == inputs + BLOCKS + 1
    assert tasks(five) <= inputs + 6 * BLOCKS


def test_opened_stores_are_read_in_the_task_that_computes(tmp_path):
    path = stores.write(tmp_path / "b.zarr", {"b": (("time", "y", "x"), scene().values)}, chunks={"y": 4, "x": 3})
    b = xr.open_zarr(path, consolidated=False).b
    assert tasks(tw.Norm(dim="time")(b)) == BLOCKS


@pytest.mark.parametrize("scheduler", ["threads", "sync", "processes", "distributed"])
def test_outputs_computed_together_run_the_kernel_once_a_block(tmp_path, scheduler, client):
    log, x = tmp_path / "calls", scene().chunk(CHUNKS)
    five = x.pipe(Five(dim="time", log=str(log)))
    found = five.compute(scheduler=client if scheduler == "distributed" else scheduler)
    assert calls(log) == BLOCKS
    np.testing.assert_array_equal(found.least, x.min("time"))
    np.testing.assert_array_equal(found.ends, x.isel(time=[0, -1]))
    assert found.ends.attrs == {"units": "m", "grid_mapping": "spatial_ref"}


@pytest.mark.parametrize("scheduler", ["threads", "distributed"])
@pytest.mark.parametrize("lazy", [False, True])
def test_what_is_shared_is_prepared_once(tmp_path, scheduler, lazy, client):
    log, x = tmp_path / "calls", xr.DataArray(da.ones((Y, X), chunks=(4, 3)), dims=("y", "x"))
    shift = xr.DataArray(2.0)
    shifted = x.pipe(Shifted(log=str(log)), shift=shift.chunk() if lazy else shift)
    found = shifted.compute(scheduler=client if scheduler == "distributed" else scheduler)
    assert calls(log) == 1
    assert (found == 3.0).all()


@pytest.mark.parametrize("scheduler", ["processes", "distributed"])
def test_the_state_of_a_kernel_travels(scheduler, client):
    b, A = scene(), design()
    fit = b.chunk(CHUNKS).pipe(tw.Lstsq(dim="time"), A=A.chunk())
    with dask.config.set(num_workers=1):  # one process is as far away as another
        found = fit.compute(scheduler=client if scheduler == "distributed" else scheduler)
    expected, bound = lstsq_of(b, A)
    assert (abs(found.solution.values - expected) <= bound).all()


def test_a_block_is_read_where_it_lies():
    x = xr.DataArray(np.ones((50, 200, 200)), dims=("time", "y", "x")).chunk()
    norm = tw.Norm(dim="time")(x)
    norm.isel(x=0, y=0).compute(scheduler="sync")
    tracemalloc.start()
    norm.compute(scheduler="sync")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 4  # the result, and no copy of the block: torch's own panels are not traced


def test_files_opened_without_dask_are_computed_at_once(tmp_path):
    scene().drop_vars("season").to_netcdf(tmp_path / "b.nc")
    with xr.open_dataset(tmp_path / "b.nc") as ds:
        norm = tw.Norm(dim="time")(ds.b)
    assert isinstance(norm.data, np.ndarray)
    np.testing.assert_array_equal(norm, tw.Norm(dim="time")(scene()))


def test_a_selection_computes_the_blocks_that_it_needs(tmp_path):
    log, x = tmp_path / "calls", scene().chunk(CHUNKS)
    five = x.pipe(Five(dim="time", log=str(log)))
    assert five.most.sel(y=slice(0, 30), x=1).compute().shape == (4,)
    assert calls(log) == 1
    x.sel(y=slice(0, 30)).pipe(Five(dim="time", log=str(log))).compute()
    assert calls(log) == 1 + 3


def test_a_result_that_is_broadcast_is_computed_once(tmp_path):
    log, x = tmp_path / "calls", scene().chunk(CHUNKS)
    mean = x.pipe(Five(dim="time", log=str(log)))["mean"]
    anomaly = x.chunk(time=1) - mean  # twelve blocks for each of the kernel's
    anomaly.compute()
    assert calls(log) == BLOCKS


def test_persist_and_store(tmp_path, client):
    log, x = tmp_path / "calls", scene().chunk(CHUNKS)
    five = x.pipe(Five(dim="time", log=str(log)))
    kept = five.persist()
    kept.to_zarr(tmp_path / "kept.zarr", consolidated=False)
    assert calls(log) == BLOCKS
    five.to_zarr(tmp_path / "out.zarr", consolidated=False)
    for name in five.data_vars:
        np.testing.assert_array_equal(
            stores.read(tmp_path / "out.zarr", name), stores.read(tmp_path / "kept.zarr", name)
        )


def test_equal_calls_share_their_keys():
    b, A = scene().chunk(CHUNKS), design()
    with dask.config.set({"tokenize.ensure-deterministic": True}):
        one, same = (b.pipe(tw.Lstsq(dim="time"), A=A).solution.data.name for _ in range(2))
        other = b.pipe(tw.Lstsq(dim="time", rcond=0.1), A=A).solution.data.name
        more = b.pipe(tw.Lstsq(dim="time"), A=A * 2).solution.data.name
        fives = {Five(dim="time")(b)["mean"].data.name for _ in range(2)}
    assert one == same
    assert len({one, other, more}) == 3
    assert len(fives) == 1


def test_equal_arrays_under_other_names_have_other_keys():
    x = da.ones((4, 4), chunks=2).rechunk(-1)
    one, other = (tw.Norm(dim="time")(xr.DataArray(x, dims=dims)) for dims in (("time", "y"), ("y", "time")))
    assert one.data.name != other.data.name


def test_a_kernel_of_a_script_is_lazy_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "9.0", "9.0"]


SCRIPT = """
from dataclasses import dataclass
import dask, numpy as np, xarray as xr
import tilewise as tw
from tilewise.fields import OutputSpec

@dataclass(frozen=True, kw_only=True)
class Span(tw.Kernel, name="span"):
    dim: str
    input_sets = (("x",),)

    def declare(self, fields):
        x = self.check_inputs(fields)["x"]
        return tw.Signature.of(fields, core={"x": (self.dim,)}, outputs=[OutputSpec("span", (), (), x.dtype)])

    def compute(self, state, fields, out, *, panel):
        low, high = fields["x"].aminmax(dim=0)
        out["span"].copy_(high - low)

if __name__ == "__main__":
    x = xr.DataArray(np.arange(20.0).reshape(2, 10), dims=("y", "t")).chunk(y=1)
    one, two = Span(dim="t")(x), Span(dim="t")(x)
    with dask.config.set({"tokenize.ensure-deterministic": True}):
        print(Span(dim="t")(x).data.name == one.data.name)
    print(float(one.compute(scheduler="threads")[0]))
    from distributed import Client
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
        print(float(two.compute()[1]))
"""


# --- blocks


def test_chunks_of_shared_dimensions_are_unified():
    b = scene().chunk(CHUNKS)
    A = design().expand_dims(y=Y, axis=1).assign_coords(y=b.y).chunk(y=6)
    fit = b.pipe(tw.Lstsq(dim="time"), A=A)
    assert fit.solution.chunks == ((2,), (4, 2, 2, 1), (3, 3, 2))
    expected, bound = lstsq_of(scene(), design())
    assert (abs(fit.solution.values - expected) <= bound).all()


@pytest.mark.parametrize("lazy", [("b",), ("A",), ("A", "b")])
def test_inputs_in_memory_are_cut_like_the_others(lazy):
    b, A = scene(), design().expand_dims(x=X)
    given = {"b": b, "A": A} | {name: {"b": b.chunk(CHUNKS), "A": A.chunk(x=3)}[name] for name in lazy}
    fit = tw.Lstsq(dim="time")(**given)
    assert fit.status.chunks == ((4, 4, 1) if "b" in lazy else (Y,), (3, 3, 2))
    assert fit.solution.dims == ("parameter", "y", "x")
    expected, bound = lstsq_of(b, design())
    assert (abs(fit.solution.values - expected) <= bound).all()


def test_inputs_are_broadcast_by_name_without_being_expanded():
    points = xr.DataArray(np.random.default_rng(0).normal(size=(50, 3)), dims=("point", "xyz")).chunk(point=20)
    scale = xr.DataArray(np.ones((40, 3)), dims=("box", "xyz")).chunk(box=15)
    kernel = tw.AffineNorm(dim="xyz")
    with dask.config.set({"optimization.fuse.active": False}):
        norm = kernel(points, scale, scale)
        # One task a block of the result, and one to prepare: none that expands an input.
        assert tasks(norm) == tasks(points, scale) + 3 * 3 + 1
    assert norm.chunks == ((20, 20, 10), (15, 15, 10))
    xr.testing.assert_identical(norm.compute(), kernel(points.compute(), scale.compute(), scale.compute()))


def test_a_vector_alone_has_a_norm():
    x = xr.DataArray([3, 4], dims="c", coords={"orbit": 5})
    for found in (tw.Norm(dim="c")(x), tw.Norm(dim="c")(x.chunk())):
        assert found.dims == ()
        assert found.dtype == "float64"
        assert float(found) == 5
        assert set(found.coords) == {"orbit"}
    fit = tw.Lstsq(dim="time")(b=scene().isel(x=0, y=0).chunk(), A=design())
    assert fit.status.dims == ()
    assert fit.compute().solution.shape == (2,)


@pytest.mark.parametrize("lazy", [False, True])
def test_empty_inputs_have_empty_results(lazy):
    b = scene().isel(y=slice(0, 0))
    fit = tw.Lstsq(dim="time")(b=b.chunk() if lazy else b, A=design()).compute()
    assert fit.solution.shape == (2, 0, X)
    assert fit.status.shape == (0, X)
    nothing = scene().isel(time=slice(0, 0))
    norm = tw.Norm(dim="time")(nothing.chunk() if lazy else nothing)
    assert norm.shape == (Y, X)
    assert (norm == 0).all()


def test_what_a_kernel_does_not_fill_has_its_fill_value():
    x = scene().isel(time=0, drop=True)
    assert (Shifted(fills=False)(x.chunk(), shift=xr.DataArray(1)) == -9.0).all()


def odd_arrays() -> dict[str, np.ndarray]:
    plain = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    read_only = plain.copy()
    read_only.flags.writeable = False
    record = np.zeros((2, 3, 4), dtype=[("a", "i1"), ("x", "f8")])
    record["x"] = plain
    return {
        "read-only": read_only,
        "big-endian": plain.astype(">f8"),
        "big-endian integers": plain.astype(">i4"),
        "negative strides": plain[::-1, :, ::-1][::-1, :, ::-1].copy()[:, ::-1][:, ::-1],
        "reversed": np.ascontiguousarray(plain[:, ::-1])[:, ::-1],
        "not contiguous": np.repeat(plain, 2, axis=2)[..., ::2],
        "transposed": np.asfortranarray(plain),
        "unaligned": record["x"],
        "small": plain.astype("uint8"),
        "half": plain.astype("float16"),
        "complex": plain.astype("complex64"),
        "broadcast": np.broadcast_to(plain[:, :1], plain.shape),
    }


@pytest.mark.parametrize("kind", list(odd_arrays()))
@pytest.mark.parametrize("lazy", [False, True])
def test_arrays_that_torch_refuses_are_taken(kind, lazy):
    x = xr.DataArray(odd_arrays()[kind], dims=("c", "y", "x"))
    found = tw.Norm(dim="c", ord=1)(x.chunk(y=2) if lazy else x)
    np.testing.assert_array_equal(found, np.abs(np.asarray(x, dtype=complex)).sum(axis=0))  # small integers: exact
    again = Five(dim="c")(x.chunk(y=2) if lazy else x) if kind != "complex" else None
    if again is not None:
        np.testing.assert_array_equal(again.total, np.asarray(x, dtype=float).sum(axis=0))


def test_booleans_are_numbers():
    x = xr.DataArray([[True, False], [True, True]], dims=("c", "x"))
    assert list(tw.Norm(dim="c", ord=1)(x).values) == [2, 1]


@pytest.mark.parametrize("kind", ["read-only", "not contiguous", "transposed", "broadcast"])
def test_memory_is_not_copied_without_need(kind):
    array = odd_arrays()[kind]
    assert np.shares_memory(readable(array, "float64"), array)
    assert readable(array, "float64").flags.writeable


# --- wrong uses


def wrong_uses() -> dict[str, tuple]:
    b, A, lstsq, norm = scene(), design(), tw.Lstsq(dim="time"), tw.Norm(dim="time")
    ds = xr.Dataset({"u": b, "v": b})
    text = xr.DataArray(["a"], dims="time")
    return {
        "path": (
            lambda: norm("x.zarr"),
            DTypeError,
            r"is a path.*open it with xarray.open_zarr, or stream it with til",
        ),
        "pathlib": (lambda: norm(Path("x.zarr")), DTypeError, "is a path"),
        "input of a path": (lambda: norm(tw.Input(store="s3://a/b")), DTypeError, "'s3://a/b'"),
        "core dimension split": (
            lambda: norm(b.chunk(time=5)),
            DimensionError,
            r"input 'x' is split into chunks along 'time'.*got: 3 chunks.*x\.chunk\(\{\"time\": -1\}\)",
        ),
        "shared input split": (
            lambda: lstsq(b=b, A=A.chunk(time=5, parameter=1)),
            DimensionError,
            r"A\.chunk\(\{\"time\": -1, \"parameter\": -1\}\)",
        ),
        "wrong dimension": (lambda: tw.Norm(dim="band")(b), DimensionError, "x has no dimension 'band'"),
        "no input": (lambda: norm(), DimensionError, r"so many inputs; got: 0 by position; expected: \(x\)"),
        "too many": (lambda: norm(b, b), DimensionError, "got: 2 by position"),
        "one of two": (lambda: lstsq(b), DimensionError, r"got: 1 by position; expected: \(A, b\)"),
        "given twice": (lambda: lstsq(A, b, A=A), DimensionError, "got: 2 by position, A="),
        "unknown name": (lambda: norm(b, y=b), DimensionError, r"has no input 'y'; got: y; expected: \(x\)"),
        "parameter": (lambda: norm(b, ord=1), DimensionError, "parameters belong to the kernel itself"),
        "names of two sets": (
            lambda: tw.AffineNorm(dim="time")(b, primitives=b, scale=b),
            DimensionError,
            r"does not take these inputs.*\(points, primitives\) or \(points, scale, offset\)",
        ),
        "dataset lacks an input": (lambda: ds.pipe(lstsq), MissingVariableError, r"got: u, v; expected: \(A, b\)"),
        "dataset of several": (lambda: ds.pipe(norm), MissingVariableError, r"variables=\[...\], stack="),
        "dataset, all named": (lambda: norm(ds, x=b), DimensionError, "got: 1 by position, x="),
        "named dataset": (lambda: norm(x=ds), MissingVariableError, "has no variable 'x'; got: u, v"),
        "variables without stack": (lambda: norm(ds, variables=["u"]), DimensionError, "need the name of the dim"),
        "variables of an array": (
            lambda: norm(b, variables=["u"], stack="c"),
            DimensionError,
            "got: DataArray; expected: kernel.dataset",
        ),
        "no such variable": (
            lambda: norm(ds, variables=["u", "w"], stack="c"),
            MissingVariableError,
            "has no variable 'w'",
        ),
        "variables of two shapes": (
            lambda: norm(ds.assign(v=b[0]), variables=["u", "v"], stack="c"),
            DimensionError,
            "differ in shape",
        ),
        "stacked along a dimension": (
            lambda: norm(ds, variables=["u", "v"], stack="time"),
            DimensionError,
            "have the dimension 'time' already",
        ),
        "no variables": (
            lambda: norm(ds, variables=[], stack="c"),
            MissingVariableError,
            "input 'x' stacks no variables",
        ),
        "stack that is no name": (lambda: norm(ds, variables=["u"], stack=3), DimensionError, "got: 3; expected: text"),
        "stacked objects": (
            lambda: norm(ds.assign(u=b.astype(object)), variables=["u", "v"], stack="c"),
            DTypeError,
            "input 'x' is not numeric",
        ),
        "one name twice": (
            lambda: norm(tw.Input(store=np.ones((2, 2)), dims=("time", "time"))),
            DimensionError,
            "2 axes and 1 dimension names",
        ),
        "name of a coordinate": (
            lambda: norm(tw.Input(store=b, dims=("time", "y", "orbit"))),
            DimensionError,
            r"has a coordinate 'orbit'.*\.drop_vars\('orbit'\)",
        ),
        "calendars": (
            lambda: lstsq(b=b, A=A.assign_coords(time=xr.date_range("2020", periods=12, calendar="noleap"))),
            CoordinateError,
            "different coordinates along 'time'",
        ),
        "extension array": (
            lambda: norm(xr.DataArray(pd.array([1, 2], dtype="Int64"), dims="time")),
            DTypeError,
            "got: Int64",
        ),
        "variable of an array": (
            lambda: norm(tw.Input(store=b, variable="u")),
            MissingVariableError,
            "is one array and has no variables",
        ),
        "numpy": (lambda: norm(b.values), DimensionError, r"an array without dimension names.*Input\(store="),
        "too few dims": (
            lambda: norm(tw.Input(store=b.values, dims=("time",))),
            DimensionError,
            "3 axes and 1 dimension names",
        ),
        "list": (lambda: norm([1, 2]), DTypeError, "got: list; expected: a numpy array or an xarray object"),
        "text": (lambda: norm(text), DTypeError, "input 'x' is not numeric.*got: <U1"),
        "objects": (lambda: norm(b.astype(object)), DTypeError, r"got: object;.*\.astype\('float64'\)"),
        "times": (lambda: norm(b.time), DTypeError, "got: datetime64"),
        "sizes": (
            lambda: lstsq(b=b, A=A[:5]),
            DimensionError,
            "'time' has different sizes in A and b; got: 5 and 12|'time' has different sizes in b and A",
        ),
        "unknown chunks": (lambda: norm(unknown()), DimensionError, r"unknown size.*compute_chunk_sizes\(\)"),
        "duck": (lambda: norm(b.copy(data=Duck(b.values))), DTypeError, r"holds .*Duck, which is no plain array"),
        "bad parameter": (lambda: tw.Norm(dim="time", ord="two")(b), ParameterError, "order of a norm"),
    }


class Duck(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that is none of numpy's: xarray holds it as it is."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented

    def __array_function__(self, *args, **kwargs):
        return NotImplemented

    def __getitem__(self, key):
        return Duck(self.array[key])


def unknown() -> xr.DataArray:
    data = da.arange(10.0, chunks=5)
    return xr.DataArray(data[data > 3], dims="time")


@pytest.mark.parametrize("case", list(wrong_uses()))
def test_wrong_uses_are_refused_by_name(case):
    call, error, message = wrong_uses()[case]
    with pytest.raises(error, match=message):
        call()


def test_an_error_of_preparing_comes_out_of_compute():
    A = design()
    A[0, 0] = np.nan
    fit = scene().chunk(CHUNKS).pipe(tw.Lstsq(dim="time"), A=A)
    with pytest.raises(ParameterError, match="finite"):
        fit.compute()


# --- the other door


@pytest.mark.parametrize("lazy", [False, True])
def test_a_streamed_run_takes_the_same_objects(tmp_path, lazy):
    b = scene().chunk(CHUNKS) if lazy else scene()
    ds = xr.Dataset({"u": b, "v": b * 2})
    source = tw.Input(store=ds, variables=["u", "v"], stack="component")
    kernel = tw.Norm(dim="component")
    out = str(tmp_path / "out.zarr")
    tw.run(tw.Job(kernel=kernel, inputs={"x": source}, output=out, cluster=tw.Cluster(kind="threads", workers=2)))
    assert stores.read(out, "norm").tobytes() == kernel(source).values.tobytes()
    assert zarr.open_group(out)["norm"].metadata.dimension_names == kernel(source).dims


@pytest.mark.parametrize("block", [np.ma.masked_less(np.arange(6.0), 2), np.arange(6) + 1j])
def test_blocks_that_are_not_what_dask_was_told_are_refused(block):
    array = da.from_delayed(dask.delayed(lambda: block)(), shape=(6,), dtype="float64", meta=np.empty(0))
    with pytest.raises(DTypeError, match="not what its Dask array declares"):
        tw.Norm(dim="x")(xr.DataArray(array, dims="x")).compute(scheduler="sync")
