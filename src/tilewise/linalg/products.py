"""Solutions of a tile: right-hand sides gathered into contiguous panels, solved, checked, and written.

A panel is G matrices by w right-hand sides each, (G, n, w): one shared matrix and `panel` pixels, or `panel` pixels
each with a matrix of their own, or anything between where A varies along some tile dimensions only. Buffers are
allocated once a call. Panels are whole, the last one padded: the bits of a product depend on its width.

Every product multiplies every entry of its right-hand side, so whatever is not finite in b makes its solution not
finite, and it alone: one look at the solution, while it is in cache, finds both bad data and overflow. What is left
over from the last panel beyond the pixels of this one is solved along, and never written.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilewise.fields import Status
from tilewise.linalg.batching import batch_shape
from tilewise.linalg.blocks import box_shape
from tilewise.linalg.layout import box_of, box_size, boxes, core_of, merge_tile_axes
from tilewise.linalg.scaling import batch_first, euclidean_norm

#: What says of a pixel that its data or its solution is not finite.
_OF_NON_FINITE = {"status": int(Status.NON_FINITE), "rank": -1, "condition": math.nan}

Views = Mapping[str, torch.Tensor]


class Solver(Protocol):
    """G factored matrices, which right-hand sides can be given to."""

    @property
    def rank(self) -> torch.Tensor:
        """(G,) numerical rank."""

    @property
    def condition(self) -> torch.Tensor | None:
        """(G,) condition, where somebody may ask for it."""

    @property
    def status(self) -> torch.Tensor:
        """(G,) uint8."""

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (G, p, w) of right-hand sides (G, n, w) into `out`."""


@dataclass(frozen=True)
class Product:
    """One matrix whose pseudo-inverse is applied as a product: within gamma_n |P||b| of the exact product.

    `pseudoinverse` is (1, p, n); `rank` and `status` are (1,).
    """

    pseudoinverse: torch.Tensor
    rank: torch.Tensor
    status: torch.Tensor
    condition: torch.Tensor | None = None

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (1, p, w) of right-hand sides (1, n, w) into `out`."""
        torch.bmm(self.pseudoinverse, b, out=out)


@dataclass(frozen=True)
class Batch:
    """A solver with what is asked of its solutions.

    Attributes
    ----------
    solver
        For G matrices.
    lost
        (G,) bool: matrices whose solutions are NaN, as their status says.
    A
        The matrices (G, n, p) themselves, where residuals are wanted, in the dtype computed in.
    """

    solver: Solver
    lost: torch.Tensor
    A: torch.Tensor | None


@dataclass(frozen=True)
class _Buffers:
    """What one panel is worked on in; `stored` is the solution in the output's dtype, often the same tensor."""

    b: torch.Tensor
    x: torch.Tensor
    stored: torch.Tensor
    residual: torch.Tensor | None

    def first(self, count: int) -> _Buffers:
        """The buffers of the first `count` matrices."""
        x = self.x[:count]
        stored = x if self.stored is self.x else self.stored[:count]
        residual = None if self.residual is None else self.residual[:count]
        return _Buffers(self.b[:count], x, stored, residual)


@dataclass(frozen=True)
class _Panel:
    """Buffers with the views of what a box of the shape `tile` uses of them, made once for all boxes of this shape."""

    buffers: _Buffers
    tile: tuple[int, ...]
    lead: int
    b: torch.Tensor
    stored: torch.Tensor

    @classmethod
    def of(cls, buffers: _Buffers, tile: tuple[int, ...], lead: int) -> _Panel:
        """The part of these buffers that boxes of this shape use."""
        return cls(buffers, tile, lead, _boxed(buffers.b, tile, lead), _boxed(buffers.stored, tile, lead))

    def used(self, values: torch.Tensor) -> torch.Tensor:
        """The used part of values (G, w) of a panel, with the axes of the box."""
        return _boxed(values, self.tile, self.lead)


def solve_shared(batch: Batch, views: Views, dtype: torch.dtype, *, panel: int) -> None:
    """Solve every pixel of a tile with one matrix, in `dtype`.

    `views` holds b (n, *tile) and the outputs: solution (p, *tile), status (*tile), and rank or residual_norm where
    they are wanted, or condition.
    """
    views, _ = _split_tile_axes(views)
    buffers = _buffers(views, 1, panel, dtype)
    _fill(batch, views, 1, buffers)


