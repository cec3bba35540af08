from __future__ import annotations

import json
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import Example
from harness import declare, evaluate
from memory_use import peaks
from oracles_bounded import exact_minimum
from oracles_systems import U, least_squares_bound
from shared_data import shared
from tilewise.errors import DimensionError, DTypeError, ParameterError
from tilewise.fields import FieldSpec, Status
from tilewise.kernels.nnls import Nnls

EPS = 2.0**-52
ALL = ("rank", "n_valid", "condition", "residual_norm", "r2")
RNG = np.random.default_rng(17)


def between_tilings(A, b):
    """Twice what a stable solver may err at a pixel.

    A minimiser over a convex set moves no further than the unbounded one under changes E of A and e of b: by the
    variational inequalities of both, ||S dy||^2 <= (E^T r + S^T (e - E y))^T dy, and so

        ||S dy|| <= ||S^+|| ||E|| ||r|| + ||e|| + ||E|| ||y||,

    which is the bound of `least_squares_bound` with the residual of the bounded problem. Here that is at most ||b||.
    """
    bound = np.zeros((A.shape[-1], *b.shape[1:]))
    for y, x in np.ndindex(b.shape[1:]):
        matrix = A[x] if A.ndim == 3 else A
        bound[:, y, x] = 4 * least_squares_bound(matrix, b[:, y, x], np.linalg.lstsq(matrix, b[:, y, x])[0], len(bound))
    norm = (4 * np.linalg.norm(A, axis=(-2, -1)).max() * np.linalg.norm(bound, axis=0)).max()
    sizes = {"solution": bound, "residual_norm": norm}
    return lambda name, outputs: sizes.get(name, 0.0)


A_SHARED, A_VARYING = RNG.standard_normal((6, 3)), RNG.random((7, 5, 2))
B_SHARED, B_VARYING = RNG.standard_normal((6, 6, 7)), RNG.random((5, 6, 7))
EXAMPLES = [
    Example(
        Nnls(dim="band", diagnostics=("rank", "n_valid", "residual_norm")),
        {"A": (("band", "material"), A_SHARED), "b": (("band", "y", "x"), B_SHARED)},
        between_tilings(A_SHARED, B_SHARED),
    ),
    Example(
        Nnls(dim="band", unknown="material", sum_to_one=True, upper=(0.75, 1.0)),
        {"A": (("x", "band", "material"), A_VARYING), "b": (("band", "y", "x"), B_VARYING)},
        between_tilings(A_VARYING, B_VARYING),
    ),
]


def nnls(A, b, A_dims=("e", "u"), b_dims=("e", "x"), panel=None, dtype=None, others=None, **parameters):
    kernel = Nnls(dim="e", unknown="u", **parameters)
    return evaluate(kernel, {"A": (A_dims, A), "b": (b_dims, b), **(others or {})}, panel=panel, dtype=dtype)


def spec(name, dims, shape, dtype="float64"):
    return FieldSpec(name, dims, shape, dtype)


# Declarations


def test_outputs():
    fields = {"A": spec("A", ("e", "u"), (5, 3), "float32"), "b": spec("b", ("y", "e"), (4, 5), "float32")}
    outputs = Nnls(dim="e", diagnostics=ALL).declare(fields).outputs
    assert [(out.name, out.dims, out.dtype) for out in outputs] == [
        ("solution", ("u", "y"), "float32"),
        ("status", ("y",), "uint8"),
        ("rank", ("y",), "int32"),
        ("n_valid", ("y",), "int32"),
        ("condition", ("y",), "float32"),
        ("residual_norm", ("y",), "float32"),
        ("r2", ("y",), "float32"),
    ]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"diagnostics": ["stderr"]}, "bounds bias the solution"),
        ({"diagnostics": ["ranks"]}, "write 'rank' instead"),
        ({"nan_policy": "omits"}, "write 'omit' instead"),
        ({"rcond": 1.0}, "kernel.rcond"),
        ({"upper": -1.0}, "kernel.upper is out of range; got: -1.0"),
        ({"upper": float("nan")}, "kernel.upper"),
        ({"upper": (1.0, -2.0)}, "kernel.upper"),
        ({"upper": ()}, "kernel.upper"),
        ({"max_iter": 0}, "kernel.max_iter"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, said):
    with pytest.raises(ParameterError, match=said):
        Nnls(dim="e", **parameters)


