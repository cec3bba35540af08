"""Norms of one block of pixels, for every order, safe against overflow and underflow within each pixel.

Components are accumulated one by one, in index order, by elementwise operations on padded contiguous panels, so
that the bits of a pixel depend on its own values alone: not on its neighbours, the tile, the panel or the layout.
Which pixels are scaled, and by how much, is decided for each alone.

Error of a finite result in the normal range of its dtype, relative to the exact norm of the components as they are
stored, to first order, with u half of eps and n components (2 n for the order 2 of complex ones):

- order 2: any term is rounded at most n times on its way into the sum, the root halves that and is itself within
  2 u: (n / 2 + 2) u. Squares below the normal range lose less than n u^2 of the sum, else the pixel is scaled.
- order 1: (n - 1) u; orders inf, -inf and 0: nothing.
- order p: a term (x / m)^p carries max(|p| + 2, 5) u from its quotient and `pow`, the sum (n - 1) u; order and
  root rounded to the dtype change the sum by at most log n u each. The root divides all of it by |p|; the root
  itself and the product with m are within 3 u, or 12 u where |p| <= 1/2: (4 + (n + 9 + 2 log n) / |p|) u, for
  components in the normal range.
- |x| of complex components costs 2 u more, except in order 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from tilewise.linalg.blocks import FLOAT_PANELS, MASK_PANELS, padded

#: Gives the panel of one component, not to be written to; it holds until the next one is asked for.
Component = Callable[[int], torch.Tensor]

#: Writes the norm of so many components to the block of the output, which is not padded.
Reduction = Callable[[Component, int, "Scratch", torch.Tensor], None]

#: Integer dtype, bits of the fraction and largest finite exponent field of a float.
_BITS = {torch.float32: (torch.int32, 23, 254), torch.float64: (torch.int64, 52, 2046)}

#: Orders from 0 to here are small: no power of theirs leaves the range of the dtype.
_SMALL_ORDER = 0.5


class Scratch:
    """Panels of one computation, allocated once and shaped anew for each block."""

    values: torch.Tensor
    imaginary: torch.Tensor
    total: torch.Tensor
    scale: torch.Tensor
    scaled: torch.Tensor
    large: torch.Tensor
    small: torch.Tensor
    result: torch.Tensor

    def __init__(self, pixels: int, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = {name: torch.empty(pixels, dtype=dtype, device=device) for name in FLOAT_PANELS}
        self._flat |= {name: torch.empty(pixels, dtype=torch.bool, device=device) for name in MASK_PANELS}
        self._sizes: tuple[int, ...] = ()
        info = torch.finfo(dtype)
        #: Sum of squares from which on what underflows is negligible: a square loses at most u times tiny.
        self.least_square = info.tiny / info.eps

    def fit(self, sizes: tuple[int, ...]) -> None:
        """Give every panel the shape of a block, its last axis padded; `result` is `total` without the padding."""
        if sizes == self._sizes:
            return
        self._sizes = sizes
        shape = (*sizes[:-1], padded(sizes[-1]))
        for name, flat in self._flat.items():
            setattr(self, name, flat[: math.prod(shape)].view(shape))
        self.result = self.total[..., : sizes[-1]]


def reduction(order: float) -> Reduction:
    """The function that writes the norm of this order of a block."""
    return _SPECIAL.get(order) or partial(_power, order=order)


def _store(panel: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(panel[..., : out.shape[-1]])


def _two(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    total = scratch.total
    value = component(0)
    torch.mul(value, value, out=total)
    for k in range(1, count):
        value = component(k)
        total.addcmul_(value, value)
    if not _all_plain(scratch):
        _store(_with_scaled(component, count, scratch), out)
    elif out.dtype == total.dtype and out.stride(-1) == 1:
        torch.sqrt(scratch.result, out=out)
    else:
        _store(total.sqrt_(), out)


def _all_plain(scratch: Scratch) -> bool:
    """Whether no sum of squares has overflowed or may have underflowed; one that is NaN stays NaN."""
    low, high = _bounds(scratch.total)
    if math.isnan(low):
        low, high = _bounds(torch.nan_to_num(scratch.total, nan=1.0, posinf=math.inf, out=scratch.scaled))
    return low >= scratch.least_square and high < math.inf


def _bounds(panel: torch.Tensor) -> tuple[float, float]:
    """Least and largest value, by two passes: `aminmax` takes longer for its one."""
    return panel.amin().item(), panel.amax().item()


def _with_scaled(component: Component, count: int, scratch: Scratch) -> torch.Tensor:
    """Roots of the sums of squares, from scaled components where the sum has overflowed or may have underflowed."""
    total, scaled, values = scratch.total, scratch.scaled, scratch.values
    torch.ge(total, scratch.least_square, out=scratch.large)
    torch.lt(total, math.inf, out=scratch.small)
    plain = scratch.large.logical_and_(scratch.small)
    inverse = _inverse_scale(_extreme(torch.maximum, component, count, scratch, scratch.scale))
    scaled.zero_()
    for k in range(count):
        value = torch.mul(component(k), inverse, out=values)
        scaled.addcmul_(value, value)
    scaled.sqrt_().div_(inverse)
    return torch.where(plain, total.sqrt_(), scaled, out=total)


def _inverse_scale(largest: torch.Tensor) -> torch.Tensor:
    """In place, the power of two that brings the largest magnitude near 1: exact, and finite for 0, inf and NaN."""
    integer, fraction, top = _BITS[largest.dtype]
    bits = largest.view(integer)
    bits.bitwise_and_((top + 1) << fraction).clamp_(max=(top - 1) << fraction).neg_().add_(top << fraction)
    return largest


def _extreme(
    choose: Callable[..., torch.Tensor], component: Component, count: int, scratch: Scratch, into: torch.Tensor
) -> torch.Tensor:
    """Largest or smallest magnitude of each pixel; NaN where a component is."""
    torch.abs(component(0), out=into)
    for k in range(1, count):
        choose(into, torch.abs(component(k), out=scratch.values), out=into)
    return into


def _largest(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    _store(_extreme(torch.maximum, component, count, scratch, scratch.total), out)


def _smallest(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    _store(_extreme(torch.minimum, component, count, scratch, scratch.total), out)


def _one(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    total = torch.abs(component(0), out=scratch.total)
    for k in range(1, count):
        total.add_(torch.abs(component(k), out=scratch.values))
    _store(total, out)


def _zero(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    """Components that are not zero, NaN among them."""
    total = scratch.total.zero_()
    for k in range(count):
        torch.ne(component(k), 0.0, out=scratch.large)
        total.add_(scratch.values.copy_(scratch.large))
    _store(total, out)


def _power(component: Component, count: int, scratch: Scratch, out: torch.Tensor, *, order: float) -> None:
    """Sum of terms (x / m)^p for the dominant magnitude m of the pixel, whose own term is exactly 1."""
    unit = _extreme(torch.maximum if order > 0 else torch.minimum, component, count, scratch, scratch.scale)
    info = torch.finfo(unit.dtype)
    unit.clamp_(info.smallest_normal * info.eps, info.max)  # 0 / 0 and inf / inf would be NaN
    finish = _raised_quotients if abs(order) > _SMALL_ORDER else _quotients_of_powers
    _store(finish(component, count, scratch, unit, order), out)


def _raised_quotients(
    component: Component, count: int, scratch: Scratch, unit: torch.Tensor, order: float
) -> torch.Tensor:
    """m (sum (x / m)^p)^(1/p): no power overflows, and a quotient that does or vanishes has no weight."""
    total, values = scratch.total.zero_(), scratch.values
    for k in range(count):
        torch.abs(component(k), out=values)
        total.add_(values.div_(unit).pow_(_within(order, unit.dtype)))
    return total.pow_(_within(1.0 / order, unit.dtype)).mul_(unit)


def _quotients_of_powers(
    component: Component, count: int, scratch: Scratch, unit: torch.Tensor, order: float
) -> torch.Tensor:
    """m (sum x^p / m^p)^(1/p): a small power is never out of range, but quotients that are might have weight.

    The root may be out of range although its product with m is not: it is taken in four steps.
    """
    total, values = scratch.total.zero_(), scratch.values
    divisor = torch.pow(unit, order, out=scratch.scaled)
    for k in range(count):
        torch.abs(component(k), out=values)
        total.add_(values.pow_(order).div_(divisor))
    total.pow_(_within(0.25 / order, unit.dtype))
    total.mul_(total)
    return unit.mul_(total).mul_(total)


def _within(exponent: float, dtype: torch.dtype) -> float:
    most = torch.finfo(dtype).max
    return max(-most, min(most, exponent))


_SPECIAL: dict[float, Reduction] = {2.0: _two, 1.0: _one, 0.0: _zero, math.inf: _largest, -math.inf: _smallest}
