"""Norms of tiles: bit for bit the same however they are laid out, and affine components against exact arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles_norms import DTYPES, ORDERS, REAL, SIZES, assert_close, exact_norm, fused, relative_bound, unit, vectors
from tilewise.linalg.norms import affine_norm, norm

# Bits: a pixel's result is a function of its own values, whatever lies around it and however it is laid out.


@st.composite
def laid_out(draw, shape: tuple[int, ...], *, contiguous_often: bool = True):
    """A function that copies an array into other memory: axes in any order, with gaps, from any offset."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.integers(0, 2)) if not contiguous_often or draw(st.booleans()) else 0 for _ in shape]
    steps = [draw(st.sampled_from([1, 1, 2])) for _ in shape]
    offset = draw(st.integers(0, 9))

    def place(array: torch.Tensor) -> torch.Tensor:
        sizes = [shape[axis] * steps[axis] + gaps[axis] for axis in order]
        memory = torch.full((math.prod(sizes) + offset,), 7, dtype=array.dtype)
        view = memory[offset:].view(sizes)
        view = view[tuple(slice(0, shape[axis] * steps[axis], steps[axis]) for axis in order)]
        view = view.permute([order.index(axis) for axis in range(len(shape))])
        view.copy_(array)
        return view

    return place


def bits(array: torch.Tensor) -> list[int]:
    """Bits of every value, one kind of NaN."""
    plain = torch.where(array.isnan(), torch.tensor(math.nan, dtype=array.dtype), array).contiguous()
    return plain.view(torch.int32 if array.dtype == torch.float32 else torch.int64).flatten().tolist()


