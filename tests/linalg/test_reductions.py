"""Norms of blocks: against exact arithmetic for every order, and against numpy where values are not finite."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from oracles_norms import DTYPES, ORDERS, REAL, SIZES, assert_close, exact_norm, relative_bound, unit, vectors
from tilewise.linalg.norms import norm


def evaluate(x: np.ndarray, order: float, panel: int = 64) -> np.ndarray:
    out = torch.empty(x.shape[1:], dtype=getattr(torch, np.dtype(REAL[str(x.dtype)]).name))
    norm(torch.from_numpy(x), out, order, panel)
    return out.numpy()


#: The bound of a general order is one for components in the normal range: small powers tell subnormal ones apart.
CASES = [(o, s) for o, s in itertools.product(ORDERS, SIZES) if s != "subnormal" or abs(o) >= 1 or o == 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "size"), CASES)
def test_norm_is_within_its_bound_of_the_exact_one(dtype, order, size):
    for count in (1, 2, 5):
        x = vectors(dtype, size, (count, 4))
        x[0, 0] = 0
        relative = relative_bound(order, count, is_complex=dtype.startswith("complex")) * unit(REAL[dtype])
        for got, pixel in zip(evaluate(x, order), x.T, strict=True):
            assert_close(got, exact_norm(list(pixel), order), relative, REAL[dtype])


@pytest.mark.parametrize("order", [2.0, 1.0, 2.5, math.inf])
def test_long_vectors_keep_the_bound(order):
    x = vectors("float32", "unit", (700, 3))
    for got, pixel in zip(evaluate(x, order), x.T, strict=True):
        relative = relative_bound(order, 700, is_complex=False) * unit("float32")
        assert_close(got, exact_norm(list(pixel), order), relative, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [order for order in ORDERS if abs(order) < 1e300 or math.isinf(order)])
def test_nan_and_infinities_travel_as_in_numpy(dtype, order):
    special = [0.0, -0.0, 1.0, -2.0, math.nan, math.inf, -math.inf]
    if dtype.startswith("complex"):
        special = [complex(a, b) for a, b in itertools.product((0.0, 1.0, math.nan, math.inf), repeat=2)]
    pixels = [p for n in (1, 2, 3) for p in itertools.islice(itertools.product(special, repeat=n), 400)]
    for n, group in itertools.groupby(pixels, key=len):
        x = np.array(list(group), dtype=dtype).T.copy()
        with np.errstate(all="ignore"):
            expected = np.linalg.norm(x, order, axis=0)
        u = relative_bound(order, n, is_complex=True) * unit(REAL[dtype])
        np.testing.assert_allclose(evaluate(x, order), expected, rtol=2 * u)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_component_keeps_its_magnitude_to_the_bound(dtype):
    x = vectors(dtype, "mixed", (1, 1000))
    np.testing.assert_allclose(evaluate(x, 2.0), np.abs(x[0]), rtol=2.5 * unit(dtype))
    np.testing.assert_array_equal(evaluate(x, math.inf), np.abs(x[0]))
    np.testing.assert_array_equal(evaluate(x, 1.0), np.abs(x[0]))


def test_nothing_has_norm_zero():
    assert evaluate(np.empty((0, 5), np.float32), 2.0).tolist() == [0] * 5
    assert evaluate(np.empty((3, 0), np.float32), 2.0).shape == (0,)
    assert evaluate(np.empty((3, 0, 4), np.float32), 2.5).shape == (0, 4)
