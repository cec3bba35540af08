import itertools

import numpy as np
import pytest
import torch

from tilewise.linalg.rows import Rules, look

NAN, INF = float("nan"), float("inf")


def seen(policy, b, weights=None, A=None):
    tensors = [None if x is None else torch.tensor(x, dtype=torch.float64) for x in (b, A, weights)]
    return look(Rules(policy), *tensors, {})


def expected(policy, b, a, w):
    """(there, bad) of one row, from the words of the rules."""
    nan = any(v is not None and np.isnan(v) for v in (b, a, w))
    there = not (w == 0 or (policy == "omit" and nan))
    wrong = nan or any(v is not None and np.isinf(v) for v in (b, a, w)) or (w is not None and w < 0)
    return there, there and wrong


@pytest.mark.parametrize("policy", ["propagate", "omit", "raise"])
def test_every_row_is_there_or_not_and_good_or_bad_as_the_rules_say(policy):
    values, weights = (2.0, NAN, INF, -INF), (None, 0.0, 1.5, -1.0, NAN, INF)
    for b, a, w in itertools.product(values, (None, *values), weights):
        there, bad = expected(policy, b, a, w)
        # Two rows: this one, and one with nothing wrong. The pixel beside it is clean.
        found = seen(
            policy,
            [[b, 1.0], [3.0, 1.0]],
            None if w is None else [[w, 1.0], [1.0, 1.0]],
            None if a is None else [[[a, 1.0]], [[1.0, 1.0]]],
        )
        assert found.count.tolist() == [1 + there, 2], (b, a, w)
        assert (found.bad is not None and bool(found.bad[0])) == bad, (b, a, w)
        assert found.bad is None or not found.bad[1]
        assert (found.nan == 0) == (
            policy == "raise" and there and any(v is not None and np.isnan(v) for v in (b, a, w))
        )
        for clean in (found.panel.b, found.panel.A, found.panel.weights):
            assert clean is None or bool(clean.isfinite().all()), (b, a, w)


def test_weights_are_scaled_by_even_powers_of_two():
    weights = np.array([[1e-300, 3.0, 0.25, 5e-324], [1e-302, 8.0, 0.0, 0.0]])
    panel = seen("propagate", np.ones((2, 4)), weights).panel
    assert (panel.exponent % 2 == 0).all()
    back = torch.ldexp(panel.weights, panel.exponent)
    np.testing.assert_array_equal(back.numpy(), weights)
    largest = panel.weights.amax(0)[:3]
    assert ((largest >= 0.25) & (largest <= 1)).all()
    assert not panel.binary


def test_gaps_alone_are_zeros_and_ones():
    panel = seen("omit", [[1.0, NAN], [2.0, 3.0]]).panel
    assert panel.binary
    assert panel.weights.tolist() == [[1, 0], [1, 1]]
    assert panel.b.tolist() == [[1, 0], [2, 3]]


def test_sums_that_overflow_are_a_false_alarm():
    found = seen("propagate", np.full((4, 3), 1.7e308))
    assert found.bad is None or not found.bad.any()
    assert found.count.tolist() == [4, 4, 4]
