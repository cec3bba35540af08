"""Norm: declarations, published answers, and what it allocates."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from allocations import peak_allocated
from contract import Example
from harness import declare, evaluate
from shared_data import shared
from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec
from tilewise.kernels.norm import Norm

RNG = np.random.default_rng(3)

EXAMPLES = [
    Example(Norm(dim="c"), {"x": (("y", "c", "x"), RNG.standard_normal((9, 3, 70)).astype("float32"))}),
    Example(Norm(dim="c", ord=2.5), {"x": (("y", "x", "c"), RNG.standard_normal((9, 70, 2)))}),
    Example(Norm(dim="c", ord=-math.inf), {"x": (("c", "t"), RNG.integers(-128, 128, (4, 130)).astype("int8"))}),
    Example(Norm(dim="c", ord=1), {"x": (("t", "c"), RNG.standard_normal((130, 3)) * (1 + 2j))}),
]


def norm(x: object, order: float = 2.0, dims: tuple[str, ...] = ("y", "c"), **options: object) -> np.ndarray:
    return evaluate(Norm(dim="c", ord=order), {"x": (dims, x)}, **options)["norm"]


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        ("bool", "float64"),
        ("uint8", "float64"),
        ("int64", "float64"),
        ("float16", "float16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "float32"),
        ("complex128", "float64"),
    ],
)
def test_dtype_is_the_real_one_of_x(given, declared):
    signature = declare(Norm(dim="c"), {"x": (("y", "c", "x"), np.ones((2, 3, 4), given))})
    (out,) = signature.outputs
    assert (out.name, out.dims, out.shape, out.dtype) == ("norm", ("y", "x"), (2, 4), declared)
    assert signature.core == {"x": ("c",)}
    np.testing.assert_allclose(norm(np.ones((2, 4), given)), [2, 2])
    assert norm(np.ones((2, 4), given)).dtype == declared


@pytest.mark.parametrize(("given", "kept"), [(1, 1.0), ("inf", math.inf), ("-inf", -math.inf), (np.float32(2.5), 2.5)])
def test_order_is_kept_as_a_float(given, kept):
    kernel = Norm(dim="c", ord=given)
    assert (kernel.ord, type(kernel.ord)) == (kept, float)
    assert pickle.loads(pickle.dumps(kernel)) == kernel == Norm(dim="c", ord=kept)


@pytest.mark.parametrize("order", [math.nan, True, "two", None, 1j, [2.0]])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(ParameterError, match=r"kernel.ord is not the order of a norm; got: .*real number"):
        Norm(dim="c", ord=order)


def test_dimensions_that_cannot_be_are_refused():
    x = FieldSpec("x", ("y", "band"), (2, 0), "float32")
    with pytest.raises(DimensionError, match=r"x has no dimension 'c'; got: dims .*kernel.dim"):
        Norm(dim="c").declare({"x": x})
    with pytest.raises(DimensionError, match=r"no values along 'band'.*order -1.*ord to 0 or more"):
        Norm(dim="band", ord=-1).declare({"x": x})
    with pytest.raises(DimensionError, match=r"does not take these inputs; got: points; expected: \(x\)"):
        Norm(dim="c").declare({"points": x})


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, math.inf])
def test_nothing_has_norm_zero(order):
    assert norm(np.empty((3, 0), np.float32), order).tolist() == [0, 0, 0]


def test_one_vector_without_tile_dimensions():
    assert norm([3.0, 4.0], dims=("c",)) == 5


def test_halves_are_computed_in_float32():
    x = np.array([[300, 400], [6e4, 6e4]], np.float16)
    got = norm(x)
    assert got.dtype == np.float16
    assert got.tolist() == [500, math.inf]
    np.testing.assert_array_equal(norm(x, dtype="float32"), np.linalg.norm(x.astype(np.float32), axis=1))


def test_a_job_may_store_another_dtype():
    x = RNG.standard_normal((5, 3))
    np.testing.assert_array_equal(norm(x, dtype="float32"), norm(x).astype(np.float32))


def test_input_is_not_written_to():
    x = RNG.standard_normal((100, 3)).astype(np.float32)
    tensor, out = torch.from_numpy(x.copy()).T, torch.empty(100)
    for order in (2.0, 1.0, 0.0, 2.5, math.inf):
        Norm(dim="c", ord=order).compute(None, {"x": tensor}, {"norm": out}, panel=64)
    np.testing.assert_array_equal(tensor.T.numpy(), x)


# Published answers.


def test_numpy_table():
    """The vectors of numpy's own tests, in every dtype that they are run in."""
    table = json.loads(shared("data/numpy_norm_table.json").read_text())
    for dtype in ("int8", "int32", "float32", "float64", "complex128"):
        u = np.finfo(np.float32 if dtype == "float32" else np.float64).eps
        for order, expected in table["expected"].items():
            got = norm(np.array(table["vectors"], dtype), 2.0 if order == "None" else float(order))
            np.testing.assert_allclose(got, expected, rtol=9 * u)
        for order, expected in table["vector_101"].items():
            np.testing.assert_allclose(norm(np.array([[1, 0, 1]], dtype), float(order)), expected, rtol=9 * u)
    for order, expected in table["empty"].items():
        assert norm(np.empty((1, 0)), float(order)) == expected


