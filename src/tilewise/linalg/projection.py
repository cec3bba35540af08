"""Tiles of bounded least squares where every row is there, with weight one and one A: b is read once, and compressed.

A few pixels at a time are copied to where their columns of b stay in cache, and projected, c = Q^T b; everything after
that is p-sized, on many pixels at a time. A product multiplies every entry of b, so whatever is not finite in it makes
its c not finite: such a box is left to the driver that looks at rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from tilewise.linalg.batching import PROJECTED_PIXELS, projected_at_once
from tilewise.linalg.compression import Compressed
from tilewise.linalg.exchange import Table
from tilewise.linalg.layout import box_of, box_size, boxes, core_of, merge_tile_axes
from tilewise.linalg.nonnegative import Constraints, Minimiser, complete, solve_projected

Tensors = Mapping[str, torch.Tensor]
#: Outputs that need no residual of b.
PROJECTED = frozenset({"solution", "status", "rank", "n_valid", "condition"})


def solve_by_projection(
    compressed: Compressed,
    table: Table,
    constraints: Constraints,
    b: torch.Tensor,
    out: Tensors,
    otherwise: Callable[[Tensors, Tensors], None],
) -> None:
    """Solve every pixel of a tile: b (n, *tile), with outputs that are all in `PROJECTED`.

    `otherwise` is given the fields and the outputs of boxes in which something is not finite.
    """
    views = {"b": b, **out}
    if b.dim() == 1:
        views = {name: view.unsqueeze(-1) for name, view in views.items()}
    core = {name: core_of(name) for name in views}
    views = merge_tile_axes(views, core)
    project = _Projector(compressed.Q)
    for box in boxes(views["status"].shape, PROJECTED_PIXELS):
        part = {name: box_of(view, core[name], box) for name, view in views.items()}
        mine = part.pop("b")
        found = _solved(compressed, table, constraints, mine, project(mine))
        if found is None:
            otherwise({"b": mine}, part)
            continue
        values = {
            "solution": found.x,
            "status": found.status,
            "rank": found.rank,
            "condition": found.condition,
            "n_valid": torch.full_like(found.rank, len(mine)),
        }
        for name, view in part.items():
            view.copy_(torch.unflatten(values[name], -1, mine.shape[1:]))


def _solved(
    compressed: Compressed, table: Table, constraints: Constraints, b: torch.Tensor, c: torch.Tensor
) -> Minimiser | None:
    if not bool(c.sum().isfinite()):
        return None
    found, left = solve_projected(compressed, table, c, constraints)
    if len(left):
        complete(found, left, compressed, b.reshape(len(b), -1)[:, left].double(), constraints)
    return found if bool(found.x.sum().isfinite()) else None


class _Projector:
    """Q^T b (p, w) of boxes of b, by products of one shape."""

    def __init__(self, Q: torch.Tensor) -> None:
        """Buffers for Q (n, p)."""
        n, p = Q.shape
        self._Qt = Q.T.contiguous()
        self._step = projected_at_once(n)
        self._b = torch.zeros(n, self._step, dtype=Q.dtype, device=Q.device)
        self._c = torch.empty(p, self._step, dtype=Q.dtype, device=Q.device)

    def __call__(self, b: torch.Tensor) -> torch.Tensor:
        shape = b.shape[1:]
        c = self._c.new_empty(len(self._c), math.prod(shape))
        start = 0
        # Boxes of so many elements follow one another in C order, so their pixels do.
        for box in boxes(shape, self._step):
            size = box_size(box)
            torch.unflatten(self._b[:, :size], -1, [s.stop - s.start for s in box]).copy_(b[(slice(None), *box)])
            torch.mm(self._Qt, self._b, out=self._c)
            c[:, start : start + size] = self._c[:, :size]
            start += size
        return c