@pytest.mark.parametrize(
    ("parameters", "inputs", "error", "said"),
    [
        ({"upper": (1.0,)}, {}, DimensionError, "1 values for 3 along 'u'"),
        (
            {"upper": 0.25, "sum_to_one": True},
            {},
            ParameterError,
            "cannot sum to one.*a sum of 0.75",
        ),
        ({"upper": 1.0}, {"upper": spec("upper", ("u",), (3,))}, ParameterError, "given twice"),
        ({"min_valid": 6}, {}, ParameterError, "from 1 to the 5 equations"),
        ({}, {"A": spec("A", ("e", "u"), (5, 3), "complex64")}, DTypeError, "A is complex"),
        ({}, {"b": spec("b", ("e", "y"), (5, 2), "complex128")}, DTypeError, "b is complex"),
        ({}, {"upper": spec("upper", ("v",), (3,))}, DimensionError, "upper has no dimension 'u'"),
    ],
)
def test_what_cannot_be_solved_is_refused_ahead(parameters, inputs, error, said):
    fields = {"A": spec("A", ("e", "u"), (5, 3)), "b": spec("b", ("e", "y"), (5, 2)), **inputs}
    with pytest.raises(error, match=said):
        Nnls(dim="e", unknown="u", **parameters).declare(fields)


@pytest.mark.parametrize(
    ("upper", "parameters", "said"),
    [([1.0, -1.0], {}, "-1.0 for unknown 1"), ([np.nan, 1.0], {}, "nan"), ([0.25, 0.5], {"sum_to_one": True}, "0.75")],
)
def test_shared_bounds_that_cannot_hold_are_refused_before_anything_is_computed(upper, parameters, said):
    with pytest.raises(ParameterError, match=said):
        nnls(np.eye(2), np.ones((2, 3)), others={"upper": (("u",), np.array(upper))}, **parameters)


# Answers


