"""What Lstsq says beside a solution: rank, n_valid, condition, residual norm, standard errors and R^2."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import evaluate
from oracles_systems import U
from pixelwise import ALL, agree_within, check, gappy, weights_of
from tilewise.fields import Status
from tilewise.kernels.lstsq import Lstsq

NAN, INF = np.nan, np.inf


def one(A, b, weights=None, **parameters):
    """Every diagnostic of one pixel, by a shared matrix and by one of its own, once both are the oracle's."""
    fields = {"A": (("e", "u"), np.array(A, float)), "b": (("e", "x"), np.array(b, float)[:, None])}
    if weights is not None:
        fields["weights"] = (("e",), np.array(weights, float))
    check({**fields, "A": (("x", "e", "u"), fields["A"][1][None])}, **parameters)
    return {name: values[..., 0] for name, values in check(fields, **parameters).items()}


# Rank and condition


def test_condition_is_that_of_the_weighted_and_scaled_matrix():
    # Columns of any length have the same condition, and so have equations once their weights make up for it.
    assert one(np.diag([2.0**-330, 1, 2.0**330]), [1, 1, 1])["condition"] == 1
    assert one(np.diag([1.0, 1024.0]), [1, 1], [1024.0**2, 1.0])["condition"] == 1
    A = np.array([[1.0, 1], [1, -1], [1, 1], [1, 1]])
    plain, weighted = one(A, [1, 2, 3, 4]), one(A, [1, 2, 3, 4], [1, 3, 1, 1])
    assert plain["condition"] > 1.5
    np.testing.assert_allclose(weighted["condition"], 1, rtol=16 * U)


@pytest.mark.parametrize(
    ("A", "rank", "status"),
    [
        ([[1.0, 1], [1, 1], [2, 2]], 1, Status.RANK_DEFICIENT),
        ([[0.0, 0], [0, 0], [0, 0]], 0, Status.RANK_DEFICIENT),
        ([[1.0, 2]], 1, Status.UNDERDETERMINED),
        ([[0.0, 0]], 0, Status.UNDERDETERMINED),
    ],
)
def test_condition_is_infinite_below_full_rank(A, rank, status):
    found = one(A, np.arange(1.0, len(A) + 1))
    assert (found["rank"], found["status"], found["condition"]) == (rank, status, INF)


def test_what_was_not_computed_is_not_a_number_or_minus_one():
    b = np.array([[1.0, NAN, NAN, 1.0], [2.0, 1.0, NAN, INF], [3.0, NAN, NAN, 1.0]])
    fields = {"A": (("e", "u"), np.array([[1.0, 0], [1, 1], [1, 2]])), "b": (("e", "x"), b)}
    found = check(fields, nan_policy="omit", min_valid=2)
    assert found["status"].tolist() == [Status.OK, Status.TOO_FEW, Status.NO_DATA, Status.NON_FINITE]
    assert found["n_valid"].tolist() == [3, 1, 0, 3]
    # What too few rows say of their matrix is known: one row serves one of two unknowns.
    assert found["rank"].tolist() == [2, 1, 0, -1]
    np.testing.assert_array_equal(np.isnan(found["condition"]), [False, False, True, True])
    assert found["condition"][1] == INF
    for name in ("residual_norm", "r2"):
        assert np.isnan(found[name]).tolist() == [False, True, True, True]
    assert np.isnan(found["stderr"]).tolist() == [[False, True, True, True]] * 2


@pytest.mark.parametrize("varying", [False, True])
def test_gaps_may_make_a_pixel_ill_conditioned_or_deficient(varying):
    A = np.array([[1.0, 0], [1, 1], [1, 2**-30], [1, 0]])
    b = np.ones((4, 4))
    b[1, 1] = b[1, 2] = b[2, 2] = b[:3, 3] = NAN
    fields = {"A": (("x", "e", "u"), np.stack([A] * 4)) if varying else (("e", "u"), A), "b": (("e", "x"), b)}
    # Without the second row the columns are (1, 1, 1) and (0, t, 0): their units are alike once scaled.
    found = check(fields, nan_policy="omit")
    assert found["status"].tolist() == [0, 0, Status.RANK_DEFICIENT, Status.UNDERDETERMINED]
    A[:, 1] += 1
    fields["A"] = (fields["A"][0], np.stack([A] * 4) if varying else A)
    found = check(fields, nan_policy="omit")
    assert found["status"].tolist()[:2] == [0, Status.ILL_CONDITIONED]