def solve_varying(
    factor: Callable[[torch.Tensor], tuple[Solver, torch.Tensor]],
    views: Views,
    dtype: torch.dtype,
    *,
    panel: int,
    referenced: Callable[[torch.Tensor], torch.Tensor] = lambda A: A,
) -> None:
    """Factor each distinct matrix of a tile once, and solve its pixels with it.

    `factor` takes finite matrices (n, p, G) of `dtype` to a solver and to the mask (G,) of solutions that are not
    kept; `referenced` makes these matrices of those that were read, before anything is looked at. `views` is as for
    `solve_shared`, with A (n, p, *tile) of size 1 along the tile axes that it lacks.
    """
    views, lead = _split_tile_axes(views)
    n, p = views["A"].shape[:2]
    matrices, right_hand_sides = views["status"].shape[:lead], views["status"].shape[lead:]
    count, width = batch_shape(panel, math.prod(matrices), math.prod(right_hand_sides), n, p)
    buffers = _buffers(views, count, width, dtype)
    A = torch.empty(n * p * count, dtype=dtype, device=views["A"].device)
    everywhere = (slice(None),) * len(right_hand_sides)
    for box in boxes(matrices, count):
        part = {name: box_of(view, core_of(name), box + everywhere) for name, view in views.items()}
        size = box_size(box)
        gathered = referenced(_gathered(part["A"], lead, A[: n * p * size].view(n, p, size)))
        batch = _factored(factor, gathered, want_matrices="residual_norm" in views)
        _fill(batch, part, lead, buffers.first(size))


def _split_tile_axes(views: Views) -> tuple[dict[str, torch.Tensor], int]:
    """Views with the tile axes along which A varies first, and their number; at least one axis of either kind."""
    count = views["status"].dim()
    varies = [i for i in range(count) if "A" in views and views["A"].shape[2 + i] != 1]
    order = varies + [i for i in range(count) if i not in varies]
    moved = {name: _permuted(view, core_of(name), order) for name, view in views.items()}
    if count:
        moved = merge_tile_axes(moved, {name: core_of(name) for name in moved})
    tile = moved["A"].shape[2:] if "A" in moved else ()
    lead = sum(size != 1 for size in tile)
    if lead == 0:
        moved = {name: view.unsqueeze(core_of(name)) for name, view in moved.items()}
        lead = 1
    if moved["status"].dim() == lead:
        moved = {name: view.unsqueeze(-1) for name, view in moved.items()}
    return moved, lead


def _permuted(view: torch.Tensor, core: int, order: Sequence[int]) -> torch.Tensor:
    return view.permute([*range(core), *(core + i for i in order)])


def _buffers(views: Views, count: int, width: int, dtype: torch.dtype) -> _Buffers:
    b, solution = views["b"], views["solution"]
    x = torch.zeros(count, solution.shape[0], width, dtype=dtype, device=b.device)
    rhs = torch.zeros(count, b.shape[0], width, dtype=dtype, device=b.device)
    return _Buffers(
        b=rhs,
        x=x,
        stored=x if solution.dtype == dtype else torch.zeros_like(x, dtype=solution.dtype),
        residual=torch.zeros_like(rhs) if "residual_norm" in views else None,
    )


def _gathered(A: torch.Tensor, lead: int, into: torch.Tensor) -> torch.Tensor:
    """The matrices of a box (n, p, *g, 1...) as one batch (n, p, G)."""
    A = A.flatten(2 + lead)[..., 0] if A.dim() > 2 + lead else A
    torch.unflatten(into, -1, A.shape[2:]).copy_(A)
    return into


def _factored(
    factor: Callable[[torch.Tensor], tuple[Solver, torch.Tensor]], A: torch.Tensor, *, want_matrices: bool
) -> Batch:
    """The batch (n, p, G) factored; a matrix that is not finite is factored as zeros and its pixels are lost."""
    if bool(A.sum().isfinite()):
        solver, lost = factor(A)
        return Batch(solver, lost, batch_first(A) if want_matrices else None)
    bad = ~A.isfinite().flatten(0, 1).all(0)  # none, where it was the sum that overflowed
    A[..., bad] = 0
    solver, lost = factor(A)
    solver.status[bad] = int(Status.NON_FINITE)
    solver.rank[bad] = -1
    if solver.condition is not None:
        solver.condition[bad] = math.nan
    return Batch(solver, lost | bad, batch_first(A) if want_matrices else None)


