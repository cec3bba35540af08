import numpy as np
import pytest
import torch

from oracles_systems import U, column_scales
from tilewise.linalg.factors import factor_svd
from tilewise.linalg.rows import Rules, look
from tilewise.linalg.seminormal import LIMIT, Gram


def fitted(A, b, weights, penalty=None):
    """The fit of a shared A with the weights (n, w) of pixels, and its panel."""
    A, penalty = torch.from_numpy(A), None if penalty is None else torch.from_numpy(penalty)
    stacked = A if penalty is None else torch.cat([A, penalty])
    gram = Gram.of(A, penalty, factor_svd(stacked.unsqueeze(-1)))
    panel = look(Rules("omit"), torch.from_numpy(b.copy()), None, torch.from_numpy(weights.copy()), {}).panel
    return gram.fit(panel, None), panel


def stacked(A, weights, penalty):
    rows = np.sqrt(weights)[:, None] * A
    return rows if penalty is None else np.concatenate([rows, penalty])


def condition(M):
    s = np.linalg.svd(M * column_scales(M), compute_uv=False)
    return s[0] / s[-1]


CASES = [(30, 4, 0), (30, 4, 2), (12, 1, 0), (60, 12, 0), (9, 8, 3)]


@pytest.mark.parametrize(("n", "p", "q"), CASES)
@pytest.mark.parametrize("spread", [0, 2, 8])
def test_served_pixels_have_the_condition_within_its_bounds_and_the_true_answer(n, p, q, spread):
    """Solutions are within 16 n p u cond of numpy's, whose own error is of that size (Higham, theorem 20.1)."""
    rng = np.random.default_rng(n + p + q + spread)
    A = rng.standard_normal((n, p)) * np.ldexp(1.0, rng.integers(-30, 30, p))
    b = rng.standard_normal((n, 40))
    weights = 10 ** rng.uniform(-spread, 0, (n, 40)) * (rng.random((n, 40)) < 0.8)
    penalty = rng.standard_normal((q, p)) if q else None
    fit, panel = fitted(A, b, weights, penalty)
    x = fit.solve(panel.b).numpy()
    exact = fit.exact_cond().numpy()
    for i in np.flatnonzero(fit.served.numpy()):
        M = stacked(A, weights[:, i], penalty)
        cond = condition(M)
        assert cond <= float(fit.cond[i]) * 1.01
        np.testing.assert_allclose(exact[i], cond, rtol=n * p * LIMIT)
        D = column_scales(M)
        rhs = np.concatenate([np.sqrt(weights[:, i]) * b[:, i], np.zeros(q)])
        y = np.linalg.lstsq(M * D, rhs)[0]
        size = np.linalg.norm(y) + cond * np.linalg.norm(rhs) / np.linalg.norm(M * D, 2)
        assert np.linalg.norm(x[:, i] / D - y) <= 16 * n * p * U * cond * size


def test_most_pixels_of_a_fair_design_are_served():
    rng = np.random.default_rng(0)
    fit, _ = fitted(rng.standard_normal((50, 6)), rng.standard_normal((50, 99)), (rng.random((50, 99)) < 0.8) * 1.0)
    assert fit.served.all()


@pytest.mark.parametrize("height", [1e6, 1e120])
def test_pixels_that_lack_the_rows_by_which_q_is_known_are_not_served(height):
    A = np.random.default_rng(1).standard_normal((6, 2))
    A[2] *= height
    weights = np.ones((6, 2))
    weights[2, 0] = 0
    fit, _ = fitted(A, np.ones((6, 2)), weights)
    assert not fit.served[0]


def test_too_few_rows_are_not_served():
    weights = np.ones((5, 3))
    weights[1:, 1] = 0
    fit, _ = fitted(np.random.default_rng(2).standard_normal((5, 2)), np.ones((5, 3)), weights)
    assert fit.served.tolist() == [True, False, True]
