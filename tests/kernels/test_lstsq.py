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
from oracles_systems import U, exact_least_squares, least_squares_bound
from shared_data import shared
from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec, Status
from tilewise.kernels.lstsq import Lstsq

U32 = 2.0**-24
ALL = ("rank", "residual_norm")
RNG = np.random.default_rng(7)


def between_tilings(A, b):
    """Twice what each may differ from the exact product: gamma_n |P||b| for a shared A (Higham, 3.5), n + 2 for slack.

    A residual then moves by |A| times that, and by the rounding of its own sums.
    """
    P = np.linalg.pinv(A)
    moved = 2 * (A.shape[0] + 2) * U * np.einsum("pn,n...->p...", abs(P), abs(b))
    rounding = (
        2
        * (sum(A.shape) + 2)
        * U
        * (abs(b) + np.einsum("np,p...->n...", abs(A), np.einsum("pn,n...->p...", abs(P), abs(b))))
    )
    residual = np.linalg.norm(np.einsum("np,p...->n...", abs(A), moved) + rounding, axis=0)
    return lambda name, outputs: {"solution": moved, "residual_norm": residual}.get(name, 0.0)


def between_batches(A, b):
    """Twice what a stable solver may err, pixel by pixel: factors depend on their place in a batch by rounding."""
    bound = np.empty((A.shape[-1], *b.shape[1:]))
    for y, x in np.ndindex(b.shape[1:]):
        solution = np.linalg.lstsq(A[x], b[:, y, x])[0]
        bound[:, y, x] = 2 * least_squares_bound(A[x], b[:, y, x], solution, A.shape[-1])
    return lambda name, outputs: bound if name == "solution" else 0.0


SHARED_A, SHARED_B = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 6, 7))
VARYING_A, VARYING_B = RNG.standard_normal((7, 4, 2)), RNG.standard_normal((4, 6, 7))
EXAMPLES = [
    Example(
        Lstsq(dim="date", diagnostics=ALL),
        {"A": (("date", "term"), SHARED_A), "b": (("date", "y", "x"), SHARED_B)},
        between_tilings(SHARED_A, SHARED_B),
    ),
    Example(
        Lstsq(dim="date", unknown="term"),
        {"A": (("x", "date", "term"), VARYING_A), "b": (("date", "y", "x"), VARYING_B)},
        between_batches(VARYING_A, VARYING_B),
    ),
]


def lstsq(A, b, A_dims=("e", "u"), b_dims=("e", "x"), panel=None, dtype=None, **parameters):
    kernel = Lstsq(dim="e", unknown="u", **parameters)
    return evaluate(kernel, {"A": (A_dims, A), "b": (b_dims, b)}, panel=panel, dtype=dtype)


def spec(name, dims, shape, dtype="float64"):
    return FieldSpec(name, dims, shape, dtype)


# Declarations


def test_outputs_are_the_unknowns_then_the_tile_dimensions_of_b_then_of_the_matrix():
    fields = {
        "A": spec("A", ("scene", "x", "date", "term"), (2, 5, 9, 3), "float32"),
        "b": spec("b", ("y", "date", "x"), (4, 9, 5), "float32"),
    }
    signature = Lstsq(dim="date", unknown="term", diagnostics=list(ALL)).declare(fields)
    assert {out.name: (out.dims, out.dtype) for out in signature.outputs} == {
        "solution": (("term", "y", "x", "scene"), "float32"),
        "status": (("y", "x", "scene"), "uint8"),
        "rank": (("y", "x", "scene"), "int32"),
        "residual_norm": (("y", "x", "scene"), "float32"),
    }
    assert signature.shared == frozenset()
    status = signature.outputs[1]
    assert status.fill == Status.NOT_COMPUTED
    meanings = str(status.attrs["flag_meanings"]).split()
    assert dict(zip(status.attrs["flag_values"], meanings, strict=True)) == {int(s): s.meaning for s in Status}
    assert all(type(value) is int for value in status.attrs["flag_values"])


