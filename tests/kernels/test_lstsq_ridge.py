"""Lstsq with a ridge or a Tikhonov matrix: the stacked system, in unscaled units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import Example
from harness import evaluate
from pixelwise import RIDGED, agree_within, between_solves, check, gappy, weights_of
from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec, Status
from tilewise.kernels.lstsq import Lstsq

RNG = np.random.default_rng(27)
NAN, INF = np.nan, np.inf


def example(kernel, fields):
    return Example(kernel, fields, between_solves(kernel, fields))


EXAMPLES = [
    example(
        Lstsq(dim="e", unknown="u", nan_policy="omit", ridge=(0.0, 0.5), diagnostics=RIDGED),
        {
            "A": (("e", "u"), RNG.standard_normal((5, 2))),
            "b": (("e", "y", "x"), gappy(RNG, RNG.standard_normal((5, 6, 7)))),
        },
    ),
    example(
        Lstsq(dim="e", unknown="u", diagnostics=RIDGED),
        {
            "A": (("x", "e", "u"), RNG.standard_normal((7, 4, 3))),
            "b": (("e", "y", "x"), RNG.standard_normal((4, 6, 7))),
            "L": (("k", "u"), np.diff(np.eye(3), axis=0)),
        },
    ),
    example(
        Lstsq(dim="e", unknown="u", ridge=0.25),
        {"A": (("e", "u"), RNG.standard_normal((5, 2))), "b": (("e", "y", "x"), RNG.standard_normal((5, 6, 7)))},
    ),
]


def spec(name, dims, shape, dtype="float64"):
    return FieldSpec(name, dims, shape, dtype)


def system(rng, n, p, *, varying=False, weighted=False, gaps=0.25):
    A = rng.standard_normal((3, n, p) if varying else (n, p))
    fields = {
        "A": (("x", "e", "u") if varying else ("e", "u"), A),
        "b": (("e", "y", "x"), gappy(rng, rng.standard_normal((n, 2, 3)), gaps)),
    }
    if weighted:
        fields["weights"] = (("e", "y", "x"), weights_of(rng, (n, 2, 3)))
    return fields


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 6),
    p=st.integers(1, 4),
    kind=st.sampled_from(["scalar", "each", "L", "L of few rows", "L transposed"]),
    varying=st.booleans(),
    weighted=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_every_pixel_is_that_of_the_stacked_system(seed, n, p, kind, varying, weighted):
    rng = np.random.default_rng(seed)
    fields = system(rng, n, p, varying=varying, weighted=weighted)
    ridge = 0.0
    if kind == "scalar":
        ridge = float(rng.choice([0.01, 2.0]))
    elif kind == "each":
        # One that frees some unknowns; those with a row of their own may be fewer than what is missing.
        ridge = tuple(float(v) for v in rng.choice([0.1, 1.0, 7.0], p))
        ridge = (0.0, *ridge[1:]) if n >= p else ridge
    else:
        L = rng.standard_normal((1 if kind == "L of few rows" else p, p))
        fields["L"] = (("u", "k"), L.T) if kind == "L transposed" else (("k", "u"), L)
    check(fields, nan_policy="omit", ridge=ridge)


@given(
    seed=st.integers(0, 2**32 - 1),
    units=st.lists(st.integers(-150, 150), min_size=3, max_size=3),
    b_level=st.integers(-490, 490),
    w_level=st.integers(-150, 150),
)
@settings(max_examples=10, deadline=None)
def test_a_ridge_is_in_the_users_units(seed, units, b_level, w_level):
    # lambda_j x_j^2 beside w (A_j x_j)^2: the same problem in other units has lambda_j 2^(2 units_j + w_level).
    rng = np.random.default_rng(seed)
    fields = system(rng, 5, 3, weighted=True)
    lambdas = np.array([0.5, 2.0, 0.1])
    moved = {
        "A": (("e", "u"), np.ldexp(fields["A"][1], units)),
        "b": (fields["b"][0], np.ldexp(fields["b"][1], b_level)),
        "weights": (fields["weights"][0], np.ldexp(fields["weights"][1], w_level)),
    }
    ridge = tuple(float(v) for v in np.ldexp(lambdas, 2 * np.array(units) + w_level))
    check(moved, nan_policy="omit", ridge=ridge)


def test_no_ridge_at_all_is_the_plain_solution():
    rng = np.random.default_rng(1)
    fields = system(rng, 5, 3)
    plain = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit"), fields)
    for ridge in (0, 0.0, (0.0, 0.0, 0.0), [0, 0, 0]):
        found = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit", ridge=ridge), fields)
        agree_within(Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=("stderr",)), fields, found, plain)


@pytest.mark.parametrize("varying", [False, True])
def test_one_lambda_is_that_of_each_unknown_and_a_matrix_of_its_root(varying):
    rng = np.random.default_rng(2)
    fields = system(rng, 4, 3, varying=varying, weighted=True)
    kernels = [Lstsq(dim="e", unknown="u", nan_policy="omit", ridge=r, diagnostics=RIDGED) for r in (0.25, (0.25,) * 3)]
    results = [evaluate(kernel, fields) for kernel in kernels]
    plain = Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=RIDGED)
    results.append(evaluate(plain, {**fields, "L": (("k", "u"), 0.5 * np.eye(3))}))
    for other in results[1:]:
        agree_within(kernels[0], fields, results[0], other)


def test_rank_and_underdetermined_are_those_of_the_stacked_system():
    b = np.array([[1.0, NAN, NAN], [2.0, 2.0, NAN]])
    fields = {"A": (("e", "u"), np.array([[1.0, 1, 0], [1, 2, 3]])), "b": (("e", "x"), b)}
    found = check(fields, nan_policy="omit", ridge=0.1)
    assert found["status"].tolist() == [Status.OK, Status.OK, Status.NO_DATA]
    assert found["rank"].tolist() == [3, 3, 0]
    assert found["n_valid"].tolist() == [2, 1, 0]
    # Two rows of data and one of L serve three unknowns; one of data does not.
    fields["L"] = (("k", "u"), np.array([[0.0, 0, 1]]))
    found = check(fields, nan_policy="omit")
    assert found["status"].tolist() == [Status.OK, Status.UNDERDETERMINED, Status.NO_DATA]
    # L adds rows, but no rank.
    fields["L"] = (("k", "u"), np.array([[1.0, 1, 0]] * 3))
    assert check(fields, nan_policy="omit")["status"].tolist() == [2, 2, Status.NO_DATA]
    # Rows of a ridge are no data.
    few = check(fields, nan_policy="omit", min_valid=2)["status"]
    assert few.tolist() == [2, Status.TOO_FEW, Status.NO_DATA]


def test_a_lambda_of_zero_frees_an_intercept():
    # A constant far above the slope: the intercept keeps it, the slope alone shrinks.
    t = np.array([-1.0, 0, 1])
    fields = {"A": (("e", "u"), np.stack([np.ones(3), t], 1)), "b": (("e", "x"), (1000 + 4 * t)[:, None])}
    found = check(fields, ridge=(0.0, 2.0))
    np.testing.assert_allclose(found["solution"][:, 0], [1000, 2], rtol=1e-13)


def test_a_ridge_serves_complex_systems():
    rng = np.random.default_rng(3)
    fields = system(rng, 4, 2, gaps=0.0)
    fields = {n: (dims, x + 1j * rng.standard_normal(x.shape)) for n, (dims, x) in fields.items()}
    check(fields, ridge=0.5)
    check({**fields, "L": (("k", "u"), np.array([[1.0, -1.0]]))})


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_poisoned_pixel_changes_no_other_beside_a_ridge(bad):
    rng = np.random.default_rng(4)
    A, b = rng.standard_normal((4, 3)), rng.standard_normal((4, 90))
    kernel = Lstsq(dim="e", unknown="u", ridge=0.1, diagnostics=RIDGED)
    before = evaluate(kernel, {"A": (("e", "u"), A), "b": (("e", "x"), b)}, panel=64)
    b[1, 70] = bad
    after = evaluate(kernel, {"A": (("e", "u"), A), "b": (("e", "x"), b)}, panel=64)
    assert after["status"][70] == Status.NON_FINITE
    for name, values in before.items():
        assert np.delete(values, 70, -1).tobytes() == np.delete(after[name], 70, -1).tobytes()


# Errors ahead


@pytest.mark.parametrize("ridge", [-1.0, NAN, INF, (0.0, -1.0), (1.0, NAN), (), "much", True, 1j, [[1.0]]])
def test_a_ridge_that_cannot_be_is_refused(ridge):
    with pytest.raises(ParameterError, match=r"kernel\.ridge"):
        Lstsq(dim="e", ridge=ridge)


def fields_of(**more):
    return {"A": spec("A", ("e", "u"), (5, 3)), "b": spec("b", ("e", "x"), (5, 4)), **more}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_ridge_of_the_wrong_length_is_refused_before_data_is_read(count):
    with pytest.raises(DimensionError, match=rf"kernel\.ridge.*{count} values for 3 along 'u'"):
        Lstsq(dim="e", ridge=(0.1,) * count).declare(fields_of())


def test_a_matrix_that_cannot_be_is_refused_before_data_is_read():
    for dims, shape in [(("k", "x"), (3, 4)), (("u",), (3,)), (("x", "u"), (4, 3)), (("x", "k", "u"), (4, 3, 3))]:
        with pytest.raises(DimensionError, match=r"\bL\b"):
            Lstsq(dim="e").declare(fields_of(L=spec("L", dims, shape)))
    with pytest.raises(DimensionError):
        Lstsq(dim="e").declare(fields_of(L=spec("L", ("k", "u"), (3, 4))))
    Lstsq(dim="e").declare(fields_of(L=spec("L", ("k", "u"), (7, 3))))
    assert "L" in Lstsq(dim="e").declare(fields_of(L=spec("L", ("k", "u"), (7, 3)))).shared


@pytest.mark.parametrize("bad", [NAN, -INF])
def test_a_matrix_that_is_not_finite_is_refused_before_anything_is_computed(bad):
    fields = {
        "A": (("e", "u"), np.ones((3, 2))),
        "b": (("e", "x"), np.ones((3, 2))),
        "L": (("k", "u"), np.array([[1.0, 0], [0, bad]])),
    }
    with pytest.raises(ParameterError, match=r"\bL has a value that is not finite"):
        evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit"), fields)


def test_standard_errors_beside_a_ridge_are_refused():
    with pytest.raises(ParameterError, match="stderr.*ridge"):
        Lstsq(dim="e", ridge=0.1, diagnostics=("stderr",))
    with pytest.raises(ParameterError, match="stderr"):
        Lstsq(dim="e", diagnostics=("stderr",)).declare(fields_of(L=spec("L", ("k", "u"), (3, 3))))
    Lstsq(dim="e", ridge=0.0, diagnostics=("stderr",))
