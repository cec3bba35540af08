import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from oracles_systems import U, exact_least_squares, real_form
from tilewise.fields import Status
from tilewise.linalg.factors import EPS
from tilewise.linalg.square import factor_general


def solved(A, b):
    factors = factor_general(torch.from_numpy(np.array(A))[..., None], want_rank=True)
    dtype = torch.result_type(torch.from_numpy(np.array(A)), torch.from_numpy(np.array(b)))
    out = torch.empty(1, len(A), 1, dtype=dtype)
    factors.to(dtype).solve(torch.from_numpy(np.array(b)).to(dtype)[None, :, None], out)
    return out[0, :, 0].numpy(), factors.status.item(), factors.rank.item()


def equilibrated(A):
    row = np.frexp(abs(A).max(1))[1]
    rows_done = A * np.ldexp(1.0, -row)[:, None]
    column = np.frexp(abs(rows_done).max(0))[1]
    return rows_done * np.ldexp(1.0, -column), column


def backward_stable_bound(A, x):
    """||y^ - y|| <= 3 n^3 u rho cond ||y|| for y = 2^column x: theorem 9.5 of Higham, growth rho <= 2^(n - 1)."""
    S, column = equilibrated(A)
    n = len(A)
    cond = np.linalg.cond(S)
    norm = np.sqrt(n) * abs(x * np.ldexp(1.0, column)).max()  # at least the 2-norm, and it cannot overflow
    return np.ldexp(2.0 ** (n - 1) * 3 * n**3 * U * cond * norm, -column)


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(-498, 498), min_size=1, max_size=5),
    st.floats(0, 12),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
@example(1184548582, [4, 0, 0, 0, 0], 11.0, False)
def test_solution_is_the_exact_one_in_any_units(seed, units, digits, complex_numbers):
    rng = np.random.default_rng(seed)
    n = len(units)
    A = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if complex_numbers else 0)
    if n > 1:
        A[:, -1] = A[:, 0] + 10.0**-digits * A[:, -1]
    A = A * np.ldexp(1.0, units)[:, None] * np.ldexp(1.0, rng.permutation(units))
    # The condition that is computed is off by n u times itself, a sixteenth here, and that in the 2-norm is at most n
    # times as large: such a matrix has full rank in either.
    assume(np.linalg.cond(equilibrated(A)[0], 1) <= 1 / (8 * n * EPS))
    b = rng.standard_normal(n)
    b = np.ldexp(b, units)
    x, rank = exact_least_squares(A, b)
    assert rank == n
    found, status, rank = solved(A, b)
    assert status in (Status.OK, Status.ILL_CONDITIONED)
    assert rank == n
    assert (abs(found - x) <= backward_stable_bound(A, x)).all()


@pytest.mark.parametrize(
    ("A", "status", "rank"),
    [
        (np.diag([1e-150, 1e150]), Status.OK, 2),
        (np.array([[1.0, 1], [1e-20, -1e-20]]), Status.OK, 2),
        (np.array([[1.0, 1], [1, 1 + 2.0**-29]]), Status.ILL_CONDITIONED, 2),
        (np.array([[1.0, 1], [1, 1 + 2.0**-52]]), Status.RANK_DEFICIENT, 1),
        (np.arange(1.0, 10).reshape(3, 3), Status.RANK_DEFICIENT, 2),
        (np.zeros((2, 2)), Status.RANK_DEFICIENT, 0),
        (np.array([[0.0]]), Status.RANK_DEFICIENT, 0),
        (np.array([[0.0, 1], [0, 1]]), Status.RANK_DEFICIENT, 1),
        (np.array([[0.0, 2], [3, 0]]), Status.OK, 2),
        (np.array([[1e-310]]), Status.OK, 1),
        (np.array([[1.7e308, -1.7e308], [1.7e308, 1.7e308]]), Status.OK, 2),
    ],
)
def test_status_and_rank_are_those_of_the_equilibrated_matrix(A, status, rank):
    assert solved(A, np.zeros(len(A)))[1:] == (status, rank)


@pytest.mark.parametrize("n", [3, 6, 8, 12])
def test_thresholds_are_those_of_the_1_norm_condition(n):
    # Hilbert matrices: their inverses are known in integers, here checked by rational arithmetic alone.
    A = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    S, _ = equilibrated(A)
    inverse = np.array([exact_least_squares(S, column)[0] for column in np.eye(n)]).T
    cond = abs(S).sum(0).max() * abs(inverse).sum(0).max()
    expected = Status.OK if cond <= 1 / np.sqrt(EPS) else Status.ILL_CONDITIONED
    expected = expected if cond <= 1 / (n * EPS) else Status.RANK_DEFICIENT
    assert solved(A, np.ones(n))[1] == expected


def test_one_singular_matrix_leaves_the_others_alone():
    rng = np.random.default_rng(0)
    A = torch.from_numpy(rng.standard_normal((5, 5, 40)))
    b = torch.from_numpy(rng.standard_normal((40, 5, 2)))
    before, after = torch.empty_like(b), torch.empty_like(b)
    factor_general(A).solve(b, before)
    A[..., 7] = 0
    factors = factor_general(A)
    factors.solve(b, after)
    assert factors.lost.nonzero().flatten().tolist() == [7]
    rest = torch.arange(40) != 7
    assert torch.equal(before[rest], after[rest])


def test_the_real_form_of_a_complex_system_has_the_same_solution():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4))
    b = rng.standard_normal(4) + 1j * rng.standard_normal(4)
    x = solved(A, b)[0]
    y = solved(real_form(A), np.concatenate([b.real, b.imag]))[0]
    bound = backward_stable_bound(A, x) + backward_stable_bound(real_form(A), y)[:4]
    assert (abs(x - (y[:4] + 1j * y[4:])) <= bound).all()