@pytest.mark.parametrize(
    ("A", "b", "solution", "residual"),
    [
        ("float16", "float16", "float16", "float16"),
        ("int16", "uint8", "float64", "float64"),
        ("float64", "complex64", "complex128", "float64"),
        ("complex64", "float32", "complex64", "float32"),
    ],
)
def test_dtypes(A, b, solution, residual):
    fields = {"A": spec("A", ("e", "u"), (3, 2), A), "b": spec("b", ("e",), (3,), b)}
    outputs = Lstsq(dim="e", diagnostics=("residual_norm",)).declare(fields).outputs
    assert [out.dtype for out in outputs] == [solution, "uint8", residual]


@pytest.mark.parametrize(
    ("A", "b", "unknown", "said"),
    [
        (("e", "u", "v"), ("e",), None, r"not clear.*u, v.*kernel\.unknown to 'u' or 'v'"),
        (("e", "x"), ("e", "x"), None, "there is none"),
        (("e", "u"), ("e", "x"), "x", "'x' cannot be the unknown"),
        (("e", "u"), ("e", "u"), "u", "'u' cannot be the unknown"),
        (("e", "u"), ("e",), "e", "'e' cannot be the unknown"),
        (("f", "u"), ("e",), None, "A has no dimension 'e'"),
        (("e", "u"), ("f",), None, "b has no dimension 'e'"),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(A, b, unknown, said):
    fields = {"A": spec("A", A, (3,) * len(A)), "b": spec("b", b, (3,) * len(b))}
    with pytest.raises(DimensionError, match=said):
        Lstsq(dim="e", unknown=unknown).declare(fields)


def test_empty_systems_are_refused():
    with pytest.raises(DimensionError, match="no values along 'u'"):
        Lstsq(dim="e").declare({"A": spec("A", ("e", "u"), (3, 0)), "b": spec("b", ("e",), (3,))})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"diagnostics": ["ranks"]}, "write 'rank' instead"),
        ({"precision": "float16"}, "kernel.precision.*auto, float32, float64"),
        ({"deficient": "minnorm"}, "write 'min_norm' instead"),
        ({"rcond": 1.0}, "kernel.rcond"),
        ({"rcond": float("nan")}, "kernel.rcond"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, said):
    with pytest.raises(ParameterError, match=said):
        Lstsq(dim="e", **parameters)


# Answers