def draw_values(draw, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Ordinary values, and pixels among them that overflow, vanish or are not finite."""
    seed = draw(st.integers(0, 2**32 - 1))
    x = vectors(dtype, "unit", shape, seed)
    rng = np.random.default_rng(seed)
    odd = vectors(dtype, draw(st.sampled_from(SIZES)), shape, seed + 1)
    odd = np.where(rng.random(shape) < 0.2, np.array([math.nan, math.inf, 0])[rng.integers(0, 3, shape)], odd)
    return np.where(rng.random(shape[1:]) < draw(st.sampled_from([0, 0.01, 0.3])), odd, x).astype(dtype)


shapes = st.lists(st.sampled_from([1, 2, 3, 7, 17, 64, 130]), min_size=0, max_size=3).filter(
    lambda s: math.prod(s) <= 3000
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bits_do_not_depend_on_layout_or_panel(data):
    dtype, order = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(ORDERS[:-2]))
    shape = (data.draw(st.integers(1, 6)), *data.draw(shapes))
    x = torch.from_numpy(draw_values(data.draw, dtype, shape))
    expected = torch.empty(math.prod(shape[1:]), dtype=x.real.dtype if x.is_complex() else x.dtype)
    norm(x.reshape(shape[0], -1), expected, order, 64)
    out = data.draw(laid_out(shape[1:]))(expected.view(shape[1:]) * 0)
    norm(data.draw(laid_out(shape))(x), out, order, data.draw(st.sampled_from([64, 192, 1024, 65536])))
    assert bits(out) == bits(expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bits_do_not_depend_on_the_tile(data):
    dtype, order = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(ORDERS[:-2]))
    shape = (3, *data.draw(shapes.filter(len)))
    x = torch.from_numpy(draw_values(data.draw, dtype, shape))
    real = x.real.dtype if x.is_complex() else x.dtype
    expected, out = torch.empty(shape[1:], dtype=real), torch.empty(shape[1:], dtype=real)
    norm(x, expected, order, 256)
    axis = data.draw(st.integers(0, len(shape) - 2))
    cut = data.draw(st.integers(0, shape[axis + 1]))
    for part in (slice(0, cut), slice(cut, None)):
        index = (*[slice(None)] * axis, part)
        norm(x[(slice(None), *index)], out[index], order, 256)
    assert bits(out) == bits(expected)


def test_bits_of_large_planes_do_not_depend_on_the_layout():
    x = torch.from_numpy(vectors("float32", "unit", (3, 300, 333)))
    expected = torch.empty(300, 333)
    norm(x, expected, 2.0, 65536)
    for permuted in itertools.permutations(range(3)):
        other = torch.empty([x.shape[axis] for axis in permuted]).permute([permuted.index(a) for a in range(3)])
        other.copy_(x)
        for panel in (64, 4096, 131072):
            out = torch.empty(333, 300).T
            norm(other, out, 2.0, panel)
            assert torch.equal(out, expected)


@pytest.mark.parametrize("order", ORDERS[:-2])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38, 1e-44, 0.0])
def test_a_poisoned_pixel_changes_no_other(order, poison):
    x = torch.from_numpy(vectors("float32", "unit", (3, 333)))
    clean, spoilt = torch.empty(333), torch.empty(333)
    norm(x, clean, order, 1024)
    x[:, 100] = poison
    norm(x, spoilt, order, 1024)
    rest = torch.arange(333) != 100
    assert bits(spoilt[rest]) == bits(clean[rest])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_root_does_not_depend_on_its_place(dtype):
    """The root is the one operation that writes to the output itself, where rows are not padded."""
    x = torch.from_numpy(np.random.default_rng(0).uniform(0, 100, 4096)).to(dtype)
    expected = x.sqrt()
    for start, size, offset in itertools.product(range(17), (1, 2, 3, 5, 8, 13, 31, 33, 63, 100, 1000), (0, 1, 3)):
        out = torch.empty(size + offset, dtype=dtype)[offset:]
        assert torch.equal(torch.sqrt(x[start : start + size], out=out), expected[start : start + size])
        strided = torch.empty(2 * size, dtype=dtype)[::2]
        assert torch.equal(torch.sqrt(x[start : start + size], out=strided), expected[start : start + size])
    assert torch.equal((x.round() ** 2).sqrt(), x.round()), "a square's root is exact"


def test_threads_change_no_bits_and_are_restored():
    x = torch.from_numpy(vectors("float32", "unit", (2, 100_003)))
    one, many = torch.empty(100_003), torch.empty(100_003)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        norm(x, one, 2.5, 65536)
        torch.set_num_threads(2)
        norm(x, many, 2.5, 65536)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, many)


# Affine components.

AFFINE = ((3, 4, 1), (3, 1, 5), (3, 1, 5))


def affine(p: np.ndarray, s: np.ndarray, o: np.ndarray, order: float, panel: int = 64) -> np.ndarray:
    shape = np.broadcast_shapes(p.shape[1:], s.shape[1:], o.shape[1:])
    out = torch.empty(shape, dtype=getattr(torch, np.dtype(REAL[str(np.result_type(p, s, o))]).name))
    affine_norm(*(torch.from_numpy(np.ascontiguousarray(x)) for x in (p, s, o)), out, order, panel)
    return out.numpy()


def parts(x: complex) -> tuple[Fraction, Fraction]:
    return Fraction(float(x.real)), Fraction(float(x.imag))


def exact_affine(p: np.ndarray, s: np.ndarray, o: np.ndarray) -> list[tuple[Fraction, Fraction]]:
    each = [[parts(x) for x in field] for field in (p, s, o)]
    return [(a * c - b * d + e, a * d + b * c + f) for (a, b), (c, d), (e, f) in zip(*each, strict=True)]


@pytest.mark.skipif(not fused(), reason="without fusing, components that cancel have no relative bound")
@pytest.mark.parametrize("kind", [("float32",) * 3, ("float64",) * 3, ("float32", "float64", "float32")])
@pytest.mark.parametrize("size", ["unit", "huge", "tiny"])
@pytest.mark.parametrize("order", [order for order in ORDERS if order])
def test_affine_norm_is_within_its_bound_though_components_cancel(kind, size, order):
    p, s, o = (vectors(dtype, "unit", shape, i) for i, (dtype, shape) in enumerate(zip(kind, AFFINE, strict=True)))
    dtype = np.result_type(*kind)
    factor = {"unit": 1.0, "huge": 2.0, "tiny": 0.5}[size] ** (np.finfo(dtype).maxexp * 2 // 3)
    s, o = (s * factor).astype(dtype), -(s * p[:, :1] * factor).astype(dtype)  # the first point nearly cancels
    got = affine(p, s, o, order)
    relative = (relative_bound(order, 3, is_complex=False) + 1) * unit(dtype)
    for i, j in itertools.product(range(4), range(5)):
        exact = [x for x, _ in exact_affine(p[:, i, 0], s[:, 0, j], o[:, 0, j])]
        assert_close(got[i, j], exact_norm(exact, order), relative, dtype)


@pytest.mark.parametrize("kind", [*itertools.product(("float32", "complex64"), repeat=3), ("complex128",) * 3])
@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, math.inf])
def test_affine_norm_of_any_kind_is_within_its_absolute_bound(kind, order):
    """Components are off by 4 u (|p s| + |o|) at most, and a norm of order >= 1 by no more than their norm."""
    p, s, o = (vectors(dtype, "unit", shape, i) for i, (dtype, shape) in enumerate(zip(kind, AFFINE, strict=True)))
    got = affine(p, s, o, order)
    relative = relative_bound(order, 3, is_complex="complex" in "".join(kind)) * unit(got.dtype)
    for i, j in itertools.product(range(4), range(5)):
        exact = float(exact_norm(exact_affine(p[:, i, 0], s[:, 0, j], o[:, 0, j]), order))
        error = 4 * unit(got.dtype) * np.linalg.norm(np.abs(p[:, i, 0] * s[:, 0, j]) + np.abs(o[:, 0, j]), order)
        assert abs(got[i, j] - exact) <= relative * exact + 1.01 * error


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_affine_bits_do_not_depend_on_layout_panel_or_broadcasting(data):
    real = data.draw(st.sampled_from(["float32", "float64"]))
    complexes = {"float32": "complex64", "float64": "complex128"}
    order = data.draw(st.sampled_from(ORDERS[:-2]))
    tile = tuple(data.draw(shapes))
    count = data.draw(st.integers(1, 4))
    fields, flat = [], []
    varying = [data.draw(st.sets(st.integers(0, 2), min_size=1)) for _ in tile]  # fields along each axis
    for i in range(3):
        own = [size if i in which else 1 for size, which in zip(tile, varying, strict=True)]
        dtype = data.draw(st.sampled_from([real, real, real, complexes[real]]))
        x = torch.from_numpy(draw_values(data.draw, dtype, (count, *own)))
        fields.append(data.draw(laid_out((count, *own)))(x))
        flat.append(x.expand(count, *tile).reshape(count, -1))
    expected = torch.empty(math.prod(tile), dtype=getattr(torch, real))
    affine_norm(*flat, expected, order, 64)
    out = data.draw(laid_out(tile))(torch.zeros(tile, dtype=expected.dtype))
    affine_norm(*fields, out, order, data.draw(st.sampled_from([64, 192, 1024, 65536])))
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38, 1e-44, 0.0])
@pytest.mark.parametrize("order", [2.0, 1.0, 2.5, math.inf])
def test_a_poisoned_point_changes_no_other(order, poison):
    p, s, o = (vectors("float32", "unit", shape, i) for i, shape in enumerate(((3, 9, 1), (3, 1, 70), (3, 1, 70))))
    clean = affine(p, s, o, order, 4096)
    p[:, 4] = poison
    spoilt = affine(p, s, o, order, 4096)
    np.testing.assert_array_equal(np.delete(spoilt, 4, axis=0), np.delete(clean, 4, axis=0))


def test_few_primitives_and_many_agree():
    """Few primitives are vectorised along the points, many along themselves."""
    p, s, o = (vectors("float32", "unit", shape, i) for i, shape in enumerate(((3, 500, 1), (3, 1, 90), (3, 1, 90))))
    np.testing.assert_array_equal(affine(p, s[..., :5], o[..., :5], 2.0, 1024), affine(p, s, o, 2.0, 1024)[:, :5])
