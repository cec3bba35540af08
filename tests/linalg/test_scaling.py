import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewise.linalg.scaling import column_scaled, equilibrated, euclidean_norm, exponent_of, power_of_two, scaled_by

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.integers(-1100, 1100), min_size=1))
def test_powers_of_two_are_exact_and_stay_normal(exponents):
    found = power_of_two(torch.tensor(exponents)).tolist()
    assert found == [math.ldexp(1.0, min(max(e, -1022), 1023)) for e in exponents]


@given(FINITE, st.integers(-2000, 2000))
def test_scaling_is_exact_where_the_result_is_normal(x, exponent):
    found = scaled_by(torch.tensor([x], dtype=torch.float64), torch.tensor([exponent])).item()
    try:
        expected = math.ldexp(x, exponent)
    except OverflowError:
        expected = math.copysign(math.inf, x)
    if abs(expected) >= sys.float_info.min and abs(exponent) <= 2044:
        assert found == expected
    else:
        assert abs(found) <= sys.float_info.min


@given(FINITE.filter(bool))
def test_exponent_brings_a_number_between_a_half_and_one(x):
    assert 0.5 <= math.ldexp(abs(x), -exponent_of(torch.tensor(abs(x), dtype=torch.float64)).item()) < 1


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=20))
@settings(deadline=None)
def test_norm_is_that_of_hypot_and_does_not_depend_on_neighbours(vectors):
    together = euclidean_norm(torch.tensor(vectors, dtype=torch.float64), dim=1)
    for vector, norm in zip(vectors, together.tolist(), strict=True):
        expected = math.hypot(*vector)
        # Three squares and their sum: 3 roundings under the root, 1 of the root (Higham, 3.1); hypot adds its own.
        assert norm == expected or abs(norm - expected) <= 4 * sys.float_info.epsilon * expected + 5e-324
        assert euclidean_norm(torch.tensor([vector], dtype=torch.float64), dim=1).item() == norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128])
def test_norms_of_other_dtypes_neither_overflow_nor_vanish(dtype):
    largest, smallest = torch.finfo(dtype).max / 4, torch.finfo(dtype).tiny
    x = torch.tensor([[largest, largest], [smallest, smallest], [0, 0]], dtype=dtype)
    norm = euclidean_norm(x, dim=1)
    assert norm.dtype == x.real.dtype
    np.testing.assert_allclose(norm, [largest * math.sqrt(2), smallest * math.sqrt(2), 0], rtol=1e-6, atol=0)


def test_norm_of_what_is_not_finite_is_not_finite():
    x = torch.tensor([[1.0, torch.nan], [1.0, -torch.inf], [3.0, 4.0]], dtype=torch.float64)
    found = euclidean_norm(x, dim=1)
    assert not found[:2].isfinite().any()
    assert found[2] == 5


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(-500, 500), min_size=4, max_size=4))
def test_columns_and_rows_are_brought_into_range_without_rounding(seed, exponents):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((4, 4, 1)) * np.ldexp(1.0, exponents)[:, None, None]
    A = A * np.ldexp(1.0, rng.permutation(exponents))[None, :, None]
    scaled, exponent = (x.numpy() for x in column_scaled(torch.from_numpy(A)))
    np.testing.assert_array_equal(np.ldexp(scaled, exponent), A)
    norm = np.linalg.norm(scaled, axis=0)
    assert ((norm >= 0.5 * (1 - 1e-15)) & (norm <= 1)).all()
    S, row, column = (x.numpy() for x in equilibrated(torch.from_numpy(A)))
    np.testing.assert_array_equal(np.ldexp(S, row[:, None] + column), A)
    largest = abs(S).max(0)
    assert ((largest >= 0.5) & (largest < 1)).all()
    assert abs(S).max() < 1
