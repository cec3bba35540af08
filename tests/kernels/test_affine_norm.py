"""AffineNorm: declarations, published answers, and what it allocates."""

from __future__ import annotations

import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch

from allocations import peak_allocated
from contract import Example
from harness import declare, evaluate
from shared_data import shared
from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec
from tilewise.kernels.affine_norm import AffineNorm

RNG = np.random.default_rng(4)
POINTS = ("scan", "point", "xyz")
PRIMITIVES = ("scan", "box", "parameter")


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


EXAMPLES = [
    Example(
        AffineNorm(dim="xyz", parameter_dim="parameter"),
        {"points": (POINTS, random(2, 90, 3)), "primitives": (PRIMITIVES, random(2, 70, 7))},
    ),
    Example(
        AffineNorm(dim="xyz", ord=1.5),
        {
            "points": (("xyz", "y", "x"), random(3, 9, 30, dtype="float64")),
            "scale": (("xyz",), random(3)),
            "offset": (("x", "xyz", "box"), random(30, 3, 4)),
        },
    ),
]


def primitive_norm(points: object, primitives: object, order: float = 2.0) -> np.ndarray:
    kernel = AffineNorm(dim="xyz", parameter_dim="parameter", ord=order)
    return evaluate(kernel, {"points": (POINTS, points), "primitives": (PRIMITIVES, primitives)})["norm"]


def test_tile_dimensions_are_batch_point_primitive():
    signature = declare(EXAMPLES[0].kernel, dict(reversed(EXAMPLES[0].fields.items())))
    (out,) = signature.outputs
    assert (out.dims, out.shape, out.dtype) == (("scan", "point", "box"), (2, 90, 70), "float32")
    assert signature.core == {"points": ("xyz",), "primitives": ("parameter",)}
    assert not signature.shared


def test_inputs_without_tile_dimensions_are_shared():
    signature = declare(EXAMPLES[1].kernel, EXAMPLES[1].fields)
    assert signature.shared == {"scale"}
    assert EXAMPLES[1].kernel.footprint(signature).state == 3 * 4
    alone = {name: (("xyz",), random(3)) for name in ("points", "scale", "offset")}
    assert declare(AffineNorm(dim="xyz"), alone).shared == set()
    p, s, o = (array for _, array in alone.values())
    np.testing.assert_allclose(evaluate(AffineNorm(dim="xyz"), alone)["norm"], np.linalg.norm(p * s + o), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtypes", "declared"),
    [
        (("float32", "float32"), "float32"),
        (("float32", "float64"), "float64"),
        (("int32", "float64"), "float64"),
        (("int16", "float32"), "float32"),
        (("uint8", "int64"), "float64"),
        (("float16", "float16"), "float16"),
        (("complex64", "float64"), "float64"),
    ],
)
def test_dtype_is_numpys_result_type(dtypes, declared):
    points, primitives = (np.ones(shape, dtype) for shape, dtype in zip([(1, 2, 3), (1, 2, 6)], dtypes, strict=True))
    got = primitive_norm(points, primitives)
    assert got.dtype == declared
    np.testing.assert_allclose(got, math.sqrt(12), rtol=1e-3 if declared == "float16" else 1e-6)


def test_parameters_beyond_the_offsets_are_ignored():
    points, primitives = random(2, 9, 3), random(2, 7, 9)
    poisoned = primitives.copy()
    poisoned[..., 6:] = math.nan
    np.testing.assert_array_equal(primitive_norm(points, poisoned), primitive_norm(points, primitives[..., :6]))