@given(
    st.integers(0, 2**32 - 1),
    st.sets(st.sampled_from("yxs")),
    st.sets(st.sampled_from("yxs")),
    st.sampled_from(["float64", "float32", "float16", "int16", "complex64", "complex128"]),
    st.sampled_from([None, 64]),
    st.integers(1, 4),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_pixel_is_the_exact_one_however_matrix_and_data_vary(seed, of_A, of_b, dtype, panel, n, p):
    rng = np.random.default_rng(seed)
    sizes = {"e": n, "u": p, "y": 2, "x": 3, "s": 2}
    A_dims, b_dims = rng.permutation(["e", "u", *sorted(of_A)]), rng.permutation(["e", *sorted(of_b)])
    A = random(rng, [sizes[dim] for dim in A_dims], dtype)
    b = random(rng, [sizes[dim] for dim in b_dims], dtype)
    found = lstsq(A, b, tuple(A_dims), tuple(b_dims), panel, diagnostics=ALL)
    tile = [dim for dim in b_dims if dim != "e"] + [dim for dim in A_dims if dim not in {"e", "u", *b_dims}]
    for pixel in product(*(range(sizes[dim]) for dim in tile)):
        at = dict(zip(tile, pixel, strict=True))
        check_pixel(found, pixel, select(A, A_dims, at, "eu"), select(b, b_dims, at, "e"))


def random(rng, shape, dtype):
    if dtype == "int16":
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
    n, p = A.shape
    ours = found["solution"][(slice(None), *pixel)]
    # The product may be in float32 (n sums, 2 roundings more), and the result is rounded to its dtype; float16 holds
    # nothing between its subnormals either.
    narrow = np.finfo(ours.dtype)
    unit = U if narrow.eps < U32 else U32
    pinv = abs(np.linalg.pinv(A, rcond=1e-10))
    bound = least_squares_bound(A, b, x, rank) + 2 * (n + 2) * unit * pinv @ abs(b)
    bound = bound + narrow.eps * (abs(x) + bound) + float(narrow.smallest_subnormal)
    assert (abs(ours.astype(complex) - x) <= bound).all()
    assert found["rank"][pixel] == rank
    assert found["status"][pixel] == expected_status(n, p, rank)
    # ||b - A x^|| against ||b - A x||: the error of x passes through A, and the sums round in their turn.
    passed = abs(A) @ bound + (p + 2) * unit * (abs(b) + abs(A) @ (abs(x) + bound))
    slack = np.linalg.norm(passed)
    norm = np.linalg.norm(b - A @ x)
    assert abs(found["residual_norm"][pixel] - norm) <= slack + (n + 2) * narrow.eps * (norm + slack) + float(
        narrow.smallest_subnormal
    )


def expected_status(n, p, rank):
    if n < p:
        return Status.UNDERDETERMINED
    return Status.OK if rank == p else Status.RANK_DEFICIENT


def test_reported_cases():
    cases = {case["id"]: case for case in json.loads((shared("cases") / "reported_inputs.json").read_text())["cases"]}
    case = cases["singular-3x3"]
    found = lstsq(np.array(case["inputs"]["A"]), np.array(case["inputs"]["b"]), b_dims=("e",), diagnostics=("rank",))
    np.testing.assert_allclose(found["solution"], case["expect"]["solution"], rtol=1e-12, atol=1e-12)
    assert (found["rank"], found["status"]) == (case["expect"]["rank"], Status.RANK_DEFICIENT)

    case = cases["fcls-nnls-ucls"]
    found = lstsq(np.array(case["inputs"]["A"]), np.array(case["inputs"]["b"]), b_dims=("e",))
    np.testing.assert_allclose(found["solution"], case["expect"]["lstsq"], rtol=1e-12)

    case = cases["rank-by-neighbour"]
    A = np.stack([np.eye(3), np.eye(3, k=1)])
    found = lstsq(A, np.ones((3, 2)), ("x", "e", "u"), diagnostics=("rank",))
    assert found["rank"].tolist() == case["expect"]["rank"]


def test_a_million_pixels_of_one_small_matrix():
    # pytorch/pytorch#97211: more pixels than vendors' batch limits.
    A = np.random.default_rng(0).standard_normal((3, 2))
    b = np.random.default_rng(1).standard_normal((3, 1048576))
    found = lstsq(A, b)
    np.testing.assert_allclose(found["solution"], np.linalg.pinv(A) @ b, rtol=0, atol=1e-12)
    assert not found["status"].any()


@pytest.mark.parametrize(("name", "tolerance"), [("Norris", 1e-11), ("Pontius", 1e-10)])
def test_certified_coefficients_of_nist(name, tolerance):
    case = json.loads((shared("data/nist_strd") / f"{name}.json").read_text())
    A, y = np.array(case["design_float64"]), np.array(case["y"])
    for found in (
        lstsq(A, y[:, None]),
        lstsq(A[None], y[:, None], ("x", "e", "u")),
        lstsq(A, np.repeat(y[:, None], 3, 1)),
    ):
        np.testing.assert_allclose(found["solution"][:, 0], case["certified"]["coef"], rtol=tolerance)


def test_diffusion_tensors_of_dipy():
    case = np.load(shared("data/dmri_dipy_small64") / "case.npz")
    found = lstsq(case["design"], case["log_signal"], b_dims=("x", "y", "z", "e"))
    np.testing.assert_allclose(np.moveaxis(found["solution"], 0, -1), case["dipy_ols"], rtol=0, atol=1e-11)
    # Weighted, as a matrix of each voxel's own.
    w = case["wls_weights_sqrt"]
    found = lstsq(
        w[..., None] * case["design"], w * case["log_signal"], ("x", "y", "z", "e", "u"), ("x", "y", "z", "e")
    )
    np.testing.assert_allclose(np.moveaxis(found["solution"], 0, -1), case["dipy_wls"], rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("folder", "scene", "members", "name"),
    [
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M"),
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M1"),
        ("unmix_jasper", "jasperRidge2_R198.mat", "end4.mat", "M"),
    ],
)
def test_unmixing_of_published_scenes(folder, scene, members, name):
    scipy_io = pytest.importorskip("scipy.io")
    where = shared(f"data/{folder}")
    Y, M = scipy_io.loadmat(where / scene)["Y"], scipy_io.loadmat(where / members)[name]
    found = lstsq(M, Y)["solution"]
    # Counts arrive as the uint16 that they are; reflectances are counts / 5000.
    found = found / 5000 if Y.dtype == np.uint16 else found
    np.testing.assert_allclose(found, np.load(where / "expected.npz")[f"OLS_{name}"], rtol=0, atol=1e-10)


# One bad pixel


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("varying", [False, True])
def test_a_poisoned_right_hand_side_changes_no_other_pixel(value, varying):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((200, 5, 3) if varying else (5, 3)) / 1e3
    A_dims = ("x", "e", "u") if varying else ("e", "u")
    b = rng.standard_normal((5, 200))
    before = lstsq(A, b, A_dims, panel=64, diagnostics=ALL)
    b[:, 70] = value  # 1e308 overflows in the solution
    after = lstsq(A, b, A_dims, panel=64, diagnostics=ALL)
    assert after["status"][70] == Status.NON_FINITE
    assert np.isnan(after["solution"][:, 70]).all()
    assert np.isnan(after["residual_norm"][70])
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 70, -1), np.delete(after[name], 70, -1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_poisoned_matrix_changes_no_other_pixel(value):
    rng = np.random.default_rng(4)
    A, b = rng.standard_normal((90, 5, 3)), rng.standard_normal((5, 4, 90))
    before = lstsq(A, b, ("x", "e", "u"), ("e", "y", "x"), panel=64, diagnostics=ALL)
    A[33, 2, 1] = value
    after = lstsq(A, b, ("x", "e", "u"), ("e", "y", "x"), panel=64, diagnostics=ALL)
    assert (after["status"][:, 33] == Status.NON_FINITE).all()
    assert np.isnan(after["solution"][..., 33]).all()
    assert (after["rank"][:, 33] == -1).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], 33, -1), np.delete(after[name], 33, -1))


