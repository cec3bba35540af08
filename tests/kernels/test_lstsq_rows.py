"""Lstsq with rows that are not there: gaps, weights, policies, and what bad rows do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import Example
from harness import declare, evaluate
from memory_use import peaks
from oracles_systems import U
from oracles_weighted import Answer, Problem, answer, bounds, rows_there
from pixelwise import ALL, agree_within, between_solves, check, gappy, weights_of
from tilewise.errors import DimensionError, DTypeError, MissingValueError, ParameterError
from tilewise.fields import FieldSpec, Status
from tilewise.kernels.lstsq import Lstsq

RNG = np.random.default_rng(17)
NAN, INF = np.nan, np.inf


def example(kernel, fields):
    return Example(kernel, fields, between_solves(kernel, fields))


EXAMPLES = [
    example(
        Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL),
        {
            "A": (("e", "u"), RNG.standard_normal((6, 2))),
            "b": (("e", "y", "x"), gappy(RNG, RNG.standard_normal((6, 6, 7)))),
        },
    ),
    example(
        Lstsq(dim="e", unknown="u", diagnostics=ALL),
        {
            "A": (("e", "u"), RNG.standard_normal((5, 2))),
            "b": (("e", "y", "x"), RNG.standard_normal((5, 6, 7))),
            "weights": (("e", "y", "x"), RNG.uniform(0.1, 9.0, (5, 6, 7))),
        },
    ),
    example(
        Lstsq(dim="e", unknown="u", nan_policy="omit", min_valid=2, weights_kind="absolute", diagnostics=("stderr",)),
        {
            "A": (("x", "e", "u"), RNG.standard_normal((7, 5, 2))),
            "b": (("y", "x", "e"), gappy(RNG, RNG.standard_normal((6, 7, 5)))),
            "weights": (("e",), np.array([1.0, 2.0, 0.5, 4.0, 3.0])),
        },
    ),
]


def spec(name, dims, shape, dtype="float64"):
    return FieldSpec(name, dims, shape, dtype)


def line(n):
    return np.stack([np.ones(n), np.arange(float(n))], 1)


# Rules of rows

#: What a row of one equation in one unknown may hold: (A, b, weight).
ROWS = [
    (2.0, 3.0, 1.0),
    (2.0, NAN, 1.0),
    (2.0, INF, 1.0),
    (NAN, 3.0, 1.0),
    (-INF, 3.0, 1.0),
    (NAN, INF, 1.0),
    (INF, NAN, 1.0),
    (2.0, 3.0, 0.0),
    (2.0, 3.0, -0.0),
    (2.0, NAN, 0.0),
    (2.0, INF, 0.0),
    (NAN, 3.0, 0.0),
    (INF, 3.0, 0.0),
    (2.0, 3.0, NAN),
    (2.0, INF, NAN),
    (2.0, 3.0, -1.0),
    (2.0, NAN, -1.0),
    (2.0, 3.0, INF),
    (2.0, NAN, INF),
    (0.0, 3.0, 1.0),
]


@pytest.mark.parametrize("policy", ["propagate", "omit"])
@pytest.mark.parametrize("min_valid", [1, 2])
def test_every_pair_of_rows_has_the_status_of_the_table(policy, min_valid):
    pairs = np.array(list(product(ROWS, ROWS)))  # (pixel, e, 3)
    fields = {
        "A": (("x", "e", "u"), pairs[:, :, :1]),
        "b": (("x", "e"), pairs[:, :, 1]),
        "weights": (("x", "e"), pairs[:, :, 2]),
    }
    found = check(fields, nan_policy=policy, min_valid=min_valid)
    expected = {Status.OK, Status.RANK_DEFICIENT, Status.NON_FINITE, Status.NO_DATA}
    expected |= {Status.TOO_FEW} if min_valid == 2 else set()
    assert set(found["status"].tolist()) == expected


@pytest.mark.parametrize("policy", ["propagate", "omit"])
def test_every_pair_of_rows_of_a_shared_matrix(policy):
    rows = [row for row in ROWS if row[0] == 2.0]
    pairs = np.array(list(product(rows, rows)))
    fields = {
        "A": (("e", "u"), [[2.0], [1.0]]),
        "b": (("e", "x"), pairs[:, :, 1].T),
        "weights": (("e", "x"), pairs[:, :, 2].T),
    }
    check(fields, nan_policy=policy)


def test_missing_rows_of_a_shared_matrix_are_left_out_under_omit():
    A = line(5)
    A[2, 1] = NAN
    found = check({"A": (("e", "u"), A), "b": (("e", "x"), RNG.standard_normal((5, 3)))}, nan_policy="omit")
    assert (found["n_valid"] == 4).all()
    # One whose weight is zero is not there under any policy.
    w = np.array([1.0, 2, 0, 1, 1])
    for policy in ("propagate", "omit", "raise"):
        fields = {"A": (("e", "u"), A), "b": (("e", "x"), RNG.standard_normal((5, 3))), "weights": (("e",), w)}
        assert (check(fields, nan_policy=policy)["n_valid"] == 4).all()


@pytest.mark.parametrize("field", ["b", "A", "weights"])
def test_raise_names_a_pixel(field):
    sizes = {"y": 7, "x": 30, "e": 3, "u": 2}
    dims = {"A": ("x", "e", "u"), "b": ("e", "y", "x"), "weights": ("y", "e", "x")}
    fields = {n: (dims[n], RNG.uniform(1, 2, [sizes[d] for d in dims[n]])) for n in dims}
    kernel = Lstsq(dim="e", unknown="u", nan_policy="raise")
    assert not evaluate(kernel, fields, panel=64)["status"].any()
    at = {"y": 4, "x": 21, "e": 1, "u": 0}
    fields[field][1][tuple(at[d] for d in dims[field])] = NAN
    # A is that of every y: the first pixel that it spoils.
    pixel = r"\(0, 21\)" if field == "A" else r"\(4, 21\)"
    with pytest.raises(MissingValueError, match=rf"pixel {pixel}.*kernel\.nan_policy to omit"):
        evaluate(kernel, fields, panel=64)


def test_raise_lets_rows_of_no_weight_be():
    b = np.ones((3, 4))
    b[1, 2] = NAN
    fields = {"A": (("e", "u"), line(3)), "b": (("e", "x"), b), "weights": (("e",), np.array([1.0, 0, 2]))}
    assert not check(fields, nan_policy="raise")["status"].any()


# Against the oracle


LAYOUTS = {
    "shared A": (("e", "u"), ("e", "y", "x"), None),
    "A transposed, weights an equation": (("u", "e"), ("y", "e", "x"), ("e",)),
    "weights a pixel": (("e", "u"), ("y", "x", "e"), ("e", "y", "x")),
    "weights along x": (("e", "u"), ("e", "x", "y"), ("x", "e")),
    "A along x": (("x", "e", "u"), ("e", "y", "x"), None),
    "A along x, weights a pixel": (("e", "x", "u"), ("e", "y", "x"), ("y", "e", "x")),
    "A along x, weights along y": (("e", "u", "x"), ("e", "y", "x"), ("y", "e")),
    "A a pixel": (("e", "u", "y", "x"), ("y", "x", "e"), ("e",)),
    "A beyond b": (("y", "e", "u"), ("e", "x"), ("e", "x")),
}
SIZES = {"y": 2, "x": 3}


def values_of(rng, kind, shape):
    if kind == "integers":  # dependent columns and rows are frequent
        return rng.integers(-2, 3, shape).astype(float)
    return rng.standard_normal(shape)


def system(rng, layout, n, p, kind="normal", share=0.3):
    A_dims, b_dims, w_dims = LAYOUTS[layout]
    sizes = {**SIZES, "e": n, "u": p}
    fields = {
        "A": (A_dims, values_of(rng, kind, [sizes[d] for d in A_dims])),
        "b": (b_dims, gappy(rng, values_of(rng, kind, tuple(sizes[d] for d in b_dims)), share)),
    }
    if w_dims is not None:
        fields["weights"] = (w_dims, weights_of(rng, tuple(sizes[d] for d in w_dims)))
    return fields


@given(
    seed=st.integers(0, 2**32 - 1),
    layout=st.sampled_from(sorted(LAYOUTS)),
    kind=st.sampled_from(["normal", "integers"]),
    n=st.integers(1, 7),
    p=st.integers(1, 4),
    parameters=st.fixed_dictionaries(
        {
            "nan_policy": st.sampled_from(["omit", "omit", "propagate"]),
            "min_valid": st.just(1),
            "deficient": st.sampled_from(["min_norm", "min_norm", "nan"]),
            "weights_kind": st.sampled_from(["relative", "absolute"]),
        }
    ),
    at_least=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_every_pixel_is_that_of_the_oracle(seed, layout, kind, n, p, parameters, at_least):
    fields = system(np.random.default_rng(seed), layout, n, p, kind)
    check(fields, **{**parameters, "min_valid": min(at_least, n)})


@given(
    seed=st.integers(0, 2**32 - 1),
    units=st.lists(st.integers(-498, 498), min_size=3, max_size=3),
    b_level=st.integers(-490, 490),
    w_level=st.integers(-490, 490),
    varying=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_units_of_columns_values_and_weights(seed, units, b_level, w_level, varying):
    rng = np.random.default_rng(seed)
    fields = system(rng, "A along x, weights a pixel" if varying else "weights a pixel", 6, 3)
    axis = {"e": None, "u": slice(None), "x": None}
    scale = np.ldexp(1.0, units)[tuple(axis[d] for d in fields["A"][0])]
    fields["A"] = (fields["A"][0], fields["A"][1] * scale)
    fields["b"] = (fields["b"][0], np.ldexp(fields["b"][1], b_level))
    fields["weights"] = (fields["weights"][0], np.ldexp(fields["weights"][1], w_level))
    check(fields, nan_policy="omit")


@pytest.mark.parametrize(
    ("A", "b", "weights"),
    [
        ("float16", "float16", "float16"),
        ("float32", "float32", "float32"),
        ("float32", "float32", None),
        ("float32", "float64", "uint8"),
        ("int16", "float32", "int32"),
        ("uint8", "int64", "float32"),
        ("complex64", "complex64", "float32"),
        ("complex128", "float64", "float64"),
        ("float64", "complex128", "int16"),
    ],
)
@pytest.mark.parametrize("varying", [False, True])
def test_dtypes(A, b, weights, varying):
    rng = np.random.default_rng(3)
    layout = "A along x, weights a pixel" if varying else "weights a pixel"
    fields = system(rng, layout, 6, 2, "normal", 0.0)
    fields = {"A": typed(fields["A"], A, rng), "b": typed(fields["b"], b, rng), "weights": fields["weights"]}
    if np.dtype(b).kind in "fc":
        fields["b"] = (fields["b"][0], np.where(rng.random(fields["b"][1].shape) < 0.2, NAN, fields["b"][1]).astype(b))
    if weights is None:
        del fields["weights"]
    else:
        fields["weights"] = (fields["weights"][0], fields["weights"][1].astype(weights))
    check(fields, nan_policy="omit")


def typed(field, dtype, rng):
    dims, values = field
    if np.dtype(dtype).kind in "iu":
        return dims, np.abs(np.round(9 * values)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(values.shape)
    return dims, values.astype(dtype)


@pytest.mark.parametrize("weighted", [False, True])
def test_calendar_years_cubed(weighted):
    # Columns 1, t, t^2, t^3 with t near 2000 are alike to one part in 10^6 once they are scaled.
    rng = np.random.default_rng(4)
    t = np.arange(1990.0, 2021.0)
    fields = {
        "A": (("e", "u"), t[:, None] ** np.arange(4)),
        "b": (("e", "x"), gappy(rng, rng.standard_normal((31, 6)))),
    }
    if weighted:
        fields["weights"] = (("e", "x"), weights_of(rng, (31, 6)))
    found = check(fields, nan_policy="omit")
    assert set(found["status"].tolist()) <= {Status.OK, Status.ILL_CONDITIONED}
    assert (found["rank"] == 4).all()


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("pixels", ["few patterns", "a pattern a pixel"])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_patterns_and_many(p, pixels, weighted):
    rng = np.random.default_rng(5)
    n, count = 9, 90
    b = rng.standard_normal((n, count))
    kinds = rng.random((n, 3 if pixels == "few patterns" else count)) < 0.4
    b[kinds[:, np.arange(count) % kinds.shape[1]]] = NAN
    fields = {"A": (("e", "u"), rng.standard_normal((n, p))), "b": (("e", "x"), b)}
    if weighted:
        fields["weights"] = (("e",), rng.uniform(0.5, 2, n))
    check(fields, nan_policy="omit", panel=64)


def test_patterns_of_more_than_64_equations():
    # Patterns that agree in their first 64 equations, and in their last.
    rng = np.random.default_rng(6)
    b = rng.standard_normal((70, 12))
    for pixel in range(12):
        b[[pixel if pixel < 6 else 58 + pixel], pixel] = NAN
    b[:60, 0] = NAN
    found = check({"A": (("e", "u"), line(70)), "b": (("e", "x"), b)}, nan_policy="omit")
    assert found["n_valid"].tolist() == [10] + [69] * 11


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("height", [1e5, 1e10, 1e120])
@pytest.mark.parametrize("gone", ["gap", "weight"])
def test_a_row_that_towers_above_the_others_and_is_not_there_costs_no_digits(p, height, gone):
    # Beside it the orthonormal factor of the shared matrix holds the other rows to few digits, or to none.
    rng = np.random.default_rng(14)
    A, b = rng.standard_normal((6, p)), rng.standard_normal((6, 8))
    A[2, 0] = height
    fields = {"A": (("e", "u"), A), "b": (("e", "x"), b)}
    if gone == "gap":
        b[2, 1:] = NAN
    else:
        fields["weights"] = (("e", "x"), np.where(np.arange(6)[:, None] == 2, 1e-200, np.ones((6, 8))))
        fields["weights"][1][2, 4:] = 0
    check(fields, nan_policy="omit")


@pytest.mark.parametrize(("n", "p"), [(1, 1), (1, 4), (4, 4), (7, 1)])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_shapes_at_the_edge(n, p, layout):
    check(system(np.random.default_rng([n, p]), layout, n, p, share=0.2), nan_policy="omit")


@pytest.mark.parametrize("varying", [False, True])
def test_thirty_unknowns(varying):
    rng = np.random.default_rng(7)
    n, p, count = 45, 30, 5
    A = rng.standard_normal((count, n, p) if varying else (n, p))
    b, w = gappy(rng, rng.standard_normal((n, count)), 0.2), rng.uniform(0.1, 10, (n, count))
    fields = {"A": (("x", "e", "u") if varying else ("e", "u"), A), "b": (("e", "x"), b), "weights": (("e", "x"), w)}
    found = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL), fields)
    assert not found["status"].any()
    for pixel in range(count):
        problem = Problem.of(A[pixel] if varying else A, b[:, pixel], w[:, pixel])
        kept = problem.rows(rows_there(problem, "omit")[0])
        M, c = kept.stacked()
        x = np.linalg.lstsq(M, c)[0]
        right = Answer(
            Status.OK, len(c), p, x, float(np.linalg.norm(c - M @ x)), np.full(p, NAN), NAN, False, (np.linalg.cond(M),)
        )
        allowed = bounds(problem, "omit", right)
        # numpy's answer errs as ours may.
        assert (abs(found["solution"][:, pixel] - x) <= 2 * allowed.solution).all()
        assert abs(found["residual_norm"][pixel] - right.residual_norm) <= 2 * allowed.residual_norm
        assert found["n_valid"][pixel] == len(c)


# Weights


def test_common_factors_of_weights_change_nothing_but_the_residual():
    rng = np.random.default_rng(8)
    fields = system(rng, "weights a pixel", 6, 2, share=0.0)
    heavier = {**fields, "weights": (fields["weights"][0], 4.0 * fields["weights"][1])}
    one, other = check(fields), check(heavier)
    for name in ("solution", "stderr", "r2", "condition"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12)
    np.testing.assert_allclose(other["residual_norm"], 2 * one["residual_norm"], rtol=1e-12)


@pytest.mark.parametrize("varying", [False, True])
def test_a_weight_of_zero_a_gap_and_a_dropped_row_are_one(varying):
    rng = np.random.default_rng(9)
    fields = system(rng, "A along x" if varying else "shared A", 7, 3, share=0.0)
    b = fields["b"][1]
    gone = rng.random(b.shape) < 0.3
    gone[1] = True
    w = np.where(gone, 0.0, 1.0)
    kernel = Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL)
    weighted = {**fields, "weights": (("e", "y", "x"), w)}
    gaps = {**fields, "b": (("e", "y", "x"), np.where(gone, NAN, b))}
    kept = [0, 2, 3, 4, 5, 6]
    A_dims, A = fields["A"]
    dropped = {"A": (A_dims, A.take(kept, A_dims.index("e"))), "b": (("e", "y", "x"), gaps["b"][1][kept])}
    results = [evaluate(kernel, one) for one in (weighted, gaps, dropped)]
    for other in results[1:]:
        agree_within(kernel, gaps, results[0], other)


def test_a_row_of_little_weight_counts_nonetheless():
    # Rank and condition are those of the weighted matrix.
    fields = {
        "A": (("e", "u"), line(3)),
        "b": (("e", "x"), np.array([[1.0], [2.0], [4.0]])),
        "weights": (("e",), np.array([1.0, 1e-12, 1e-12])),
    }
    assert check(fields)["rank"] == [2]


def test_weights_along_a_dimension_of_their_own():
    rng = np.random.default_rng(10)
    fields = {
        "A": (("e", "u"), rng.standard_normal((5, 2))),
        "b": (("e", "x"), gappy(rng, rng.standard_normal((5, 3)))),
        "weights": (("z", "e"), weights_of(rng, (4, 5))),
    }
    assert check(fields, nan_policy="omit")["status"].shape == (3, 4)


def test_rcond_cuts_the_matrix_of_each_pixel():
    # The second column is all but the first once the last row is missing.
    A = np.array([[1.0, 1], [1, 1.001], [1, 1], [1, 3]])
    b = np.array([[1.0, 1.0], [2, 2], [3, 3], [4, NAN]])
    for fields in (
        {"A": (("e", "u"), A), "b": (("e", "x"), b)},
        {"A": (("x", "e", "u"), np.stack([A] * 2)), "b": (("e", "x"), b)},
    ):
        found = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit", rcond=1e-2, diagnostics=("rank",)), fields)
        assert found["rank"].tolist() == [2, 1]
        assert found["status"].tolist() == [Status.OK, Status.RANK_DEFICIENT]
        assert check(fields, nan_policy="omit")["rank"].tolist() == [2, 2]


# One bad pixel, one panel


POISONS = [("b", NAN), ("b", INF), ("weights", NAN), ("weights", -1.0), ("weights", INF), ("A", NAN), ("A", -INF)]


@pytest.mark.parametrize(("field", "value"), POISONS)
@pytest.mark.parametrize("policy", ["propagate", "omit"])
@pytest.mark.parametrize("layout", ["A along x, weights a pixel", "weights a pixel"])
def test_a_poisoned_pixel_changes_no_other(field, value, policy, layout):
    if field == "A" and layout == "weights a pixel":
        pytest.skip("a shared matrix has no pixel")
    rng = np.random.default_rng(11)
    A_dims, b_dims, w_dims = LAYOUTS[layout]
    sizes = {"e": 4, "u": 2, "y": 1, "x": 72}
    clean = {
        "A": (A_dims, rng.standard_normal([sizes[d] for d in A_dims])),
        "b": (b_dims, gappy(rng, rng.standard_normal([sizes[d] for d in b_dims]), 0.2 * (policy == "omit"))),
        "weights": (w_dims, rng.uniform(0.5, 2, [sizes[d] for d in w_dims])),
    }
    dims, values = clean[field]
    poisoned = values.copy()
    poisoned[tuple({"x": 70, "e": 1, "u": 0, "y": 0}[d] for d in dims)] = value
    kernel = Lstsq(dim="e", unknown="u", nan_policy=policy, diagnostics=ALL)
    before = evaluate(kernel, clean, panel=64)
    after = evaluate(kernel, {**clean, field: (dims, poisoned)}, panel=64)
    lost = policy == "propagate" or not np.isnan(value)
    assert (after["status"][0, 70] == Status.NON_FINITE) == lost
    others = np.delete(np.arange(72), 70)
    if policy == "propagate":
        for name, found in before.items():
            assert found[..., others].tobytes() == after[name][..., others].tobytes(), name
        return
    rest = {n: (d, v.take(others, d.index("x")) if "x" in d else v) for n, (d, v) in clean.items()}
    agree_within(kernel, rest, *({n: v[..., others] for n, v in found.items()} for found in (before, after)))


@pytest.mark.parametrize("layout", ["shared A", "weights a pixel", "A along x", "A a pixel"])
def test_neither_panels_nor_tiles_are_seen(layout):
    rng = np.random.default_rng(12)
    A_dims, b_dims, w_dims = LAYOUTS[layout]
    sizes = {"e": 5, "u": 2, "y": 3, "x": 30}
    fields = {
        "A": (A_dims, rng.standard_normal([sizes[d] for d in A_dims])),
        "b": (b_dims, gappy(rng, rng.standard_normal([sizes[d] for d in b_dims]))),
    }
    if w_dims is not None:
        fields["weights"] = (w_dims, rng.uniform(0.5, 2, [sizes[d] for d in w_dims]))
    kernel = Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL)
    whole = evaluate(kernel, fields)
    agree_within(kernel, fields, whole, evaluate(kernel, fields, panel=64))
    parts = []
    for part in (slice(0, 13), slice(13, 30)):
        cut = {n: (d, v[tuple(part if dim == "x" else slice(None) for dim in d)]) for n, (d, v) in fields.items()}
        parts.append(evaluate(kernel, cut))
    axis = list(declare(kernel, fields).tile_dims).index("x") - len(SIZES)
    joined = {name: np.concatenate([part[name] for part in parts], axis) for name in whole}
    agree_within(kernel, fields, whole, joined)


# min_valid and deficient pixels


def test_min_valid_of_each_count():
    b = np.ones((4, 5)) * [[1], [2], [4], [3]]
    b[np.arange(4)[:, None] < np.arange(5)] = NAN  # 4, 3, 2, 1 and 0 rows
    fields = {"A": (("e", "u"), line(4)), "b": (("e", "x"), b)}
    few, none = Status.TOO_FEW, Status.NO_DATA
    found = check(fields, nan_policy="omit", min_valid=3)
    assert found["status"].tolist() == [0, 0, few, few, none]
    assert found["n_valid"].tolist() == [4, 3, 2, 1, 0]
    found = check(fields, nan_policy="omit", deficient="nan")
    assert found["status"].tolist() == [0, 0, 0, Status.UNDERDETERMINED, none]
    assert np.isnan(found["solution"][:, 3:]).all()


def test_a_pixel_without_rows_is_never_zero():
    b = np.full((4, 2), NAN)
    for fields in (
        {"A": (("e", "u"), line(4)), "b": (("e", "x"), b)},
        {"A": (("e", "u"), line(4)), "b": (("e", "x"), np.ones((4, 2))), "weights": (("e",), np.zeros(4))},
    ):
        found = check(fields, nan_policy="omit")
        assert (found["status"] == Status.NO_DATA).all()
        assert np.isnan(found["solution"]).all()
        assert (found["rank"] == 0).all()
        assert (found["n_valid"] == 0).all()


# Declarations


def test_outputs_have_the_dimensions_of_weights_too_and_the_result_type_of_all():
    fields = {
        "A": spec("A", ("e", "u"), (5, 2), "float32"),
        "b": spec("b", ("y", "e"), (4, 5), "float32"),
        "weights": spec("weights", ("e", "x"), (5, 3), "float32"),
    }
    signature = Lstsq(dim="e", unknown="u", diagnostics=ALL).declare(fields)
    assert {out.name: (out.dims, out.dtype) for out in signature.outputs} == {
        "solution": (("u", "y", "x"), "float32"),
        "status": (("y", "x"), "uint8"),
        "rank": (("y", "x"), "int32"),
        "n_valid": (("y", "x"), "int32"),
        "condition": (("y", "x"), "float32"),
        "residual_norm": (("y", "x"), "float32"),
        "stderr": (("u", "y", "x"), "float32"),
        "r2": (("y", "x"), "float32"),
    }
    fields["b"] = spec("b", ("y", "e"), (4, 5), "complex64")
    dtypes = {out.name: out.dtype for out in Lstsq(dim="e", unknown="u", diagnostics=ALL).declare(fields).outputs}
    assert dtypes["solution"] == "complex64"
    assert {dtypes[name] for name in ("stderr", "r2", "residual_norm")} == {"float32"}


def test_shared_weights_of_a_shared_matrix_are_prepared_once():
    fields = {
        "A": spec("A", ("e", "u"), (5, 2)),
        "b": spec("b", ("y", "e"), (4, 5)),
        "weights": spec("weights", ("e",), (5,)),
    }
    assert Lstsq(dim="e").declare(fields).shared == {"A", "weights"}


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"nan_policy": "omitt"}, "write 'omit' instead"),
        ({"weights_kind": "absolut"}, "write 'absolute' instead"),
        ({"min_valid": 0}, r"kernel\.min_valid"),
        ({"min_valid": -1}, r"kernel\.min_valid"),
        ({"min_valid": 1.5}, r"kernel\.min_valid"),
        ({"min_valid": True}, r"kernel\.min_valid"),
        ({"diagnostics": ["n_vald"]}, "write 'n_valid' instead"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, said):
    fields = {"A": spec("A", ("e", "u"), (3, 2)), "b": spec("b", ("e",), (3,))}
    with pytest.raises(ParameterError, match=said):
        Lstsq(dim="e", **parameters).declare(fields)


def test_more_valid_rows_than_there_are_rows_cannot_be_asked_for():
    fields = {"A": spec("A", ("e", "u"), (3, 2)), "b": spec("b", ("e",), (3,))}
    Lstsq(dim="e", min_valid=3).declare(fields)
    with pytest.raises(ParameterError, match=r"kernel\.min_valid.*4.*3"):
        Lstsq(dim="e", min_valid=4).declare(fields)


def test_weights_that_cannot_be_are_refused_before_data_is_read():
    fields = {"A": spec("A", ("e", "u"), (3, 2)), "b": spec("b", ("e", "x"), (3, 4))}
    with pytest.raises(DimensionError, match="weights have no dimension 'e'"):
        Lstsq(dim="e").declare({**fields, "weights": spec("weights", ("x",), (4,))})
    with pytest.raises(DimensionError, match="weights.*u"):
        Lstsq(dim="e").declare({**fields, "weights": spec("weights", ("e", "u"), (3, 2))})
    with pytest.raises(DTypeError, match="weights.*complex"):
        Lstsq(dim="e").declare({**fields, "weights": spec("weights", ("e",), (3,), "complex64")})


@pytest.mark.parametrize("policy", ["propagate", "omit", "raise"])
@pytest.mark.parametrize("value", [-1.0, INF, NAN])
def test_shared_weights_that_cannot_be_are_refused_before_anything_is_computed(policy, value):
    w = np.array([1.0, value, 1.0])
    fields = {"A": (("e", "u"), line(3)), "b": (("e", "x"), np.ones((3, 2))), "weights": (("e",), w)}
    if policy == "omit" and np.isnan(value):
        assert (check(fields, nan_policy=policy)["n_valid"] == 2).all()
        return
    with pytest.raises(ParameterError, match=r"weights.*(at )?e 1"):
        evaluate(Lstsq(dim="e", nan_policy=policy), fields)


@pytest.mark.parametrize(("policy", "value"), [("propagate", NAN), ("raise", NAN), ("omit", INF), ("propagate", INF)])
def test_shared_matrices_that_are_not_finite_are_refused_before_anything_is_computed(policy, value):
    A = line(3)
    A[2, 1] = value
    fields = {"A": (("e", "u"), A), "b": (("e", "x"), np.ones((3, 2)))}
    with pytest.raises(ParameterError, match=rf"{value} at e 2, unknown 1"):
        evaluate(Lstsq(dim="e", nan_policy=policy), fields)


# Memory


@pytest.mark.parametrize("layout", ["shared A", "weights a pixel", "A along x, weights a pixel", "A a pixel"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("kind", ["regular", "deficient"])
def test_workspace_holds(layout, dtype, kind):
    rng = np.random.default_rng(13)
    A_dims, b_dims, w_dims = LAYOUTS[layout]
    sizes = {"e": 12, "u": 4, "y": 10, "x": 40}
    A = rng.standard_normal([sizes[d] for d in A_dims])
    if kind == "deficient":
        A = A.take([0, 1, 2, 2], A_dims.index("u"))
    fields = {
        "A": typed((A_dims, A), dtype, rng),
        "b": typed((b_dims, gappy(rng, rng.standard_normal([sizes[d] for d in b_dims]))), dtype, rng),
    }
    if w_dims is not None:
        fields["weights"] = (w_dims, weights_of(rng, tuple(sizes[d] for d in w_dims)))
    kernel = Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=ALL)
    signature = declare(kernel, fields)
    used = peaks(kernel, fields, 256)
    assert used.state <= kernel.footprint(signature).state
    assert used.prepare <= kernel.footprint(signature).peak
    bound = kernel.workspace(signature, signature.sizes, panel=256)
    assert used.compute <= bound
    # Honest, not merely large, where every pixel takes the longest way.
    assert kind == "regular" or bound <= 10 * used.compute + 2**19


def test_answers_of_the_oracle_by_hand():
    # Two measurements of one number, 1 with weight 1 and 4 with weight 2: 3, with weighted squares 4 + 2 = 6.
    right = answer(Problem.of(np.ones((2, 1)), np.array([1.0, 4.0]), np.array([1.0, 2.0])))
    assert right.solution == [3.0]
    assert abs(right.residual_norm - 6**0.5) <= 4 * U
    assert abs(right.stderr[0] - (6 / 3) ** 0.5) <= 4 * U
    assert right.r2 == 0.0


# What a hostile tester found


@pytest.mark.parametrize("where", ["b", "imaginary b", "A"])
def test_an_infinity_is_never_left_out_of_complex_numbers_with_shared_weights(where):
    A = np.repeat(np.array([[1, 0], [1, 1], [1, 2], [1, 3.0]])[:, :, None], 2, 2).astype(complex)
    b = np.array([[1, 1], [2, 2], [5, 5], [7.5, 7]]).astype(complex)
    if where == "A":
        A[1, 1, 0] = np.inf
    else:
        b[1, 0] = np.inf if where == "b" else complex(0, np.inf)
    fields = {"A": (("e", "u", "x"), A), "b": (("e", "x"), b), "weights": (("e",), [1.0, 2, 1, 1])}
    found = evaluate(Lstsq(dim="e", unknown="u", nan_policy="omit", diagnostics=("n_valid",)), fields)
    assert found["status"].tolist() == [Status.NON_FINITE, Status.OK]
    assert found["n_valid"].tolist() == [4, 4]
    kernel = Lstsq(dim="e", unknown="u", nan_policy="raise")
    assert evaluate(kernel, fields)["status"][0] == Status.NON_FINITE


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_shared_weights_of_any_size_are_those_of_pixels(size):
    """Weights of powers of two times others change residual norms alone, and no digit of the rest."""
    A, b = np.array([[1, 0], [1, 1], [1, 2], [1, 3.0]]), np.array([[1], [3], [5], [7.5]]) * 1e100 ** np.sign(1 - size)
    each, found = np.array([1.0, 2, 3, 4]), {}
    kernel = Lstsq(dim="e", diagnostics=("stderr", "r2", "residual_norm"))
    for weights in (each, each * size):
        found[weights[0]] = evaluate(kernel, {"A": (("e", "u"), A), "b": (("e", "x"), b), "weights": (("e",), weights)})
    one, other = found.values()
    assert other["status"].tolist() == [Status.OK]
    for name in ("solution", "stderr", "r2"):
        np.testing.assert_allclose(other[name], one[name], rtol=100 * U)  # sizes that are no powers of two round
    np.testing.assert_allclose(other["residual_norm"], one["residual_norm"] * np.sqrt(size), rtol=100 * U)