def test_primitives_are_scales_then_offsets():
    points, primitives = random(2, 9, 3, dtype="float64"), random(2, 7, 6, dtype="float64")
    fields = {
        "points": (POINTS, points),
        "scale": (("scan", "box", "xyz"), primitives[..., :3]),
        "offset": (("scan", "box", "xyz"), primitives[..., 3:]),
    }
    for order in (2.0, 1.0, 0.5, -math.inf):
        whole = points[:, :, None] * primitives[:, None, :, :3] + primitives[:, None, :, 3:]
        got = primitive_norm(points, primitives, order)
        np.testing.assert_allclose(got, np.linalg.norm(whole, order, axis=-1), rtol=1e-10)
        np.testing.assert_array_equal(evaluate(AffineNorm(dim="xyz", ord=order), fields)["norm"], got)


@pytest.mark.parametrize("kinds", list(itertools.product([("y",), ("x",), ("y", "x"), ()], repeat=3)))
def test_inputs_vary_over_any_tile_dimensions(kinds):
    sizes = {"y": 5, "x": 130, "c": 2}
    fields, expanded = {}, []
    for name, dims in zip(("points", "scale", "offset"), kinds, strict=True):
        array = random(*[sizes[dim] for dim in (*dims, "c")], dtype="float64")
        fields[name] = ((*dims, "c"), array)
        expanded.append(array.reshape([sizes[dim] if dim in (*dims, "c") else 1 for dim in ("y", "x", "c")]))
    out = evaluate(AffineNorm(dim="c"), fields)["norm"]
    order = tuple(dict.fromkeys(itertools.chain(*kinds)))
    expected = np.linalg.norm(expanded[0] * expanded[1] + expanded[2], axis=-1)
    expected = expected.reshape([n for dim, n in zip(("y", "x"), expected.shape, strict=True) if dim in order])
    # Two components that cancel: numpy rounds the product, worth 2 eps of values below 40.
    np.testing.assert_allclose(out if order == tuple(sorted(order, reverse=True)) else out.T, expected, atol=1e-13)


@pytest.mark.parametrize("order", [2.0, 1.0, 0.0, -math.inf, 2.5])
def test_no_components(order):
    fields = {name: (("y", "c"), np.empty((4, 0), np.float32)) for name in ("points", "scale", "offset")}
    kernel = AffineNorm(dim="c", ord=order)
    if order < 0:
        with pytest.raises(DimensionError, match="no values along 'c'"):
            evaluate(kernel, fields)
    else:
        assert evaluate(kernel, fields)["norm"].tolist() == [0] * 4
    none = {"points": (("y", "c"), np.empty((4, 0))), "primitives": (("b", "p"), np.empty((3, 2)))}
    assert evaluate(AffineNorm(dim="c", parameter_dim="p"), none)["norm"].tolist() == [[0] * 3] * 4


# Refusals.

P = FieldSpec("points", POINTS, (2, 8, 3), "float32")
Q = FieldSpec("primitives", PRIMITIVES, (2, 4, 7), "float32")
S = FieldSpec("scale", ("scan", "xyz"), (2, 3), "float32")