@pytest.mark.parametrize("dtype", [float, complex])
def test_bits_do_not_depend_on_a_deficient_neighbour(dtype):
    rng = np.random.default_rng(5)
    A, b = random(rng, (70, 7, 5), np.dtype(dtype).name), random(rng, (7, 70), np.dtype(dtype).name)
    A[[3, 20], :, 0] = A[[3, 20], :, 1]
    before = lstsq(A, b, ("x", "e", "u"), diagnostics=ALL)
    changed = [0, 7, 11, 19, 36]
    A[changed, :, 2] = A[changed, :, 3]
    after = lstsq(A, b, ("x", "e", "u"), diagnostics=ALL)
    assert (after["status"][[3, 20, *changed]] == Status.RANK_DEFICIENT).all()
    for name in before:
        np.testing.assert_array_equal(np.delete(before[name], changed, -1), np.delete(after[name], changed, -1))


def test_a_value_that_the_output_cannot_hold_is_non_finite():
    found = lstsq(np.eye(2), np.array([[1e300, 1.0], [1, 2]]), dtype="float32")
    assert found["status"].tolist() == [Status.NON_FINITE, Status.OK]
    np.testing.assert_array_equal(found["solution"], np.array([[np.nan, 1], [np.nan, 2]], np.float32))


def test_huge_values_whose_sum_overflows_are_kept():
    b = np.array([[1.5e308, -1.0], [1.5e308, 1.0]])
    found = lstsq(np.eye(2), b)
    np.testing.assert_array_equal(found["solution"], b)
    assert not found["status"].any()


