from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import Example
from harness import declare, evaluate
from memory_use import peaks
from oracles_systems import U, exact_least_squares
from shared_data import shared
from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec, Status
from tilewise.kernels.solve import Solve

ALL = ("rank", "residual_norm")
RNG = np.random.default_rng(11)


def stable_bound(A, x):
    """Error of a backward stable solver: 3 n^3 u rho cond ||x||, rho <= 2^(n - 1) (Higham, theorem 9.5)."""
    n = len(A)
    return 2.0 ** (n - 1) * 3 * n**3 * U * np.linalg.cond(A) * np.linalg.norm(x)


def between_tilings(A, b):
    x = np.linalg.solve(A, b.reshape(len(b), -1))
    bound = 2 * stable_bound(A, x)
    return lambda name, outputs: bound if name == "solution" else 0.0


A_SHARED, A_VARYING = RNG.standard_normal((3, 3)), RNG.standard_normal((6, 3, 3))
B = RNG.standard_normal((3, 6, 7))
EXAMPLES = [
    Example(
        Solve(dim="equation", diagnostics=("rank",)),
        {"A": (("equation", "term"), A_SHARED), "b": (("equation", "y", "x"), B)},
        between_tilings(A_SHARED, B),
    ),
    Example(
        Solve(dim="equation", unknown="term"),
        {"A": (("y", "equation", "term"), A_VARYING), "b": (("equation", "y", "x"), B)},
        lambda name, outputs: 2 * max(stable_bound(A, B) for A in A_VARYING) if name == "solution" else 0.0,
    ),
]


def solve(A, b, A_dims=("e", "u"), b_dims=("e", "x"), panel=None, dtype=None, **parameters):
    kernel = Solve(dim="e", unknown="u", **parameters)
    return evaluate(kernel, {"A": (A_dims, A), "b": (b_dims, b)}, panel=panel, dtype=dtype)


def test_a_matrix_that_is_not_square_is_refused():
    fields = {"A": FieldSpec("A", ("e", "u"), (4, 3), "float64"), "b": FieldSpec("b", ("e",), (4,), "float64")}
    with pytest.raises(DimensionError, match="not square; got: 4 along 'e', 3 along 'u'.*lstsq"):
        Solve(dim="e").declare(fields)


def test_unknown_diagnostics_are_refused():
    with pytest.raises(ParameterError, match="write 'residual_norm' instead"):
        Solve(dim="e", diagnostics=("residual",))


def test_reported_case_of_a_singular_matrix_in_a_batch():
    cases = {case["id"]: case for case in json.loads((shared("cases") / "reported_inputs.json").read_text())["cases"]}
    expected = cases["singular-in-batch"]["expect"]
    A = np.stack([np.eye(2), np.eye(2), np.zeros((2, 2))])
    found = solve(A, np.ones((2, 3)), ("x", "e", "u"))
    np.testing.assert_array_equal(found["solution"].T, np.array(expected["solution"], dtype=float))
    assert [Status(s).meaning for s in found["status"]] == expected["status"]