@pytest.mark.parametrize(
    ("kernel", "fields", "error", "message"),
    [
        ({}, {"points": P, "primitives": Q}, ParameterError, "parameter_dim is missing.*'parameter'"),
        ({"parameter_dim": "k"}, {"points": P, "scale": S, "offset": S}, ParameterError, "belongs to primitives"),
        ({"parameter_dim": "k"}, {"points": P, "primitives": Q}, DimensionError, "primitives has no dimension 'k'"),
        (
            {"dim": "c"},
            {"points": P, "scale": S, "offset": S},
            DimensionError,
            "points has no dimension 'c'",
        ),
        ({}, {"points": P, "scale": S}, DimensionError, r"does not take these inputs.*\(points, scale, offset\)"),
        (
            {},
            {"points": P, "scale": FieldSpec("scale", ("xyz",), (4,), "float32"), "offset": S},
            DimensionError,
            "'xyz' has different sizes in points and scale; got: 3 and 4",
        ),
        (
            {"parameter_dim": "parameter"},
            {"points": P, "primitives": FieldSpec("primitives", PRIMITIVES, (2, 4, 5), "float32")},
            DimensionError,
            "too few parameters along 'parameter'; got: 5; expected: at least 6",
        ),
        (
            {"parameter_dim": "parameter"},
            {"points": P, "primitives": FieldSpec("primitives", ("xyz", "parameter"), (3, 7), "float32")},
            DimensionError,
            "primitives has the dimension 'xyz'",
        ),
        (
            {"parameter_dim": "parameter"},
            {"points": FieldSpec("points", ("parameter", "xyz"), (7, 3), "float32"), "primitives": Q},
            DimensionError,
            "points has the dimension 'parameter'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kernel, fields, error, message):
    with pytest.raises(error, match=message):
        AffineNorm(**{"dim": "xyz", **kernel}).declare(fields)


def test_parameters_that_cannot_be_are_refused():
    with pytest.raises(ParameterError, match="parameter_dim is the dimension of the components"):
        AffineNorm(dim="xyz", parameter_dim="xyz")
    with pytest.raises(ParameterError, match="not the order of a norm"):
        AffineNorm(dim="xyz", ord=math.nan)
    kernel = AffineNorm(dim="xyz", ord="inf")
    assert pickle.loads(pickle.dumps(kernel)) == kernel == AffineNorm(dim="xyz", ord=math.inf)


# Published answers.


def test_nearly_equal_large_coordinates_keep_their_difference():
    """In float32 the expanded square gives 0."""
    cases = json.loads(shared("cases/reported_inputs.json").read_text())["cases"]
    case = next(case for case in cases if case["id"] == "near-equal-large")
    points, primitives = (np.array(case["inputs"][name], np.float32) for name in ("points", "primitives"))
    np.testing.assert_array_equal(primitive_norm([points], [primitives])[0], case["expect"]["norm"])


def test_lidar_points_from_stations():
    """Integer coordinates with the file's scale, and its offset less each station; exact distances, to 1e-9 feet."""
    case = np.load(shared("data/las_scaled_points") / "simple_case.npz")
    fields = {
        "points": (("point", "xyz"), case["XYZ"]),
        "scale": (("station", "xyz"), case["scale"]),
        "offset": (("station", "xyz"), case["offset"]),
    }
    distance = evaluate(AffineNorm(dim="xyz"), fields)["norm"]
    assert distance.dtype == np.float64
    np.testing.assert_allclose(distance[case["sel"]], case["expected_sel_by_station"], rtol=0, atol=1e-9)


# Memory.


@pytest.mark.parametrize("kinds", [("float32",) * 2, ("float32", "float64"), ("complex64", "float32")])
@pytest.mark.parametrize("shape", [(2, 500, 400), (2, 9000, 5), (20000, 3, 2)])
@pytest.mark.parametrize("order", [2.0, 2.5])
def test_workspace_is_an_upper_bound_whatever_the_tile(shape, order, kinds):
    kernel = AffineNorm(dim="xyz", parameter_dim="parameter", ord=order)
    scans, points, boxes = shape
    p, q = random(scans, points, 3, dtype=kinds[0]), random(scans, boxes, 7, dtype=kinds[1])
    p[0, 0] = math.nan  # the scaled path is taken as well
    signature = declare(kernel, {"points": (POINTS, p), "primitives": (PRIMITIVES, q)})
    sizes = {"scan": scans, "point": points, "box": boxes, "xyz": 3, "parameter": 7}
    out = torch.empty(shape, dtype=getattr(torch, signature.outputs[0].dtype))
    fields = {
        "points": torch.from_numpy(p).permute(2, 0, 1)[..., None],
        "primitives": torch.from_numpy(q).permute(2, 0, 1)[:, :, None],
    }
    promised = kernel.workspace(signature, sizes, panel=8192)
    assert peak_allocated(lambda: kernel.compute({}, fields, {"norm": out}, panel=8192)) <= promised
    assert promised == kernel.workspace(signature, {**sizes, "scan": 10**6}, panel=8192)