def _fill(batch: Batch, views: Views, lead: int, buffers: _Buffers) -> None:
    """Solve all right-hand sides of a batch of matrices, one panel at a time."""
    shape = views["status"].shape
    spread = (...,) + (None,) * (len(shape) - lead)
    found = {"status": batch.solver.status, "rank": batch.solver.rank, "condition": batch.solver.condition}
    for name, value in found.items():
        if name in views and value is not None:
            views[name].copy_(torch.unflatten(value, 0, shape[:lead])[spread])
    lost = batch.lost.unsqueeze(-1) if bool(batch.lost.any()) else None
    ahead = {name: _ahead(view, core_of(name), lead, shape) for name, view in views.items() if name != "A"}
    panel: _Panel | None = None
    for box in boxes(shape[lead:], buffers.b.shape[-1]):
        tile = (*shape[:lead], *box_shape(box))
        if panel is None or panel.tile != tile:  # the last one along an axis
            panel = _Panel.of(buffers, tile, lead)
        _solve_panel(batch, lost, ahead, (..., *box), panel)


def _ahead(view: torch.Tensor, core: int, lead: int, shape: Sequence[int]) -> torch.Tensor:
    """A view with its axis that is no tile axis behind the lead axes, and every other tile axis in full."""
    whole = view.expand(*view.shape[: core + lead], *shape[lead:])
    return whole.movedim(0, lead) if core else whole


def _solve_panel(batch: Batch, lost: torch.Tensor | None, views: Views, box: Any, panel: _Panel) -> None:
    """Solve the right-hand sides of a box; `lost` is (G, 1)."""
    buffers = panel.buffers
    panel.b.copy_(views["b"][box])
    batch.solver.solve(buffers.b, buffers.x)
    if buffers.stored is not buffers.x:
        buffers.stored.copy_(buffers.x)
    bad = _not_finite(buffers.stored)
    gone = bad if lost is None else (lost if bad is None else bad | lost)
    if buffers.residual is not None and batch.A is not None:
        torch.baddbmm(buffers.b, batch.A, buffers.x, alpha=-1, out=buffers.residual)
        norm = _without(euclidean_norm(buffers.residual, dim=1), gone)
        views["residual_norm"][box].copy_(panel.used(norm))
    if bad is not None:
        where = panel.used(bad)
        for name, value in _OF_NON_FINITE.items():
            if name in views:
                views[name][box].masked_fill_(where, value)
    _without(buffers.stored, None if gone is None else gone.unsqueeze(1))
    views["solution"][box].copy_(panel.stored)


def _boxed(buffer: torch.Tensor, tile: Sequence[int], lead: int) -> torch.Tensor:
    """The used part of a panel (G, ..., w) with the axes of the tile: (*g, ..., *k)."""
    used = buffer[..., : math.prod(tile[lead:])]
    return torch.unflatten(torch.unflatten(used, -1, tile[lead:]), 0, tile[:lead])


def _without(panel: torch.Tensor, gone: torch.Tensor | None) -> torch.Tensor:
    """A panel (G, w) or (G, p, w), in place NaN where a pixel is gone."""
    if gone is not None:
        values = torch.view_as_real(panel) if panel.is_complex() else panel
        keep = torch.ones_like(gone, dtype=values.dtype).masked_fill_(gone, math.nan)
        # A product by one keeps every bit, and runs along memory, unlike a masked fill.
        values.mul_(keep.unsqueeze(-1) if panel.is_complex() else keep)
    return panel


def _not_finite(x: torch.Tensor) -> torch.Tensor | None:
    """Mask (G, w) of the solutions (G, p, w) with a value that is not finite; None where there are none.

    A finite sum of all has no such value in it. Else, or where it has overflowed, the values of each pixel are summed
    by a product, which is the fastest look at each, with a weight at which a sum of finite ones cannot overflow.
    """
    if cmath.isfinite(x.sum().item()):
        return None
    count, p, _ = x.shape
    x = x.float() if x.dtype == torch.float16 else x
    weights = x.new_full((1, 1, p), 0.5 ** p.bit_length()).expand(count, 1, p)
    finite = torch.bmm(weights, x).squeeze(1).isfinite()
    return None if bool(finite.all()) else ~finite
