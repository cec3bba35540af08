"""Norms of one vector in decimal arithmetic, the error that the float ones may have, and vectors that are hard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import torch

#: Far more digits than the tolerances ask for, and exponents without end.
EXACT = Context(prec=60, Emin=-(10**15), Emax=10**15)

ORDERS = (2.0, 1.0, 0.0, math.inf, -math.inf, 3.0, 0.5, 2.5, -1.0, -2.0, -0.3, 0.01, 7.0, 100.0, 1e300, -1e300)
DTYPES = ("float32", "float64", "complex64", "complex128")
SIZES = ("unit", "huge", "tiny", "subnormal", "mixed", "top")
REAL = {"float32": np.float32, "float64": np.float64, "complex64": np.float32, "complex128": np.float64}

Component = float | complex | Fraction | tuple[Fraction, Fraction]


def exact_norm(vector: Sequence[Component], order: float) -> Decimal:
    """Norm of finite components: sums of exact values, raised and rooted to 60 digits."""
    with localcontext(EXACT):
        sizes = [_magnitude(x) for x in vector]
        if order == 0:
            return Decimal(sum(x != 0 for x in sizes))
        dominant = max(sizes) if order > 0 else min(sizes)
        if math.isinf(order) or dominant == 0:
            return dominant
        if order == 2:
            return sum((x * x for x in sizes), Decimal(0)).sqrt()
        power = Decimal(order)
        terms = [(x / dominant) ** power for x in sizes if x != 0]
        return dominant * sum(terms, Decimal(0)) ** (1 / power)


def _magnitude(x: Component) -> Decimal:
    if isinstance(x, tuple):
        return sum((_decimal(part) ** 2 for part in x), Decimal(0)).sqrt()
    if isinstance(x, complex | np.complexfloating):
        return _magnitude((Fraction(float(x.real)), Fraction(float(x.imag))))
    return abs(_decimal(x if isinstance(x, Fraction) else Fraction(float(x))))


def _decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)


def unit(dtype: np.dtype | type | str) -> float:
    """Half of eps: the largest relative error of one rounding."""
    return float(np.finfo(dtype).eps) / 2


def relative_bound(order: float, count: int, *, is_complex: bool) -> float:
    """Bound of the relative error in units of u, as tilewise.linalg.norms derives it."""
    if order == 2:
        return count * (1 + is_complex) / 2 + 2
    magnitude = 2 * is_complex
    if order == 0:
        return 0
    if math.isinf(order):
        return magnitude
    if order == 1:
        return count - 1 + magnitude
    return 4 + (count + 9 + 2 * math.log(count)) / abs(order) + magnitude


def assert_close(got: float, exact: Decimal, relative: float, dtype: np.dtype | type | str) -> None:
    """`got` is within a relative error of `exact`; below the normal range two roundings to its grid come on top.

    Decimals of 60 digits hold no float64 exactly: 1e-50 is theirs.
    """
    info = np.finfo(dtype)
    with localcontext(EXACT):
        most = Decimal(float(info.max))
        allowed = exact * (Decimal(relative) + Decimal("1e-50")) + 2 * Decimal(float(info.smallest_subnormal))
        if math.isinf(got):
            assert exact + allowed >= most, f"{got} for {exact:.20g}"
            return
        error = abs(Decimal(float(got)) - exact)
        assert error <= allowed, f"{got!r} for {exact:.20g}: off by {error / max(exact, allowed):.3g}"


def fused() -> bool:
    """Whether torch rounds a product and its sum once on this processor."""
    eps = 2.0**-20
    one = torch.ones(64)
    return bool((torch.addcmul(-one, one + eps, one - eps) != 0).all())


def spread(size: str, real: type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Powers of two to multiply random numbers with: what squares and powers must survive."""
    info = np.finfo(real)
    low, high = {
        "unit": (0, 1),
        "huge": (info.maxexp * 2 // 3, info.maxexp * 5 // 6),
        "tiny": (info.minexp * 5 // 6, info.minexp * 2 // 3),
        "subnormal": (info.minexp - info.nmant, info.minexp + 2),
        "mixed": (info.minexp // 2, info.maxexp // 2),
        "top": (info.maxexp - 5, info.maxexp - 4),
    }[size]
    return np.ldexp(real(1), rng.integers(low, high, shape)).astype(real)


def vectors(dtype: str, size: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    real = REAL[dtype]

    def part() -> np.ndarray:
        return (rng.uniform(-1, 1, shape) * spread(size, real, shape, rng)).astype(real)

    return (part() + 1j * part()).astype(dtype) if dtype.startswith("complex") else part()