@st.composite
def problems(draw):
    """Small whole numbers, so that ties, dependent columns and vertices are common."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    sizes = {"e": n, "u": p, "x": 3, "s": 2}
    A_dims = ("e", "u", *draw(st.sampled_from([(), ("x",), ("s",)])))
    A = rng.integers(-3, 4, [sizes[dim] for dim in A_dims]).astype(float)
    if p > 1 and draw(st.booleans()):
        A[:, -1] = A[:, 0] * draw(st.sampled_from([1.0, -1.0, 2.0, 0.0]))
    b = rng.integers(-4, 5, (n, 3, 2)).astype(float)
    options = {"sum_to_one": draw(st.booleans()), "nan_policy": "omit"}
    others = {}
    if draw(st.booleans()):
        b[rng.random(b.shape) < 0.2] = np.nan
    if draw(st.booleans()):
        others["weights"] = (("e", "x"), rng.choice([0.0, 1.0, 4.0, 0.25], (n, 3)))
    if draw(st.booleans()):
        dims = draw(st.sampled_from([("u",), ("u", "x")]))
        least = 1 if options["sum_to_one"] and dims == ("u",) else 0
        bounds = rng.choice([0.0, 0.25, 0.5, 1.0, 2.0, np.inf], [sizes[dim] for dim in dims])
        bounds[0] = np.maximum(bounds[0], least)
        others["upper"] = (dims, bounds)
    return A, A_dims, b, others, options


@given(problems())
@settings(max_examples=40, deadline=None)
def test_every_pixel_is_an_exact_minimiser(problem):
    A, A_dims, b, others, options = problem
    found = nnls(A, b, A_dims, ("e", "x", "s"), others=others, diagnostics=ALL, **options)
    for pixel in product(range(3), range(2)):
        at = dict(zip("xs", pixel, strict=True))
        weights = select(others["weights"], at) if "weights" in others else np.ones(len(b))
        upper = select(others["upper"], at) if "upper" in others else None
        check_pixel(
            {name: values[(..., *pixel)] for name, values in found.items()},
            select((A_dims, A), at),
            b[(slice(None), *pixel)],
            weights,
            upper,
            options["sum_to_one"],
        )


def select(field, at):
    dims, values = field
    return values[tuple(at.get(dim, slice(None)) for dim in dims)]


def check_pixel(found, A, b, weights, upper, sum_to_one):
    there = (weights != 0) & ~np.isnan(b)
    n, p = there.sum(), A.shape[1]
    assert found["n_valid"] == n
    if n == 0:
        assert found["status"] == Status.NO_DATA
        assert np.isnan(found["solution"]).all()
        return
    root = np.sqrt(weights[there])
    # The weights have exact roots, so that the oracle's ties are those of the problem.
    A, b = A[there] * root[:, None], b[there] * root
    exact = exact_minimum(A, b, upper, sum_to_one=sum_to_one)
    x = found["solution"]
    if exact is None:
        assert found["status"] == Status.INFEASIBLE
        assert np.isnan(x).all()
        return
    assert (x >= 0).all()
    assert upper is None or (x <= upper).all()
    assert not sum_to_one or abs(x.sum() - 1) <= 4 * p * EPS
    expected = Status.OK if exact.unique else Status.RANK_DEFICIENT
    assert found["status"] == (Status.UNDERDETERMINED if n < p else expected)
    # |f(x) - f(x*)| for f the sum of squares: rounding u (||b|| + sum ||a_j|| x_j) of the residual, times its norm.
    level = np.linalg.norm(b) + np.linalg.norm(A, axis=0) @ np.maximum(x, exact.x)
    squares = sum((r * r for r in residual(A, b, x)), Fraction(0))
    assert float(squares - exact.squares) <= 64 * A.size * U * level**2
    if np.linalg.matrix_rank(A) == p:
        bound = least_squares_bound(A, b, exact.x, p) + 4 * U * abs(exact.x)
        assert (abs(x - exact.x) <= bound).all()
    norm = float(squares) ** 0.5
    assert abs(found["residual_norm"] - norm) <= 4 * (n + p) * U * level


def residual(A, b, x):
    rows = [[Fraction(float(v)) for v in row] for row in A]
    return [
        Fraction(float(v)) - sum(a * Fraction(float(y)) for a, y in zip(row, x, strict=True))
        for row, v in zip(rows, b, strict=True)
    ]


def test_reported_cases():
    cases = {case["id"]: case for case in json.loads((shared("cases") / "reported_inputs.json").read_text())["cases"]}
    case = cases["fcls-nnls-ucls"]
    A, b = np.array(case["inputs"]["A"]), np.array(case["inputs"]["b"])
    np.testing.assert_allclose(nnls(A, b, b_dims=("e",))["solution"], case["expect"]["nnls"], rtol=0, atol=4 * EPS)
    found = nnls(A, b, b_dims=("e",), sum_to_one=True)["solution"]
    np.testing.assert_allclose(found, case["expect"]["sum_to_one"], rtol=0, atol=4 * EPS)
    case = cases["nnls-nonoptimal"]
    A, b = np.array(case["inputs"]["A"]), np.array(case["inputs"]["b"])
    found = nnls(A, b, b_dims=("e",), diagnostics=("residual_norm",))
    np.testing.assert_allclose(found["solution"], case["expect"]["solution"], rtol=8 * EPS)
    np.testing.assert_allclose(found["residual_norm"], case["expect"]["residual_norm"], rtol=8 * EPS)


SCIPY = ["2D_singleton_RHS_input", "nnls_gh21021_ex1", "nnls_gh21021_ex3", "nnls_inner_loop_case1", "nnls_tall"]


@pytest.mark.parametrize("name", SCIPY)
@pytest.mark.parametrize("varying", [False, True])
def test_arrays_of_scipy_by_the_conditions_of_optimality(name, varying):
    case = np.load(shared("data/scipy_nnls") / f"test_{name}.npz")
    A, b = case["A"], case["b"].ravel()
    found = nnls(A[None] if varying else A, b[:, None], ("x", "e", "u") if varying else ("e", "u"))
    x = found["solution"][:, 0]
    assert found["status"][0] != Status.NOT_CONVERGED
    assert (x >= 0).all()
    # The bounds of the data set's README.
    scaled = A.T @ (b - A @ x) / (np.linalg.norm(A, axis=0) * np.linalg.norm(b))
    assert (scaled <= 1e-12).all()
    assert (abs(scaled[x > 0]) <= 1e-12).all()
    np.testing.assert_allclose(np.linalg.norm(b - A @ x), case["scipy_rnorm"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("folder", "scene", "members", "name"),
    [
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M"),
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M1"),
        ("unmix_jasper", "jasperRidge2_R198.mat", "end4.mat", "M"),
    ],
)
@pytest.mark.parametrize("one", [False, True])
def test_unmixing_of_published_scenes(folder, scene, members, name, one):
    scipy_io = pytest.importorskip("scipy.io")
    where = shared(f"data/{folder}")
    Y, M = scipy_io.loadmat(where / scene)["Y"], scipy_io.loadmat(where / members)[name]
    # Counts are reflectances times 5000.
    Y = Y / 5000 if Y.dtype == np.uint16 else Y
    expected = np.load(where / "expected.npz")[f"{'FCLS' if one else 'NNLS'}_{name}"]
    found = nnls(M, Y, sum_to_one=one)
    np.testing.assert_allclose(found["solution"], expected, rtol=0, atol=1e-10)
    assert not found["status"].any()
    if one:
        assert (abs(found["solution"].sum(0) - 1) <= 4 * len(expected) * EPS).all()
    # The same with a matrix of each pixel's own, and with gaps that leave nothing out.
    few = slice(0, 300)
    own = nnls(np.repeat(M[None], 300, 0), Y[:, few], ("x", "e", "u"), sum_to_one=one)["solution"]
    np.testing.assert_allclose(own, expected[:, few], rtol=0, atol=1e-10)


def test_many_unknowns_of_few_supports():
    # Beyond the table: a library of 30 materials, of which each pixel has some.
    rng = np.random.default_rng(18)
    A = rng.random((40, 30))
    x = rng.random((30, 100)) * (rng.random((30, 100)) < 0.2)
    for one in (False, True):
        truth = x / x.sum(0) if one else x
        found = nnls(A, A @ truth, sum_to_one=one)
        bound = [least_squares_bound(A, A @ truth[:, i], truth[:, i], 30) for i in range(100)]
        assert (abs(found["solution"] - truth) <= np.array(bound).T).all()
        assert not found["status"].any()


# Gaps, weights


@pytest.mark.parametrize("one", [False, True])
def test_a_zero_weight_is_a_dropped_row(one):
    rng = np.random.default_rng(19)
    A, b = rng.random((6, 3)), rng.random((6, 70))
    weights = rng.random((6, 70)) + 0.5
    weights[2] = 0
    kept = [0, 1, 3, 4, 5]
    b[2] = np.inf
    with_zero = nnls(A, b, others={"weights": (("e", "x"), weights)}, sum_to_one=one)
    without = nnls(A[kept], b[kept], others={"weights": (("e", "x"), weights[kept])}, sum_to_one=one)
    bound = [4 * least_squares_bound(A[kept], b[kept, i], without["solution"][:, i], 3) for i in range(70)]
    assert (abs(with_zero["solution"] - without["solution"]) <= np.array(bound).T).all()
    np.testing.assert_array_equal(with_zero["status"], without["status"])


def test_too_few_rows_and_none():
    A, b = np.eye(3)[:, :2], np.ones((3, 4))
    b[0, 1] = b[:2, 2] = b[:, 3] = np.nan
    found = nnls(A, b, nan_policy="omit", min_valid=2, diagnostics=("n_valid",))
    assert found["status"].tolist() == [Status.OK, Status.RANK_DEFICIENT, Status.TOO_FEW, Status.NO_DATA]
    assert found["n_valid"].tolist() == [3, 2, 1, 0]
    assert np.isnan(found["solution"]).all(0).tolist() == [False, False, True, True]


# Status


def test_a_design_of_zeros_has_the_solution_zero_and_is_rank_deficient():
    found = nnls(np.zeros((3, 2)), np.ones((3, 5)), diagnostics=("rank",))
    np.testing.assert_array_equal(found["solution"], 0)
    assert (found["status"] == Status.RANK_DEFICIENT).all()
    assert (found["rank"] == 0).all()


def test_of_equal_columns_the_first_enters():
    column = np.array([1.0, 2.0, 3.0])
    A = np.stack([-column, column, column, 2 * column], axis=1)
    found = nnls(A, column[:, None] * np.ones(3))
    np.testing.assert_allclose(found["solution"][:, 0], [0, 1, 0, 0], atol=8 * EPS)
    assert (found["status"] == Status.UNDERDETERMINED).all()
    found = nnls(np.vstack([A, A]), np.concatenate([column, column])[:, None])
    np.testing.assert_allclose(found["solution"][:, 0], [0, 1, 0, 0], atol=8 * EPS)
    assert found["status"].tolist() == [Status.RANK_DEFICIENT]


def test_a_unique_minimiser_of_dependent_columns_is_ok():
    A = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = nnls(A, np.array([[-1.0, 1.0], [-1.0, 1.0], [2.0, 2.0]]), diagnostics=("rank", "condition"))
    assert found["status"].tolist() == [Status.OK, Status.RANK_DEFICIENT]
    assert found["rank"].tolist() == [2, 2]
    assert np.isinf(found["condition"]).all()


def test_ill_conditioned_pixels_keep_their_value_and_say_so():
    A = np.array([[1.0, 1], [1, 1 + 2**-30], [1, 1 - 2**-30]])
    b = A @ np.array([[1.0], [2]])
    for matrix, dims in [(A, ("e", "u")), (A[None], ("x", "e", "u"))]:
        found = nnls(matrix, b, dims)
        assert found["status"].tolist() == [Status.ILL_CONDITIONED]
        exact = exact_minimum(A, b[:, 0])
        assert (abs(found["solution"][:, 0] - exact.x) <= least_squares_bound(A, b[:, 0], exact.x, 2)).all()


def test_too_few_iterations_are_flagged_and_leave_a_feasible_iterate():
    A, b = np.eye(4) + 0.1, np.array([[1.0], [-1], [2], [-2]])
    for one in (False, True):
        found = nnls(A, b, max_iter=1, sum_to_one=one)
        assert found["status"].tolist() == [Status.NOT_CONVERGED]
        assert (found["solution"] >= 0).all()
        assert not one or found["solution"].sum() == 1
        assert nnls(A, b, sum_to_one=one)["status"].tolist() == [Status.OK]


@pytest.mark.parametrize("bound", [-1.0, np.nan, -np.inf])
def test_bounds_of_a_pixel_that_cannot_hold_make_it_infeasible_and_no_other(bound):
    A, b = np.eye(2), np.full((2, 70), 2.0)
    upper = np.ones((2, 70))
    before = nnls(A, b, others={"upper": (("u", "x"), upper)}, diagnostics=ALL)
    upper[1, 7] = bound
    after = nnls(A, b, others={"upper": (("u", "x"), upper)}, diagnostics=ALL)
    assert after["status"][7] == Status.INFEASIBLE
    assert np.isnan(after["solution"][:, 7]).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 7, -1), np.delete(after[name], 7, -1))


def test_bounds_that_reach_one_but_for_rounding_are_feasible():
    upper = (0.1,) * 10
    assert sum(upper) < 1
    found = nnls(np.eye(10), np.ones((10, 3)), sum_to_one=True, upper=upper)
    assert not found["status"].any()
    np.testing.assert_array_equal(found["solution"], 0.1)


# One bad pixel


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("one", [False, True])
def test_a_poisoned_pixel_changes_no_other(value, varying, one):
    rng = np.random.default_rng(20)
    A = rng.standard_normal((200, 5, 3) if varying else (5, 3))
    A_dims = ("x", "e", "u") if varying else ("e", "u")
    b = rng.standard_normal((5, 200))
    before = nnls(A, b, A_dims, panel=128, diagnostics=ALL, sum_to_one=one)
    b[2, 70] = value
    after = nnls(A, b, A_dims, panel=128, diagnostics=ALL, sum_to_one=one)
    assert after["status"][70] == Status.NON_FINITE
    assert np.isnan(after["solution"][:, 70]).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 70, -1), np.delete(after[name], 70, -1))


# Scale


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(-498, 498), min_size=3, max_size=3), st.integers(-490, 490))
@settings(max_examples=15, deadline=None)
def test_columns_in_any_units_have_the_answer_in_those_units(seed, units, level):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((5, 3)), rng.standard_normal((5, 4))
    for dims, shape in ((("e", "u"), (5, 3)), (("e", "u", "x"), (5, 3, 1))):
        dims, plain_A = (dims, A) if len(shape) == 2 else (dims, np.repeat(A[..., None], 4, -1))
        factors = np.ldexp(1.0, units).reshape(1, 3, *[1] * (len(shape) - 2))
        plain, scaled = nnls(plain_A, b, dims), nnls(plain_A * factors, np.ldexp(b, level), dims)
        # Scales by powers of two are exact, and so is undoing them: every bit is the same.
        undone = np.ldexp(scaled["solution"], np.array(units)[:, None] - level)
        np.testing.assert_array_equal(undone, plain["solution"])
        np.testing.assert_array_equal(scaled["status"], plain["status"])


@pytest.mark.parametrize("level", [-150, 0, 150])
@pytest.mark.parametrize("varying", [False, True])
def test_unknowns_that_sum_to_one_in_columns_of_very_different_size(level, varying):
    scale = 10.0**level
    A = np.array([[1.0, 1e-9, 0], [0, 1e-9, 0], [0, 0, 1e-30]]) * scale
    b = A @ np.array([0.25, 0.5, 0.25])[:, None]
    found = nnls(A[None] if varying else A, b, ("x", "e", "u") if varying else ("e", "u"), sum_to_one=True)
    np.testing.assert_allclose(found["solution"][:, 0], [0.25, 0.5, 0.25], rtol=1e-6)
    assert found["status"].tolist() == [Status.OK]


# Memory


@pytest.mark.parametrize("shape", [(50, 4), (6, 12), (30, 12)])
@pytest.mark.parametrize("kind", ["shared", "gaps", "own"])
@pytest.mark.parametrize("one", [False, True])
def test_footprint_and_workspace_hold(shape, kind, one):
    rng = np.random.default_rng(21)
    b = rng.random((shape[0], 130))
    A = rng.random((130, *shape) if kind == "own" else shape)
    if kind == "gaps":
        b[rng.random(b.shape) < 0.2] = np.nan
    fields = {"A": (("x", "e", "u") if kind == "own" else ("e", "u"), A), "b": (("e", "x"), b)}
    kernel = Nnls(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL, sum_to_one=one)
    signature = declare(kernel, fields)
    used = peaks(kernel, fields, 128)
    assert used.state <= kernel.footprint(signature).state
    assert used.prepare <= kernel.footprint(signature).peak
    workspace = kernel.workspace(signature, signature.sizes, panel=128)
    assert used.compute <= workspace
    # Honest, not merely large.
    assert workspace <= 16 * used.compute + 2**24


@pytest.mark.parametrize("p", [3, 12])
@pytest.mark.parametrize("one", [False, True])
def test_no_zero_has_a_sign(p, one):
    rng = np.random.default_rng(p)
    x = nnls(rng.random((20, p)), rng.standard_normal((20, 50)), sum_to_one=one)["solution"]
    assert (x == 0).any()
    assert not np.signbit(x).any()
