"""Norms of the vector at each pixel, for every order, safe against overflow and underflow within the pixel.

Components are accumulated one by one, in index order, by elementwise operations on padded contiguous panels, so
that the bits of a pixel depend on its own values alone: not on its neighbours, the tile, the panel or the layout.
Which pixels are scaled, and by how much, is decided for each alone.

Error of a finite result in the normal range of its dtype, relative to the exact norm of the components as they are
stored, to first order, with u half of eps and n components (2 n for the order 2 of complex ones):

- order 2: any term is rounded at most n times on its way into the sum, the root halves that and is itself within
  2 u: (n / 2 + 2) u. Squares below the normal range lose less than n u^2 of the sum, else the pixel is scaled.
- order 1: (n - 1) u; orders inf, -inf and 0: nothing.
- order p: a term (x / m)^p carries max(|p| + 2, 5) u from its quotient and `pow`, the sum (n - 1) u; order and
  root rounded to the dtype change the sum by at most log n u each. The root divides all of it by |p|, and is itself
  within 2 u, the product with m within u: (4 + (n + 4 + 2 log n) / |p|) u.
- |x| of complex components costs 2 u more, except in order 2.
- an affine component p s + o is itself within u of the exact one where `addcmul` is fused (every CPU with FMA),
  and else, or where it is complex, within 4 u (|p s| + |o|).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from tilewise.linalg.blocks import (
    FLOAT_PANELS,
    GATHER,
    MASK_PANELS,
    block_shape,
    blocks,
    box_shape,
    padded,
    vector_axis,
)
from tilewise.linalg.components import Field, fields_of
from tilewise.linalg.layout import merge_tile_axes, one_thread

#: Gives the panel of one component, not to be written to; it holds until the next one is asked for.
Component = Callable[[int], torch.Tensor]

#: Integer dtype, bits of the fraction and largest finite exponent field of a float.
_BITS = {torch.float32: (torch.int32, 23, 254), torch.float64: (torch.int64, 52, 2046)}

#: Fewest pixels of a block of gathered components: below, the calls cost more than the cache lines read twice.
_GATHERED = 4096


class Scratch:
    """Panels of one computation, allocated once and shaped anew for each block."""

    values: torch.Tensor
    imaginary: torch.Tensor
    total: torch.Tensor
    scale: torch.Tensor
    scaled: torch.Tensor
    large: torch.Tensor
    small: torch.Tensor

    def __init__(self, pixels: int, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = {name: torch.empty(pixels, dtype=dtype, device=device) for name in FLOAT_PANELS}
        self._flat |= {name: torch.empty(pixels, dtype=torch.bool, device=device) for name in MASK_PANELS}
        self._shape: tuple[int, ...] = ()

    def shape(self, shape: tuple[int, ...]) -> None:
        """Give every panel this shape."""
        if shape != self._shape:
            self._shape = shape
            for name, flat in self._flat.items():
                setattr(self, name, flat[: math.prod(shape)].view(shape))


def norm(x: torch.Tensor, out: torch.Tensor, order: float, panel: int) -> None:
    """Norm of each pixel of x (n, *tile) into out (*tile), `panel` pixels at a time.

    x is float32, float64 or complex; out has any floating dtype.

    >>> out = torch.empty(2)
    >>> norm(torch.tensor([[3e30, 3.0], [4e30, -4.0]]), out, 2.0, 64)
    >>> out
    tensor([5.0000e+30, 5.0000e+00])
    """
    _fill(out, [x], (1.0,), order, panel)


def affine_norm(
    points: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor, out: torch.Tensor, order: float, panel: int
) -> None:
    """Norm of points * scale + offset, each (n, *tile) with size 1 where it does not vary, into out (*tile).

    >>> out = torch.empty(1, 2)
    >>> points, scale = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[2.0, 1.0]], [[2.0, 1.0]]])
    >>> affine_norm(points, scale, torch.tensor([[[1.0, 2.0]], [[0.0, 2.0]]]), out, 2.0, 64)
    >>> out
    tensor([[5., 5.]])
    """
    _fill(out, [points, scale, offset], (0.0, 0.0, 1.0), order, panel)


def _fill(out: torch.Tensor, inputs: Sequence[torch.Tensor], pads: Sequence[float], order: float, panel: int) -> None:
    if inputs[0].shape[0] == 0:
        out.zero_()
        return
    with one_thread(), torch.inference_mode():
        _fill_blocks(out, inputs, pads, order, padded(panel))


def _fill_blocks(
    out: torch.Tensor, inputs: Sequence[torch.Tensor], pads: Sequence[float], order: float, panel: int
) -> None:
    out, parts = _arranged(out, [part for x in inputs for part in _real_parts(x)])
    if out.numel() == 0:
        return
    panel = _block_pixels(parts, out, panel)
    block = block_shape(out.shape, panel)
    dtype = _real_dtype(inputs)
    scratch = Scratch(math.prod(block), dtype, out.device)
    fields = fields_of(parts, [x.is_complex() for x in inputs], block, dtype, panel=panel, pads=pads)
    component, count = _components(fields, inputs[0].shape[0], order, scratch)
    reduce = _REDUCTIONS.get(order, partial(_power, order=order))
    for box in blocks(out.shape, panel):
        sizes = box_shape(box)
        scratch.shape((*sizes[:-1], padded(sizes[-1])))
        for field in fields:
            field.move(box)
        reduce(component, count, scratch, out[box])


def _real_parts(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.view_as_real(x).unbind(-1) if x.is_complex() else (x,)


def _real_dtype(inputs: Sequence[torch.Tensor]) -> torch.dtype:
    dtype = inputs[0].dtype
    for x in inputs[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype.to_real()


def _arranged(out: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The views with as few tile axes as their strides allow, at least one, and the axis of the panels last."""
    views = {"out": out} | {str(i): part for i, part in enumerate(parts)}
    if out.dim() == 0:
        views = {name: view.unsqueeze(-1) for name, view in views.items()}
    core = {name: int(name != "out") for name in views}
    views = merge_tile_axes(views, core)
    axis = vector_axis(views["out"].shape)
    first, *rest = (view.movedim(core[name] + axis, -1) for name, view in views.items())
    return first, rest