def test_a_shared_matrix_that_is_not_finite_is_refused_before_anything_is_computed():
    A = np.ones((3, 2))
    A[2, 1] = np.nan
    with pytest.raises(ParameterError, match="nan at e 2, unknown 1"):
        lstsq(A, np.ones((3, 4)))


# Rank, condition and scale


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(-498, 498), min_size=3, max_size=3), st.integers(-490, 490))
@settings(max_examples=40, deadline=None)
def test_columns_in_any_units_have_the_same_rank_and_the_answer_in_those_units(seed, units, level):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((5, 3)), rng.standard_normal((5, 4))
    plain, scaled = (
        lstsq(A, b, diagnostics=("rank",)),
        lstsq(A * np.ldexp(1.0, units), np.ldexp(b, level), diagnostics=("rank",)),
    )
    # Scales by powers of two are exact, and so is undoing them: every bit is the same.
    undone = np.ldexp(scaled["solution"], np.array(units)[:, None] - level)
    np.testing.assert_array_equal(undone, plain["solution"])
    np.testing.assert_array_equal(scaled["status"], plain["status"])


@pytest.mark.parametrize(("deficient", "kept"), [("min_norm", True), ("nan", False)])
@pytest.mark.parametrize("varying", [False, True])
def test_deficient_pixels_keep_their_solution_or_not_and_are_flagged_either_way(deficient, kept, varying):
    A = np.array([[1.0, 1], [1, 1], [1, 1]])
    A, A_dims = (np.stack([A] * 4), ("x", "e", "u")) if varying else (A, ("e", "u"))
    b = np.ones((3, 4))
    b[0, 2] = np.nan
    found = lstsq(A, b, A_dims, deficient=deficient, diagnostics=ALL)
    assert found["status"].tolist() == [2, 2, 7, 2]
    good = [0, 1, 3]
    assert np.isnan(found["solution"][:, 2]).all()
    assert np.isnan(found["solution"][:, good]).all() != kept
    assert np.isnan(found["residual_norm"][good]).all() != kept
    if kept:
        np.testing.assert_allclose(found["solution"][:, good], 0.5, rtol=8 * U)


def test_underdetermined_pixels_are_lost_too_where_deficient_ones_are():
    found = lstsq(np.array([[3.0, 4]]), np.array([[25.0]]), deficient="nan")
    assert found["status"].tolist() == [Status.UNDERDETERMINED]
    assert np.isnan(found["solution"]).all()


def test_rcond_decides_what_is_zero():
    A = np.array([[1.0, 1], [1, 1.001], [1, 1]])
    for rcond, status in [(None, Status.OK), (1e-2, Status.RANK_DEFICIENT)]:
        for matrix, dims in [(A, ("e", "u")), (A[None], ("x", "e", "u"))]:
            assert lstsq(matrix, np.ones((3, 1)), dims, rcond=rcond)["status"].tolist() == [status]


def test_ill_conditioned_pixels_keep_their_value_and_say_so():
    A = np.array([[1.0, 1], [1, 1 + 2**-30], [1, 1 - 2**-30]])
    b = A @ np.array([[1.0], [2]])
    for matrix, dims in [(A, ("e", "u")), (A[None], ("x", "e", "u"))]:
        found = lstsq(matrix, b, dims, diagnostics=("rank",))
        assert (found["status"].tolist(), found["rank"].tolist()) == ([Status.ILL_CONDITIONED], [2])
        x, rank = exact_least_squares(A, b[:, 0])
        assert (abs(found["solution"][:, 0] - x) <= least_squares_bound(A, b[:, 0], x, rank)).all()


# Precision