# Standard errors


def test_standard_errors_of_a_mean():
    found = one(np.ones((4, 1)), [1, 2, 3, 6])
    np.testing.assert_allclose(found["stderr"], [np.std([1, 2, 3, 6], ddof=1) / 2], rtol=16 * U)
    absolute = one(np.ones((4, 1)), [1, 2, 3, 6], [4, 4, 4, 4], weights_kind="absolute")
    np.testing.assert_allclose(absolute["stderr"], [0.25], rtol=16 * U)


def test_relative_errors_without_freedom_are_not_known_and_absolute_ones_are():
    A, b = [[1.0, 0], [1, 1]], [1.0, 3.0]
    assert np.isnan(one(A, b)["stderr"]).all()
    np.testing.assert_allclose(one(A, b, weights_kind="absolute")["stderr"], [1, 2**0.5], rtol=16 * U)


def test_unknowns_that_cannot_be_estimated_have_no_standard_error():
    A = [[1.0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1], [0, 2, 2]]
    for kind in ("relative", "absolute"):
        found = one(A, [1, 2, 3, 5, 4], weights_kind=kind)
        assert np.isnan(found["stderr"]).tolist() == [False, True, True]
    # Columns in other units, and one that is empty.
    found = one(np.array(A) * [1e-8, 1e8, 1], [1, 2, 3, 5, 4])
    assert np.isnan(found["stderr"]).tolist() == [False, True, True]
    found = one([[1.0, 0], [2, 0], [1, 0]], [1, 2, 3])
    assert np.isnan(found["stderr"]).tolist() == [False, True]
    # Fewer equations than unknowns, and one of these alone in its equation.
    found = one([[1.0, 0, 0], [0, 1, 1]], [1, 2], weights_kind="absolute")
    assert np.isnan(found["stderr"]).tolist() == [False, True, True]


# R^2


def test_r2_is_centred_exactly_where_a_constant_is_in_the_column_space():
    t, b = np.arange(5.0), np.array([1.0, 3, 2, 5, 4])
    b = b + 100
    with_constant = one(np.stack([np.ones(5), t], 1), b)["r2"]
    np.testing.assert_allclose(with_constant, np.corrcoef(t, b)[0, 1] ** 2, rtol=1e-12)
    # A constant need not be a column.
    indicators = np.stack([t < 3, t >= 3], 1)
    fitted = np.where(t < 3, b[:3].mean(), b[3:].mean())
    centred = 1 - ((b - fitted) ** 2).sum() / ((b - b.mean()) ** 2).sum()
    np.testing.assert_allclose(one(indicators, b)["r2"], centred, rtol=1e-12)
    # Through the origin it is not, as in R's lm(y ~ 0 + x).
    slope = (t @ b) / (t @ t)
    uncentred = 1 - ((b - slope * t) ** 2).sum() / (b**2).sum()
    np.testing.assert_allclose(one(t[:, None], b)["r2"], uncentred, rtol=1e-12)


def test_gaps_decide_whether_a_constant_is_there():
    # The second column is constant where the last row is missing.
    A = np.array([[0.0, 2], [1, 2], [3, 2], [4, 2], [1, 7]])
    b = np.array([[1.0, 1.0], [2, 2], [4, 4], [3, 3], [5, NAN]])
    for fields in (
        {"A": (("e", "u"), A), "b": (("e", "x"), b)},
        {"A": (("x", "e", "u"), np.stack([A] * 2)), "b": (("e", "x"), b)},
    ):
        found = check(fields, nan_policy="omit")["r2"]
        np.testing.assert_allclose(found[1], np.corrcoef(A[:4, 0], b[:4, 1])[0, 1] ** 2, rtol=1e-12)