def _block_pixels(parts: Sequence[torch.Tensor], out: torch.Tensor, panel: int) -> int:
    """Pixels of a block: fewer where components lie side by side, so that a gather takes whole cache lines."""
    by_pixel = any(part.shape[1:] == out.shape and part.stride(-1) != 1 for part in parts)
    if not by_pixel:
        return panel
    return min(panel, max(_GATHERED, padded(GATHER * panel // parts[0].shape[0])))


def _components(fields: Sequence[Field], count: int, order: float, scratch: Scratch) -> tuple[Component, int]:
    """Real components whose norm is wanted: for complex ones their parts in order 2, else their magnitudes."""
    real, imaginary = _parts(fields, scratch)
    if not any(field.is_complex for field in fields):
        return real, count
    if order == 2.0:
        return (lambda k: imaginary(k // 2) if k % 2 else real(k // 2)), 2 * count
    return (lambda k: torch.hypot(real(k), imaginary(k), out=scratch.values)), count


def _parts(fields: Sequence[Field], scratch: Scratch) -> tuple[Component, Component]:
    if len(fields) == 1:
        return fields[0].real, fields[0].imaginary
    p, s, o = fields

    def real(k: int) -> torch.Tensor:
        value = torch.addcmul(o.real(k), p.real(k), s.real(k), out=scratch.values)
        if p.is_complex and s.is_complex:
            value.addcmul_(p.imaginary(k), s.imaginary(k), value=-1.0)
        return value

    def imaginary(k: int) -> torch.Tensor:
        value = scratch.imaginary.copy_(o.imaginary(k)) if o.is_complex else scratch.imaginary.zero_()
        if p.is_complex:
            value.addcmul_(p.imaginary(k), s.real(k))
        if s.is_complex:
            value.addcmul_(p.real(k), s.imaginary(k))
        return value

    return real, imaginary


def _store(panel: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(panel[..., : out.shape[-1]])


def _two(component: Component, count: int, scratch: Scratch, out: torch.Tensor) -> None:
    total = scratch.total
    value = component(0)
    torch.mul(value, value, out=total)
    for k in range(1, count):
        value = component(k)
        total.addcmul_(value, value)
    low, high = (bound.item() for bound in torch.aminmax(total))
    if not (low >= _least_square(total.dtype) and high < math.inf):
        _store(_with_scaled(component, count, scratch), out)
    elif out.dtype == total.dtype:
        torch.sqrt(total[..., : out.shape[-1]], out=out)
    else:
        _store(total.sqrt_(), out)


def _least_square(dtype: torch.dtype) -> float:
    """Sum of squares from which on what underflows is negligible: each square loses at most u times tiny."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def _with_scaled(component: Component, count: int, scratch: Scratch) -> torch.Tensor:
    """Roots of the sums of squares, from scaled components where the sum has overflowed or may have underflowed."""
    total, scaled, values = scratch.total, scratch.scaled, scratch.values
    torch.ge(total, _least_square(total.dtype), out=scratch.large)
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
    choose = torch.maximum if order > 0 else torch.minimum
    unit = _extreme(choose, component, count, scratch, scratch.scale)
    info = torch.finfo(unit.dtype)
    unit.clamp_(info.smallest_normal * info.eps, info.max)  # 0 / 0 and inf / inf would be NaN
    total, values = scratch.total.zero_(), scratch.values
    exponent, root = (max(-info.max, min(info.max, p)) for p in (order, 1.0 / order))
    # Large powers overflow, so the quotient is raised; for small ones it is the quotient that might leave the range.
    powers_first = abs(order) <= 0.5
    divisor = torch.pow(unit, exponent, out=scratch.scaled) if powers_first else unit
    for k in range(count):
        torch.abs(component(k), out=values)
        total.add_(values.pow_(exponent).div_(divisor) if powers_first else values.div_(divisor).pow_(exponent))
    _store(total.pow_(root).mul_(unit), out)


_REDUCTIONS: dict[float, Callable[[Component, int, Scratch, torch.Tensor], None]] = {
    2.0: _two,
    1.0: _one,
    0.0: _zero,
    math.inf: _largest,
    -math.inf: _smallest,
}
