"""Least squares with bounds, min ||A x - b|| for 0 <= x <= upper and, where asked, sum x = 1, for panels of pixels.

The p x p problem that stands for it (`compression`) is solved by block exchange or by active sets, and the conditions
for a minimiser are checked for every pixel: in the p x p problem where one A serves all and few unknowns a table
(`solve_projected`), else in the data as given, after one improvement by r = b - A x. With n rows, rounding in r and
A^T r is at most (n + p + 3) u ||a_j|| times (||b|| + sum ||a_k|| x_k), and a backward stable solution leaves c u of the
same, c a modest constant times n p. A pixel in which some a_j^T r exceeds 4 n p u ||a_j|| (||b|| + sum ||a_k|| x_k), or
has the wrong sign beyond it, is not_converged.

Uniqueness. Any two minimisers differ by a null vector of A, which is zero for unknowns whose a_j^T r keeps them at a
bound; so x is unique if the columns of all others are independent (less their sum, where that is known).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tilewise.fields import Status
from tilewise.linalg.active_set import Point, Problem, exchanges, minimise
from tilewise.linalg.batching import MOST_ELEMENTS
from tilewise.linalg.compression import Compressed, rank_and_condition
from tilewise.linalg.exchange import Table
from tilewise.linalg.factors import EPS
from tilewise.linalg.passive_sets import U, applied, gathered, packed, size_order
from tilewise.linalg.scaling import scaled_by


@dataclass(frozen=True)
class Constraints:
    """What solutions must satisfy, and the most steps that a pixel may take."""

    sum_to_one: bool
    max_iter: int


@dataclass(frozen=True)
class Minimiser:
    """Solutions of w pixels.

    Attributes
    ----------
    x
        (p, w) in the user's units; a feasible point where not converged; NaN where infeasible.
    status
        (w,) uint8.
    rank, condition
        (w,) of the column-scaled A: singular values above rcond times the largest, and the quotient of the largest
        and the smallest, infinite below full rank. An upper bound where nobody asked for it.
    infeasible
        (w,) bool, or None where no bound can fail.
    """

    x: torch.Tensor
    status: torch.Tensor
    rank: torch.Tensor
    condition: torch.Tensor
    infeasible: torch.Tensor | None


def solve_compressed(
    compressed: Compressed, b: torch.Tensor, upper: torch.Tensor | None, constraints: Constraints
) -> Minimiser:
    """Minimisers for right-hand sides b (n, w), with upper bounds (p, w), rows times the roots of their weights."""
    if upper is not None or compressed.table is None:
        return _by_active_set(compressed, b, upper, constraints)
    found, left = solve_projected(compressed, compressed.table, compressed.project(b), constraints)
    complete(found, left, compressed, b[:, left], constraints)
    return found


def complete(
    found: Minimiser, left: torch.Tensor, compressed: Compressed, b: torch.Tensor, constraints: Constraints
) -> None:
    """Put in the pixels that were `left` (k,), of right-hand sides b (n, k), by active sets."""
    if len(left):
        others = _by_active_set(compressed, b, None, constraints)
        found.x[:, left] = others.x
        found.status[left] = others.status


def solve_projected(
    compressed: Compressed, table: Table, c: torch.Tensor, constraints: Constraints
) -> tuple[Minimiser, torch.Tensor]:
    """Minimisers by block exchange for projected right-hand sides c = Q^T b (p, w), and the pixels that are left.

    b is not looked at again. With S + E = Q R, ||e_j|| <= c u ||s_j||, and c known to c u ||b||,

        s_j^T (b - S y) = r_j^T (c - R y) + f,   |f| <= c u ||s_j|| (||b|| + sum ||s_k|| y_k),

    so what is found of the p x p problem holds of the data but for what rounding b - S y would cost as well.
    """
    level = _magnitude(c)
    code, x, left = table.settle(c, level, min(constraints.max_iter, exchanges(len(c))))
    x.clamp_(min=0).abs_()  # no zero has a sign
    fine = _is_fine(compressed, table, c, x, code, level, constraints)
    if not bool(fine.all()):
        where = (~fine).nonzero().flatten()
        code, c, level = code[where], c[:, where], level[where]
        better = _refined(compressed, gathered(table.factors.G, code), c, x[:, where])
        fine[where] = _is_fine(compressed, table, c, better, code, level, constraints)
        x[:, where] = better
    fine[left] = False
    left = (~fine).nonzero().flatten()
    return _minimiser(compressed, scaled_by(x, -compressed.exponent), None, None, None), left


def _refined(compressed: Compressed, own: torch.Tensor, c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x (p, w) improved by its residual, as far as it stays above zero."""
    step = applied(own, torch.addmm(c, compressed.R[..., 0], x, alpha=-1))
    return (x + step * _length(x, step, None)).clamp_(min=0).abs_()


