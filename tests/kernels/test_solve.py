from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
import torch
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
from tilewise.linalg.scaling import equilibrated, symmetrically_equilibrated

ALL = ("rank", "condition", "residual_norm")
ASSUMED = ("general", "symmetric", "positive definite")
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
A_SYMMETRIC = A_VARYING + A_VARYING.swapaxes(1, 2)
A_DEFINITE = A_SHARED @ A_SHARED.T + np.eye(3)
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
    Example(
        Solve(dim="equation", unknown="term", assume_a="symmetric"),
        {"A": (("y", "equation", "term"), A_SYMMETRIC), "b": (("equation", "y", "x"), B)},
        lambda name, outputs: 2 * max(stable_bound(A, B) for A in A_SYMMETRIC) if name == "solution" else 0.0,
    ),
    Example(
        Solve(dim="equation", assume_a="positive definite", diagnostics=("condition",)),
        {"A": (("equation", "term"), A_DEFINITE), "b": (("equation", "y", "x"), B)},
        between_tilings(A_DEFINITE, B),
    ),
]


def solve(A, b, A_dims=("e", "u"), b_dims=("e", "x"), panel=None, dtype=None, **parameters):
    kernel = Solve(dim="e", unknown="u", **parameters)
    return evaluate(kernel, {"A": (A_dims, A), "b": (b_dims, b)}, panel=panel, dtype=dtype)


def test_a_matrix_that_is_not_square_is_refused():
    fields = {"A": FieldSpec("A", ("e", "u"), (4, 3), "float64"), "b": FieldSpec("b", ("e",), (4,), "float64")}
    with pytest.raises(DimensionError, match="not square; got: 4 along 'e', 3 along 'u'.*lstsq"):
        Solve(dim="e").declare(fields)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"diagnostics": ["residual"]}, "write 'residual_norm' instead"),
        ({"diagnostics": "stderr"}, "stderr.*expected: rank, condition, residual_norm"),
        ({"diagnostics": ["rank", "n_valid"]}, "n_valid.*expected: rank, condition, residual_norm"),
        ({"assume_a": "sym"}, "kernel.assume_a does not know 'sym'; expected: general, symmetric, positive definite"),
        ({"assume_a": "positive_definite"}, "write 'positive definite' instead"),
    ],
)
def test_parameters_that_solve_does_not_have_are_refused(parameters, said):
    with pytest.raises(ParameterError, match=said):
        Solve(dim="e", **parameters)


@pytest.mark.parametrize("assume_a", ASSUMED)
def test_reported_case_of_a_singular_matrix_in_a_batch(assume_a):
    cases = {case["id"]: case for case in json.loads((shared("cases") / "reported_inputs.json").read_text())["cases"]}
    expected = cases["singular-in-batch"]["expect"]
    A = np.stack([np.eye(2), np.eye(2), np.zeros((2, 2))])
    found = solve(A, np.ones((2, 3)), ("x", "e", "u"), assume_a=assume_a)
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


# What is assumed of A


@pytest.mark.parametrize("assume_a", ASSUMED)
@pytest.mark.parametrize("varying", [False, True])
def test_units_far_apart_are_no_condition(assume_a, varying):
    A = np.diag([1e-150, 1e150])
    A, dims = (A[None], ("x", "e", "u")) if varying else (A, ("e", "u"))
    found = solve(A, np.array([[1.0], [1.0]]), dims, diagnostics=ALL, assume_a=assume_a)
    np.testing.assert_allclose(found["solution"][:, 0], [1e150, 1e-150], rtol=4 * U)
    assert (found["status"].tolist(), found["rank"].tolist()) == ([Status.OK], [2])
    assert 1 <= found["condition"][0] <= 4  # scales are powers of two: each entry is within two of one


def assumed(rng, assume_a, n, dtype):
    """A matrix of the kind, rounded to the dtype; the identity keeps a definite one so for n <= 4."""
    A = random(rng, (n, n), dtype) if dtype != "int8" else rng.integers(-3, 4, (n, n)).astype(dtype)
    if assume_a == "symmetric":
        return (A + A.T).astype(dtype)
    if assume_a == "positive definite":
        return (A @ A.conj().T + np.eye(n)).astype(dtype)
    return A