def test_r2_of_nothing_to_explain_is_not_a_number():
    line = np.stack([np.ones(4), np.arange(4.0)], 1)
    assert np.isnan(one(line, [3, 3, 3, 3])["r2"])
    assert np.isnan(one(line, [0.1] * 4, [0.3, 0.7, 1.1, 1.3])["r2"])
    assert np.isnan(one(line[:, 1:], [0, 0, 0, 0])["r2"])
    assert np.isnan(one(line[:1], [0.1], [0.3])["r2"])


def test_r2_of_values_far_from_zero():
    # Deviations of one part in 10^9 of the level: an uncentred sum of squares would hold none of them.
    t, b = np.arange(6.0), 1e9 + np.array([0.0, 1, 1, 2, 4, 3])
    found = one(np.stack([np.ones(6), t], 1), b)["r2"]
    np.testing.assert_allclose(found, np.corrcoef(t, b - 1e9)[0, 1] ** 2, rtol=1e-5)


# Any of them


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("varying", [False, True])
def test_a_diagnostic_alone_is_as_among_all(name, varying):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((3, 6, 2) if varying else (6, 2))
    fields = {
        "A": (("x", "e", "u") if varying else ("e", "u"), A),
        "b": (("e", "x"), gappy(rng, rng.standard_normal((6, 3)))),
        "weights": (("e", "x"), weights_of(rng, (6, 3))),
    }
    kernel = Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=(name,))
    everything = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL), fields)
    alone = evaluate(kernel, fields)
    assert set(alone) == {"solution", "status", name}
    agree_within(kernel, fields, alone, everything)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 7), varying=st.booleans(), whole=st.booleans())
@settings(max_examples=25, deadline=None)
def test_without_gaps_or_weights_they_are_those_of_the_oracle(seed, n, varying, whole):
    rng = np.random.default_rng(seed)
    draw = (lambda shape: rng.integers(-2, 3, shape).astype(float)) if whole else rng.standard_normal
    A = draw((4, n, 3) if varying else (n, 3))
    check({"A": (("x", "e", "u") if varying else ("e", "u"), A), "b": (("e", "x"), draw((n, 4)))})


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 6), varying=st.booleans())
@settings(max_examples=15, deadline=None)
def test_of_complex_systems(seed, n, varying):
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)  # noqa: E731
    A = draw((4, n, 2) if varying else (n, 2))
    A[..., 0] = 1
    fields = {"A": (("x", "e", "u") if varying else ("e", "u"), A), "b": (("e", "x"), draw((n, 4)))}
    fields["weights"] = (("e", "x"), weights_of(rng, (n, 4)))
    check(fields)


@pytest.mark.parametrize("gaps", ["none", "few patterns", "many patterns"])
def test_r2_of_an_ill_conditioned_design_with_a_constant_is_centred(gaps):
    """The first column is the constant, whatever the others do: r2 is what residual_norm and the mean make of it."""
    rng = np.random.default_rng(0)
    A = np.vander(2000 + np.arange(60) / 12, 4, increasing=True)
    b = 5000 + rng.normal(size=(60, 256))
    if gaps == "few patterns":
        b[7:20, ::2] = np.nan
    elif gaps == "many patterns":
        b[rng.random(b.shape) < 0.1] = np.nan
    kernel = Lstsq(dim="e", nan_policy="omit", diagnostics=("r2", "residual_norm"))
    found = evaluate(kernel, {"A": (("e", "u"), A), "b": (("e", "x"), b)})
    about_mean = np.nansum((b - np.nanmean(b, axis=0)) ** 2, axis=0)
    # b is known to u 5000 beside deviations of about one: 60 times that is far below 1e-9.
    np.testing.assert_allclose(found["r2"], 1 - found["residual_norm"] ** 2 / about_mean, atol=1e-9)