def _is_fine(
    compressed: Compressed,
    table: Table,
    c: torch.Tensor,
    x: torch.Tensor,
    code: torch.Tensor,
    level: torch.Tensor,
    constraints: Constraints,
) -> torch.Tensor:
    """Whether (w,) the conditions hold of x (p, w), but for noise; the pivot of a sum is first made to carry it."""
    n, p = len(compressed.A), len(c)
    size = compressed.size
    pivot = None
    if constraints.sum_to_one:
        pivot = table.factors.pivot[code].unsqueeze(0)
        x.scatter_add_(0, pivot, 1 - x.sum(0, keepdim=True))
        size = size + size.squeeze(1)[pivot]
    R = compressed.R[..., 0]
    g = R.T @ torch.addmm(c, R, x, alpha=-1)
    if pivot is not None:
        g -= g.gather(0, pivot)
    noise = size * ((compressed.size.T @ x + level) * (4 * n * p * U))
    # No g is above noise, nor that of an unknown above zero below; of a NaN neither can be said.
    positive = torch.gt(x, 0, out=torch.empty_like(x))
    worst = torch.maximum(g, g.neg().mul_(positive)).sub_(noise).amax(0)
    fine = worst <= 0
    if pivot is not None:
        fine &= x.amin(0) >= 0  # a sum may leave its pivot below zero
    return fine


def _magnitude(c: torch.Tensor) -> torch.Tensor:
    """A bound of ||c|| (w,), at most sqrt(p) above it, that does not overflow."""
    return c.abs().amax(0) * math.sqrt(len(c))


def _roundings(b: torch.Tensor, p: int) -> float:
    """What g may be by rounding, as part of ||a_j|| (||b|| + sum ||a_k|| x_k)."""
    return 4 * b.shape[0] * p * U


def _by_active_set(
    compressed: Compressed, b: torch.Tensor, upper: torch.Tensor | None, constraints: Constraints
) -> Minimiser:
    w = b.shape[1]
    c = compressed.project(b if compressed.A.dim() == 2 else b.clone())
    infeasible, bounds = _bounds(upper, compressed.exponent, constraints)
    problem = Problem(
        compressed.sets,
        c,
        compressed.size,
        _magnitude(c),
        bounds,
        b.new_ones(w) if constraints.sum_to_one else None,
    )
    regular = (compressed.rank == len(c)).expand(w)
    point = minimise(problem, regular, constraints.max_iter)
    y, g = _improved(compressed, problem, point, b)
    # What b has outside the columns of A counts for the rounding of its residual as well.
    problem = replace(problem, level=compressed.level(b))
    noise = problem.noise(y, point.free, _roundings(b, len(y)))
    converged = _is_minimiser(problem, y, g, noise)
    unique = _unique(compressed, problem, point, g, noise, regular)
    x = scaled_by(y, -compressed.exponent)
    if upper is not None and point.above is not None:
        x = torch.where(point.above, upper, torch.minimum(x, upper))
    return _minimiser(compressed, x, converged, unique, infeasible)


def can_sum_to_one(upper: torch.Tensor) -> torch.Tensor:
    """Whether (w,) unknowns within upper bounds (p, w) reach one, but for the rounding of the sum."""
    return upper.sum(0) >= 1 - len(upper) * EPS