def test_numpys_own_tests_of_vector_norms():
    """But one, which asks for numpy's bits of a float32 root: this one may be the neighbour."""
    found = subprocess.run(
        [sys.executable, shared("data/shim_numpy_norm.py"), "-k", "not (TestNormSingle and test_axis)"],
        env={**os.environ, "OUR_NORM": "numpy_adapter:norm", "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
    assert "calls into the tested norm: 0" not in found.stdout


def reported(name: str) -> dict:
    cases = json.loads(shared("cases/reported_inputs.json").read_text())["cases"]
    return next(case for case in cases if case["id"] == name)


def test_large_and_small_values_neither_overflow_nor_vanish():
    case = reported("overflow-underflow")
    eps = np.finfo(np.float64).eps
    np.testing.assert_allclose(norm(case["inputs"]["x"]), case["expect"]["norm"], rtol=1.5 * eps)
    single = norm(np.array(case["inputs"]["x_float32"], np.float32))
    np.testing.assert_array_equal(single, np.array(case["expect"]["norm_float32"], np.float32))


def test_small_integers_do_not_overflow():
    case = reported("uint8-overflow")
    got = norm(np.array(case["inputs"]["x"], np.uint8))
    np.testing.assert_allclose(got, case["expect"]["norm"], rtol=2 * np.finfo(np.float64).eps)
    assert norm(np.array([[-128]], np.int8)) == 128
    assert norm(np.array([[-128]], np.int8), math.inf) == 128


def test_wind_speed_of_packed_components():
    """ERA-Interim: u and v packed as int16 with a negative scale; exact speeds, to 1e-12 m/s."""
    netcdf = pytest.importorskip("netCDF4")
    folder = shared("data/wind_eraint_packed")
    expected = np.load(folder / "expected.npz")
    with netcdf.Dataset(folder / "eraint_uvz.nc") as data:
        data.set_auto_maskandscale(False)
        packed = [data[name] for name in ("u", "v")]
        wind = np.stack([v[:].astype(np.float64) * v.scale_factor + v.add_offset for v in packed])
    dims = ("component", "month", "level", "lat", "lon")
    speed = evaluate(Norm(dim="component"), {"x": (dims, wind)})["norm"]
    np.testing.assert_allclose(speed[tuple(expected["index"].T)], expected["speed_exact_f64"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(speed.max(), expected["max_speed"], rtol=0, atol=1e-12)
    # 694 080 speeds summed pairwise: an error of each, and about log2(694080) = 20 roundings of the sum.
    np.testing.assert_allclose(speed.sum(), expected["sum_speed"], rtol=22 * np.finfo(np.float64).eps)
    # Every value at single precision is half an ulp of the rounded one away at most, plus the error in float64.
    np.testing.assert_allclose(speed, expected["speed_f32"], rtol=np.finfo(np.float32).eps)


# Memory.


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("order", [2.0, 1.0, 0.0, 2.5, 0.25])
@pytest.mark.parametrize("dims", [("c", "y", "x"), ("y", "x", "c")])
def test_workspace_is_an_upper_bound_whatever_the_tile(dims, dtype, order):
    kernel = Norm(dim="c", ord=order)
    sizes = {"y": 300, "x": 211, "c": 7}
    x = torch.from_numpy(RNG.standard_normal([sizes[dim] for dim in dims]).astype(dtype))
    x[:2] = 0  # the scaled path is taken as well
    signature = declare(kernel, {"x": (dims, x.numpy())})
    out = torch.empty(300, 211, dtype=getattr(torch, signature.outputs[0].dtype))
    view = x.permute([dims.index(dim) for dim in ("c", "y", "x")])
    for panel in (640, 8192):
        promised = kernel.workspace(signature, sizes, panel=panel)
        used = peak_allocated(lambda panel=panel: kernel.compute(None, {"x": view}, {"norm": out}, panel=panel))
        assert used <= promised
        assert promised == kernel.workspace(signature, {**sizes, "y": 10**6}, panel=panel)


def test_panel_has_the_same_bytes_in_every_dtype_and_is_padded():
    for dtype in ("float32", "float64", "int8", "complex64"):
        panel = Norm(dim="c").panel(declare(Norm(dim="c"), {"x": (("y", "c"), np.ones((2, 3), dtype))}))
        assert panel % 64 == 0
        assert panel * (8 if dtype in ("float64", "int8") else 4) == 2**19