@given(
    st.integers(0, 2**32 - 1),
    st.sets(st.sampled_from("yxs")),
    st.sets(st.sampled_from("yxs")),
    st.sampled_from(["float64", "float32", "float16", "int8", "complex64", "complex128"]),
    st.sampled_from([None, 64]),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_every_pixel_is_the_exact_one_however_matrix_and_data_vary(seed, of_A, of_b, dtype, panel, n):
    rng = np.random.default_rng(seed)
    sizes = {"e": n, "u": n, "y": 2, "x": 3, "s": 2}
    A_dims, b_dims = rng.permutation(["e", "u", *sorted(of_A)]), rng.permutation(["e", *sorted(of_b)])
    A, b = random(rng, [sizes[d] for d in A_dims], dtype), random(rng, [sizes[d] for d in b_dims], dtype)
    found = solve(A, b, tuple(A_dims), tuple(b_dims), panel, diagnostics=ALL)
    tile = [dim for dim in b_dims if dim != "e"] + [dim for dim in A_dims if dim not in {"e", "u", *b_dims}]
    for pixel in product(*(range(sizes[dim]) for dim in tile)):
        at = dict(zip(tile, pixel, strict=True))
        check_pixel(found, pixel, select(A, A_dims, at, "eu"), select(b, b_dims, at, "e"))


def random(rng, shape, dtype):
    if dtype == "int8":
        return rng.integers(-9, 10, shape).astype(dtype)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def select(x, dims, at, order):
    picked = x[tuple(at.get(dim, slice(None)) for dim in dims)]
    kept = [dim for dim in dims if dim not in at]
    picked = picked.transpose([kept.index(dim) for dim in order])
    return picked.astype(complex if np.iscomplexobj(x) else float)


def check_pixel(found, pixel, A, b):
    x, rank = exact_least_squares(A, b)
    ours = found["solution"][(slice(None), *pixel)]
    assert found["rank"][pixel] == rank
    if rank < len(A):
        assert found["status"][pixel] == Status.RANK_DEFICIENT
        assert np.isnan(ours).all()
        assert np.isnan(found["residual_norm"][pixel])
        return
    assert found["status"][pixel] == Status.OK
    narrow = np.finfo(ours.dtype)
    small = float(narrow.smallest_subnormal)
    bound = stable_bound(A, x)
    assert (abs(ours.astype(complex) - x) <= bound + narrow.eps * (abs(x) + bound) + small).all()
    # The true residual is zero: what is left is the error of x through A, and the rounding of the sums.
    left = np.linalg.norm(abs(A) @ np.full(len(A), bound) + (len(A) + 2) * U * (abs(b) + abs(A) @ (abs(x) + bound)))
    assert found["residual_norm"][pixel] <= left * (1 + narrow.eps) + small


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("varying", [False, True])
def test_a_poisoned_right_hand_side_changes_no_other_pixel(value, varying):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((150, 4, 4) if varying else (4, 4)) / 1e3
    A_dims = ("x", "e", "u") if varying else ("e", "u")
    b = rng.standard_normal((4, 150))
    before = solve(A, b, A_dims, panel=64, diagnostics=ALL)
    b[1:, 70] = value
    after = solve(A, b, A_dims, panel=64, diagnostics=ALL)
    assert after["status"][70] == Status.NON_FINITE
    assert np.isnan(after["solution"][:, 70]).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 70, -1), np.delete(after[name], 70, -1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_a_bad_matrix_changes_no_other_pixel(bad):
    rng = np.random.default_rng(4)
    A, b = rng.standard_normal((90, 3, 3)), rng.standard_normal((3, 4, 90))
    before = solve(A, b, ("x", "e", "u"), ("e", "y", "x"), panel=64, diagnostics=ALL)
    A[33, 1] = bad
    after = solve(A, b, ("x", "e", "u"), ("e", "y", "x"), panel=64, diagnostics=ALL)
    assert (after["status"][:, 33] == (Status.RANK_DEFICIENT if bad == 0 else Status.NON_FINITE)).all()
    assert np.isnan(after["solution"][..., 33]).all()
    assert (after["rank"][:, 33] == (2 if bad == 0 else -1)).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 33, -1), np.delete(after[name], 33, -1))


def test_a_shared_singular_matrix_gives_nan_and_the_highest_code():
    b = np.array([[1.0, np.nan], [1, 1]])
    found = solve(np.ones((2, 2)), b, diagnostics=("rank",))
    assert found["status"].tolist() == [Status.RANK_DEFICIENT, Status.NON_FINITE]
    assert found["rank"].tolist() == [1, -1]
    assert np.isnan(found["solution"]).all()


def test_a_shared_matrix_that_is_not_finite_is_refused():
    with pytest.raises(ParameterError, match="inf at e 0, unknown 1"):
        solve(np.array([[1, np.inf], [0, 1]]), np.ones((2, 3)))


def test_units_far_apart_are_no_condition():
    found = solve(np.diag([1e-150, 1e150]), np.array([[1.0], [1.0]]), diagnostics=ALL)
    np.testing.assert_allclose(found["solution"][:, 0], [1e150, 1e-150], rtol=4 * U)
    assert (found["status"].tolist(), found["rank"].tolist()) == ([Status.OK], [2])


@pytest.mark.parametrize("n", [2, 20])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("varying", [False, True])
def test_footprint_and_workspace_hold(n, dtype, varying):
    rng = np.random.default_rng(9)
    A = random(rng, (64, n, n) if varying else (n, n), dtype)
    b = random(rng, (n, 64, 9), dtype)
    b[0, 3], b[:, 5] = np.nan, 1e30
    fields = {"A": (("x", "e", "u") if varying else ("e", "u"), A), "b": (("e", "x", "k"), b)}
    kernel = Solve(dim="e", unknown="u", diagnostics=ALL)
    signature = declare(kernel, fields)
    used = peaks(kernel, fields, 64)
    assert used.state <= kernel.footprint(signature).state
    assert used.prepare <= kernel.footprint(signature).peak
    workspace = kernel.workspace(signature, signature.sizes, panel=64)
    assert used.compute <= workspace <= 8 * used.compute + 2**19