def below(A, assume_a):
    """The matrix that is meant: what is above the diagonal is taken from below; a Hermitian diagonal is real.

    That of A^H A need not be, to the last bit: products may be fused. As in LAPACK's xPOTRF no imaginary part is read.
    """
    if assume_a == "general":
        return A
    lower = np.tril(A, -1)
    if assume_a == "symmetric":
        return lower + np.diag(np.diag(A)) + lower.T
    return lower + np.diag(np.diag(A).real) + lower.conj().T


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(ASSUMED),
    st.sampled_from(["float64", "float32", "float16", "int8", "complex64", "complex128"]),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0, 240]),
)
@settings(max_examples=60, deadline=None)
def test_every_kind_of_matrix_is_solved_as_its_lower_triangle_says(seed, assume_a, dtype, shared_A, n, spread):
    rng = np.random.default_rng(seed)
    A = np.stack([assumed(rng, assume_a, n, dtype) for _ in range(1 if shared_A else 5)])
    b = random(rng, (n, 5), dtype)
    if spread and np.dtype(dtype).itemsize >= 8:  # units from 1e-144 to 1e144
        units = np.ldexp(1.0, rng.integers(-spread, spread + 1, n))
        A, b = A * units[:, None] * units, b * units[:, None]
    written = A.copy()
    if assume_a != "general":
        written[:, *np.triu_indices(n, 1)] = 99 if dtype == "int8" else np.nan
    dims = ("e", "u") if shared_A else ("x", "e", "u")
    found = solve(written[0] if shared_A else written, b, dims, diagnostics=ALL, assume_a=assume_a)
    for x in range(5):
        check_scaled(found, x, below(A[0 if shared_A else x], assume_a), b[:, x], assume_a)


def scaled(A, assume_a):
    """The equilibrated matrix and the exponents that undo it, exactly: what the error bound is about."""
    tensor = torch.from_numpy(A.astype(complex if np.iscomplexobj(A) else float))[..., None]
    if assume_a == "general":
        S, row, column = equilibrated(tensor)
    else:
        S, row = symmetrically_equilibrated(tensor)
        column = row
    S, row, column = S[..., 0].numpy(), row[:, 0].numpy(), column[:, 0].numpy()
    units = np.ldexp(1.0, row)[:, None] * np.ldexp(1.0, column)
    np.testing.assert_array_equal(S * units, A)
    largest = np.maximum(abs(S.real), abs(S.imag)).max(1)
    assert ((largest >= 0.5) & (largest < 2) | (largest == 0)).all()
    return S, column


def check_scaled(found, pixel, A, b, assume_a):
    S, column = scaled(A, assume_a)
    ours, n = found["solution"][:, pixel], len(A)
    cond = np.linalg.cond(S, 1)
    if np.linalg.matrix_rank(S, rtol=n * 2 * U) < n:
        assert found["status"][pixel] == Status.RANK_DEFICIENT
        assert np.isnan(ours).all()
        return
    x, _ = exact_least_squares(A, b)
    y = x * np.ldexp(1.0, column)
    narrow = np.finfo(ours.dtype)
    bound = np.ldexp(stable_bound(S, y), -column)
    close = bound + narrow.eps * (abs(x) + bound) + float(narrow.smallest_subnormal)
    assert (abs(ours.astype(complex) - x) <= close).all()
    assert found["status"][pixel] == Status.OK
    # The inverse errs as solutions do, column by column, in either program.
    error = 2 * stable_bound(S, 1.0) * n + narrow.eps
    assert abs(found["condition"][pixel] / cond - 1) <= error


def definite(rng, count, n, least):
    """Matrices Q diag(1, ..., 1, least) Q^T."""
    Q = np.linalg.qr(rng.standard_normal((count, n, n)))[0]
    return (Q * np.array([1.0] * (n - 1) + [least])) @ Q.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("least", "status"),
    [
        (0.5, Status.OK),
        (1e-9, Status.ILL_CONDITIONED),
        (1e-17, Status.RANK_DEFICIENT),
        (-1e-17, Status.RANK_DEFICIENT),
        (-1e-12, Status.INFEASIBLE),
        (-1.0, Status.INFEASIBLE),
    ],
)
def test_what_cholesky_says_of_the_least_eigenvalue(least, status):
    A = definite(np.random.default_rng(12), 200, 4, least)
    found = solve(A, np.ones((4, 200)), ("x", "e", "u"), diagnostics=ALL, assume_a="positive definite")
    assert set(found["status"].tolist()) == {status}
    lost = status in (Status.RANK_DEFICIENT, Status.INFEASIBLE)
    assert np.isnan(found["solution"]).all() == np.isnan(found["residual_norm"]).all() == lost
    assert np.isinf(found["condition"]).all() == (status == Status.RANK_DEFICIENT)
    assert np.isnan(found["condition"]).all() == (status == Status.INFEASIBLE)