def _bounds(
    upper: torch.Tensor | None, exponent: torch.Tensor, constraints: Constraints
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where bounds cannot hold (w,), and the bounds (p, w) in the units of the problem, harmless there."""
    if upper is None:
        return None, None
    infeasible = ~(upper >= 0).all(0)
    if constraints.sum_to_one:
        infeasible |= ~can_sum_to_one(upper)
    return infeasible, scaled_by(torch.where(infeasible, 1.0, upper), exponent)


def _improved(
    compressed: Compressed, problem: Problem, point: Point, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solutions improved with their true residual, as far as the bounds allow, and g (p, w) there."""
    y = point.x
    d = compressed.projected_residual(b, y)
    nothing = None if problem.total is None else torch.zeros_like(problem.total)
    step, _ = problem.sets.solve(point.free, d, nothing)
    length = torch.where(point.done, _length(y, step, problem.upper), 0.0)
    better = torch.maximum(y + length * step, torch.zeros_like(y))
    g = problem.sets.gradient(d - problem.sets.product(better - y))
    return better, problem.relative(g, point.free)


def _length(y: torch.Tensor, step: torch.Tensor, upper: torch.Tensor | None) -> torch.Tensor:
    """How much of a step (p, w) the bounds allow (w,)."""
    room = torch.where(step < 0, y / -step, torch.inf)
    if upper is not None:
        room = torch.where(step > 0, (upper - y) / step, room)
    return room.amin(0).clamp(0, 1)


def _is_minimiser(problem: Problem, y: torch.Tensor, g: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Whether (w,) the conditions hold but for noise."""
    fine = (g <= noise) & ((g >= -noise) | (y <= 0))
    if problem.upper is not None:
        fine |= (y >= problem.upper) & ((g >= -noise) | (y <= 0))
    return fine.all(0)


def _unique(
    compressed: Compressed,
    problem: Problem,
    point: Point,
    g: torch.Tensor,
    noise: torch.Tensor,
    regular: torch.Tensor,
) -> torch.Tensor:
    """Whether (w,) the columns of unknowns that no condition holds at a bound are independent."""
    unique = regular.clone()
    where = (~regular).nonzero().flatten()
    if len(where) == 0:
        return unique
    sum_known = problem.total is not None
    loose = point.free | (g.abs() <= noise)
    if problem.upper is not None:
        loose &= problem.upper > 0
    p = len(g)
    order = size_order(compressed.R)
    step = max(64, MOST_ELEMENTS // (p * p))
    for start in range(0, len(where), step):
        pixels = where[start : start + step]
        R, places, cut = (x if x.shape[-1] == 1 else x[..., pixels] for x in (compressed.R, order, compressed.cut))
        columns = packed(R, loose[:, pixels], places, cut, sum_known=sum_known)[0]
        count = (loose[:, pixels].sum(0) - int(sum_known)).clamp(min=0)
        rank = rank_and_condition(columns, cut)[0] if columns.shape[1] else torch.zeros_like(count)
        unique[pixels] = rank == count
    return unique


def _minimiser(
    compressed: Compressed,
    x: torch.Tensor,
    converged: torch.Tensor | None,
    unique: torch.Tensor | None,
    infeasible: torch.Tensor | None,
) -> Minimiser:
    """Solutions with their status: None stands for pixels that all converged, are unique, are feasible."""
    p, w = x.shape
    status = compressed.status.expand(w).clone()
    if unique is not None:
        status = torch.where(unique, status, status.clamp(min=int(Status.RANK_DEFICIENT)))
    if converged is not None:
        status = torch.where(converged, status, status.clamp(min=int(Status.NOT_CONVERGED)))
    if infeasible is not None:
        status = torch.where(infeasible, int(Status.INFEASIBLE), status)
        x = torch.where(infeasible, math.nan, x)
    condition = torch.where(compressed.rank < p, math.inf, compressed.cond).expand(w)
    return Minimiser(x, status, compressed.rank.expand(w), condition, infeasible)
