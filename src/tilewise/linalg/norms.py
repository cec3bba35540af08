"""Norms of the vector at every pixel of a tile, block by block, whatever the layout of the fields.

Errors and bits are those of `tilewise.linalg.reductions`. An affine component p s + o is itself within u of the exact
one where `addcmul` is fused (torch on a CPU with FMA), and else, or where it is complex, within 4 u (|p s| + |o|).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from tilewise.linalg.blocks import PAD, block_shape, blocks, box_shape, padded, vector_axis
from tilewise.linalg.components import Field, fields_of
from tilewise.linalg.layout import merge_tile_axes, one_thread
from tilewise.linalg.reductions import Component, Scratch, reduction

#: Bytes over which the pixels of a block may lie: a processor remembers the places of about so many pages.
_REACH = 4 * 2**20
#: Pixels from which on copying a block takes longer than the calls for its end alone.
_LONG = 1 << 14
#: Fewest pixels of a block that is kept small for that: below, the calls cost more.
_LEAST = 1024


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
    reduce = reduction(order)
    for box in _blocks_in_place(out.shape, panel):
        scratch.fit(box_shape(box))
        for field in fields:
            field.move(box)
        reduce(component, count, scratch, out[box])


def _blocks_in_place(shape: Sequence[int], panel: int) -> Iterator[tuple[slice, ...]]:
    """The blocks of a shape; of a long last axis what is left over of whole `PAD` pixels is in blocks of its own.

    A panel is a whole number of them: so all but the end can be used where it lies.

    >>> [(s.start, s.stop) for (s,) in _blocks_in_place((62_500,), 196_608)]
    [(0, 62464), (62464, 62500)]
    """
    size = shape[-1]
    if size < _LONG or not size % PAD:
        yield from blocks(shape, panel)
        return
    end = size - size % PAD
    for first, stop in ((0, end), (end, size)):  # one after the other: what varies along the last axis is gathered once
        for *rows, last in blocks(shape, panel):
            part = slice(max(last.start, first), min(last.stop, stop))
            if part.start < part.stop:
                yield (*rows, part)


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
    axis = vector_axis(views["out"].shape, _close(views))
    first, *rest = (view.movedim(core[name] + axis, -1) for name, view in views.items())
    return first, rest


def _close(views: Mapping[str, torch.Tensor]) -> list[int]:
    """How much lies closest along each tile axis: a gather of components counts for two passes over the output."""
    shape = views["out"].shape
    counts = [0] * len(shape)
    for name, view in views.items():
        tile = range(view.dim() - len(shape), view.dim())
        long = [axis for axis in tile if view.shape[axis] > 1]
        if view.shape[tile.start :] == shape and long:
            closest = min(long, key=lambda axis: (view.stride(axis), -axis))
            counts[closest - tile.start] += 1 if name == "out" else 2
    return counts


def _block_pixels(parts: Sequence[torch.Tensor], out: torch.Tensor, panel: int) -> int:
    """Pixels of a block: fewer where they lie apart, so that a gather comes back to lines that are at hand."""
    steps = [part.stride(-1) * part.element_size() for part in parts if part.shape[1:] == out.shape]
    return min(panel, max(_LEAST, padded(_REACH // max([1, *steps]))))


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