def float32_system(closeness):
    rng = np.random.default_rng(6)
    A = rng.standard_normal((20, 3))
    A[:, 2] = A[:, 1] + closeness * A[:, 2]
    return A.astype(np.float32), rng.standard_normal((20, 50)).astype(np.float32)


def float64_product(A, b):
    return np.linalg.pinv(A.astype(float)) @ b.astype(float)


def rounded_once(found, exact, A, b):
    """Whether a float32 result is a float64 product rounded, to the error of the latter."""
    product = 2 * (len(A) + 2) * U * abs(np.linalg.pinv(A.astype(float))) @ abs(b.astype(float)) * 1e3
    return (abs(found - exact) <= U32 * abs(exact) + product).all()


@pytest.mark.parametrize(
    ("precision", "closeness", "single"),
    [
        ("auto", 1.0, True),
        ("auto", 1e-3, False),  # cond about 2e3: beyond 1e-5 2^24
        ("float32", 1e-3, True),
        ("float64", 1.0, False),
    ],
)
def test_precision_of_a_shared_product(precision, closeness, single):
    A, b = float32_system(closeness)
    found = lstsq(A, b, precision=precision)["solution"]
    exact = float64_product(A, b)
    assert rounded_once(found, exact, A, b) != single
    bound = 2 * (len(A) + 2) * U32 * abs(np.linalg.pinv(A.astype(float))) @ abs(b)
    assert (abs(found - exact) <= bound).all()


@pytest.mark.parametrize(("A", "b"), [("float32", "float64"), ("float64", "float32"), ("int16", "float32")])
def test_auto_is_double_unless_both_inputs_are_single(A, b):
    matrix = np.round(float32_system(1.0)[0] * 8)
    values = float32_system(1.0)[1]
    found = lstsq(matrix.astype(A), values.astype(b))["solution"]
    assert rounded_once(found, float64_product(matrix, values), matrix, values)


def test_float32_that_cannot_hold_the_pseudo_inverse_is_refused_and_auto_does_without():
    A, b = np.array([[2.0**-130], [0]], np.float32), np.array([[2.0**-130], [0]], np.float32)
    np.testing.assert_array_equal(lstsq(A, b)["solution"], [[1]])
    with pytest.raises(ParameterError, match=r"kernel\.precision float32 cannot hold"):
        lstsq(A, b, precision="float32")


# Memory

SHAPES = [((50, 10), "float64"), ((10, 50), "float32"), ((30, 30), "complex128")]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("graded", [False, True])
def test_footprint_and_workspace_of_a_shared_matrix_hold(shape, dtype, graded):
    rng = np.random.default_rng(8)
    A, b = random(rng, shape, dtype), random(rng, (shape[0], 1000), dtype)
    if graded:
        A[:, 0] = A[:, 1]
        A *= np.logspace(-6, 6, shape[1]).astype(A.real.dtype)
    b[0, 3], b[:, 5] = np.nan, 1e30
    hold({"A": (("e", "u"), A), "b": (("e", "x"), b)}, 256)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("rhs", [1, 9])
def test_workspace_of_matrices_of_each_pixel_holds(shape, dtype, rhs):
    rng = np.random.default_rng(9)
    A, b = random(rng, (64, *shape), dtype), random(rng, (shape[0], 64, rhs), dtype)
    A[::2, :, 0] = A[::2, :, 1]
    A[1::2] *= np.logspace(-6, 6, shape[1]).astype(A.real.dtype)
    hold({"A": (("x", "e", "u"), A), "b": (("e", "x", "k"), b)}, 64)


def hold(fields, panel):
    kernel = Lstsq(dim="e", unknown="u", diagnostics=ALL)
    signature = declare(kernel, fields)
    used = peaks(kernel, fields, panel)
    assert used.state <= kernel.footprint(signature).state
    assert used.prepare <= kernel.footprint(signature).peak
    assert used.compute <= kernel.workspace(signature, signature.sizes, panel=panel)
    # Honest, not merely large.
    assert kernel.workspace(signature, signature.sizes, panel=panel) <= 8 * used.compute + 2**19
