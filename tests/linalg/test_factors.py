import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles_systems import exact_least_squares, least_squares_bound
from shared_data import shared
from tilewise.fields import Status
from tilewise.linalg.factors import EPS, Factors, default_rcond, factor, factor_svd


def both_ways(A, rcond=None):
    """Factors on the fast path, which tries QR, and by the SVD alone."""
    batch = torch.from_numpy(np.array(A))[..., None]
    return factor(batch, rcond), factor_svd(batch, rcond)


def solution(factors: Factors, b):
    out = torch.empty(1, factors.left.shape[1], 1, dtype=factors.left.dtype)
    factors.solve(torch.from_numpy(np.array(b)).to(out.dtype)[None, :, None], out)
    return out[0, :, 0].numpy()


def small_integers(rng, shape, complex_numbers):
    x = rng.integers(-3, 4, shape).astype(float)
    return x + 1j * rng.integers(-3, 4, shape) if complex_numbers else x


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.integers(0, 4), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_solution_and_rank_are_the_exact_ones_whatever_the_rank_and_the_units(seed, n, p, r, complex_numbers, data):
    # Products of small integers have the rank that rational arithmetic gives them; powers of two keep it.
    rng = np.random.default_rng(seed)
    A = small_integers(rng, (n, r), complex_numbers) @ small_integers(rng, (r, p), complex_numbers)
    units = data.draw(st.lists(st.sampled_from([0, 1, -3, 30, -60, 498, -498]), min_size=p, max_size=p))
    A = A * np.ldexp(1.0, units)
    b = small_integers(rng, n, complex_numbers)
    x, rank = exact_least_squares(A, b)
    for factors in both_ways(A):
        assert factors.rank.item() == rank
        assert (abs(solution(factors, b) - x) <= least_squares_bound(A, b, x, rank)).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 4), st.floats(0, 12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_error_of_full_rank_is_that_of_a_stable_solver_up_to_any_condition(seed, n, p, digits, consistent):
    rng = np.random.default_rng(seed)
    n = max(n, p)
    A = rng.standard_normal((n, p))
    A[:, -1] = A[:, 0] + 10.0**-digits * A[:, -1]
    b = A @ rng.standard_normal(p) if consistent else rng.standard_normal(n)
    x, rank = exact_least_squares(A, b)
    for factors in both_ways(A):
        assert factors.rank.item() == rank
        assert (abs(solution(factors, b) - x) <= least_squares_bound(A, b, x, rank)).all()


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("Norris", 1e-11),
        ("NoInt1", 1e-14),
        ("Pontius", 1e-10),
        ("Wampler1", 1e-8),
        ("Wampler2", 1e-8),
        ("Wampler4", 1e-6),
    ],
)
def test_certified_coefficients_of_nist(name, tolerance):
    case = json.loads((shared("data/nist_strd") / f"{name}.json").read_text())
    for factors in both_ways(np.array(case["design_float64"])):
        x = solution(factors, case["y"])
        # As a matrix, which is how a shared A is applied.
        product = factors.pseudoinverse()[0].numpy() @ np.array(case["y"])
        for found in (x, product):
            np.testing.assert_allclose(found, case["certified"]["coef"], rtol=tolerance)


def test_zero_column_is_a_rank_less_and_takes_no_part():
    A = np.ldexp(np.array([[1.0, 0, 2], [1, 0, 1], [1, 0, 0]]), [-500, 0, -500])
    for factors in both_ways(A):
        assert (factors.rank.item(), factors.status.item()) == (2, Status.RANK_DEFICIENT)
        x = solution(factors, np.ldexp([3.0, 2, 1], -500))
        np.testing.assert_allclose(x, [1, 0, 1], rtol=16 * EPS, atol=16 * EPS)


def test_zero_matrix_has_rank_zero_and_solution_zero():
    for factors in both_ways(np.zeros((3, 2))):
        assert (factors.rank.item(), factors.status.item()) == (0, Status.RANK_DEFICIENT)
        np.testing.assert_array_equal(solution(factors, [1.0, 2, 3]), [0, 0])


@pytest.mark.parametrize(
    ("A", "status"),
    [
        ([[1.0, 0], [0, 1], [1, 1]], Status.OK),
        ([[1.0, 1], [1, 1 + 2**-29], [1, 1]], Status.ILL_CONDITIONED),
        ([[1.0, 1], [1, 1], [1, 1]], Status.RANK_DEFICIENT),
        ([[1.0, 0]], Status.UNDERDETERMINED),
        ([[0.0, 0]], Status.UNDERDETERMINED),
    ],
)
def test_status_is_the_highest_that_applies(A, status):
    for factors in both_ways(np.array(A)):
        assert factors.status.item() == status


def test_rcond_is_where_singular_values_become_zero():
    A = np.diag([1.0, 1.0, 1.0])
    A[0] = [1, 1, 0]  # singular values sqrt((3 +- sqrt(5)) / 2) of the leading block: their ratio is 0.382
    scaled = A / np.array([2.0, 2, 2])
    s = np.linalg.svd(scaled * [2, 1, 2], compute_uv=False)
    for below, rank in [(0.99, 3), (1.01, 2)]:
        for factors in both_ways(A, rcond=below * s[-1] / s[0]):
            assert factors.rank.item() == rank
    assert default_rcond(3, 7) == 7 * EPS


@pytest.mark.parametrize("shape", [(3, 3), (7, 5), (33, 11), (65, 3), (13, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_bits_do_not_depend_on_which_neighbours_are_deficient(shape, dtype):
    # LAPACK's last bits depend on alignment, so a matrix in doubt must not move within its cache line.
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(*shape, 40, generator=generator, dtype=dtype)
    mine = [0, 3, 18, 39]
    A[:, 0, mine] = 2 * A[:, 1, mine]
    alone, crowded = A.clone(), A.clone()
    crowded[:, -1, 1::4] = 0
    for one, other in zip(vars(factor(alone)).values(), vars(factor(crowded)).values(), strict=True):
        assert torch.equal(one[mine], other[mine])


def test_a_batch_is_its_matrices():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((6, 3, 50))
    A[:, 2, ::7] = A[:, 1, ::7]
    factors = factor(torch.from_numpy(A))
    for i in range(50):
        single = factor_svd(torch.from_numpy(A[..., i : i + 1]))
        assert factors.rank[i] == single.rank
        assert factors.status[i] == single.status
        b = rng.standard_normal(6)
        x = factors.pseudoinverse()[i].numpy() @ b
        rank = int(single.rank)
        assert (abs(x - solution(single, b)) <= 2 * least_squares_bound(A[..., i], b, x, rank)).all()