@pytest.mark.parametrize(
    ("A", "status"),
    [
        (np.zeros((2, 2)), Status.RANK_DEFICIENT),
        (np.ones((2, 2)), Status.RANK_DEFICIENT),
        ([[1, 0], [0, 0]], Status.RANK_DEFICIENT),
        ([[0, 1], [1, 0]], Status.INFEASIBLE),
        ([[1e-300]], Status.OK),
        ([[-1e-300]], Status.INFEASIBLE),
        ([[1e300, 0], [0, -1e-300]], Status.INFEASIBLE),
        ([[2, 1j], [-1j, 2 + 3j]], Status.OK),  # the imaginary part of the diagonal is not referenced
    ],
)
def test_matrices_at_the_edge_of_positive_definite(A, status):
    A = np.asarray(A)
    b = np.ones((len(A), 1))
    found = solve(A, b, assume_a="positive definite", diagnostics=ALL)
    assert found["status"].tolist() == [status]
    assert np.isnan(found["solution"]).all() == (status != Status.OK)
    assert found["status"] == solve(A[None], b, ("x", "e", "u"), assume_a="positive definite")["status"]


def test_an_indefinite_symmetric_matrix_is_no_trouble():
    A = np.array([[0.0, np.nan], [2.0, 0.0]])
    found = solve(A, np.array([[2.0], [4.0]]), assume_a="symmetric", diagnostics=ALL)
    assert found["solution"][:, 0].tolist() == [2, 1]
    assert (found["status"].tolist(), found["condition"].tolist()) == ([Status.OK], [1])


@pytest.mark.parametrize("assume_a", ASSUMED[1:])
def test_only_the_lower_triangle_of_a_shared_matrix_must_be_finite(assume_a):
    A = np.array([[2.0, np.nan], [1.0, 2.0]])
    np.testing.assert_allclose(
        solve(A, np.array([[3.0], [3]]), assume_a=assume_a)["solution"][:, 0], [1, 1], rtol=4 * U
    )
    with pytest.raises(ParameterError, match=r"nan at e 1, unknown 0"):
        solve(A.T, np.ones((2, 1)), assume_a=assume_a)


@pytest.mark.parametrize("assume_a", ASSUMED[1:])
@pytest.mark.parametrize("kind", ["nan", "inf", "singular", "indefinite"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_neighbour_of_any_kind_changes_no_bit(assume_a, kind, dtype):
    rng = np.random.default_rng(13)
    A = np.stack([assumed(rng, assume_a, 4, dtype) for _ in range(70)])
    A[[3, 20]] = 0
    A[50] = -A[50]
    b = random(rng, (4, 70), dtype)
    before = solve(A, b, ("x", "e", "u"), diagnostics=ALL, assume_a=assume_a)
    changed = [0, 7, 11, 19, 36]
    bad = {"nan": np.full((4, 4), np.nan), "inf": np.full((4, 4), np.inf), "singular": np.ones((4, 4))}
    A[changed] = bad.get(kind, -np.eye(4))
    after = solve(A, b, ("x", "e", "u"), diagnostics=ALL, assume_a=assume_a)
    expected = {"nan": Status.NON_FINITE, "inf": Status.NON_FINITE, "singular": Status.RANK_DEFICIENT}
    negative = Status.OK if assume_a == "symmetric" else Status.INFEASIBLE
    assert set(after["status"][changed].tolist()) == {expected.get(kind, negative)}
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], changed, -1), np.delete(after[name], changed, -1))


def test_diagnostics_of_pixels_that_are_not_finite():
    A, b = np.stack([np.eye(2), np.full((2, 2), np.inf), np.eye(2)]), np.array([[np.nan, 1, 1], [1, 1, 1]])
    found = solve(A, b, ("x", "e", "u"), diagnostics=ALL)
    assert found["status"].tolist() == [Status.NON_FINITE, Status.NON_FINITE, Status.OK]
    assert found["rank"].tolist() == [-1, -1, 2]
    np.testing.assert_array_equal(found["condition"], [np.nan, np.nan, 1])
    np.testing.assert_array_equal(found["residual_norm"], [np.nan, np.nan, 0])


@pytest.mark.parametrize("assume_a", ASSUMED)
@pytest.mark.parametrize("n", [2, 20])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("varying", [False, True])
def test_footprint_and_workspace_hold(assume_a, n, dtype, varying):
    rng = np.random.default_rng(9)
    A = random(rng, (64, n, n) if varying else (n, n), dtype)  # none of them positive definite
    b = random(rng, (n, 64, 9), dtype)
    b[0, 3], b[:, 5] = np.nan, 1e30
    fields = {"A": (("x", "e", "u") if varying else ("e", "u"), A), "b": (("e", "x", "k"), b)}
    kernel = Solve(dim="e", unknown="u", assume_a=assume_a, diagnostics=ALL)
    signature = declare(kernel, fields)
    used = peaks(kernel, fields, 64)
    assert used.state <= kernel.footprint(signature).state
    assert used.prepare <= kernel.footprint(signature).peak
    workspace = kernel.workspace(signature, signature.sizes, panel=64)
    assert used.compute <= workspace <= 8 * used.compute + 2**19
