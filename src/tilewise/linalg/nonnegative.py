"""Least squares with bounds, min ||A x - b|| for 0 <= x <= upper and, where asked, sum x = 1, for panels of pixels.

A, its rows times the roots of their weights, is scaled by columns, A = S 2^e, and compressed once by QR, S = Q R with
c = Q^T b; the active set is then found on the p x p problem (`active_set`). Where the sum is known all unknowns are in
one unit, so columns keep their sizes beside one another: R 2^(e - max e). Nothing is rounded by either scaling.

Accuracy. The factors are those of S + E, ||e_j|| <= c u ||s_j|| (Householder QR, or modified Gram-Schmidt with b as one
more column), so a support is decided on data that differ by rounding from those given. The solution on it is then
improved once with r = b - A x of the data as given, and the conditions for a minimiser are checked with that residual
for every pixel: with n rows, rounding in r and A^T r is at most (n + p + 3) u ||a_j|| (||b|| + sum ||a_k|| x_k), and a
backward stable solution leaves c u of the same, c a modest constant times n p. A pixel in which some a_j^T r exceeds
4 n p u ||a_j|| (||b|| + sum ||a_k|| x_k), or has the wrong sign beyond it, is not_converged.

Uniqueness. Any two minimisers differ by a null vector of A, which is zero for unknowns whose a_j^T r keeps them at a
bound; so x is unique if the columns of all others are independent (less their sum, where that is known).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilewise.fields import Status
from tilewise.linalg.active_set import U, Point, Problem, minimise
from tilewise.linalg.factors import EPS, ILL_CONDITIONED
from tilewise.linalg.orthogonal import orthogonalise, project, triangular_inverse
from tilewise.linalg.passive_sets import OwnSets, Sets, SharedSets, packed, size_order
from tilewise.linalg.scaling import batch_first, column_scaled, euclidean_norm, exponent_of, scaled_by

#: How many powers of two b may be above A where the sum is known: beyond, only the direction of b matters.
_HIGHEST_LEVEL = 300
#: Elements of matrices that are worked on at a time.
_MOST_ELEMENTS = 2**18


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
        (w,) bool.
    """

    x: torch.Tensor
    status: torch.Tensor
    rank: torch.Tensor
    condition: torch.Tensor
    infeasible: torch.Tensor


@dataclass(frozen=True)
class Compressed:
    """A of one or of w pixels, compressed: the last axis of what is a pixel's own is w, and 1 where all share it.

    Attributes
    ----------
    A
        (n, p) or (n, p, w): the matrix, rows times the roots of their weights.
    Q
        Of the same shape: what compresses right-hand sides.
    R
        (p, p, 1 or w) in the units of the problem.
    sets
        Least squares on sets of its columns.
    exponent
        (p, 1 or w): columns of A are 2^exponent times those of the problem.
    rank, cut, cond, status
        (1 or w,) of the column-scaled A; `cut` is rcond.
    """

    A: torch.Tensor
    Q: torch.Tensor
    R: torch.Tensor
    sets: Sets
    exponent: torch.Tensor
    rank: torch.Tensor
    cut: torch.Tensor
    cond: torch.Tensor
    status: torch.Tensor

    def project(self, b: torch.Tensor) -> torch.Tensor:
        """Q^T b (p, w); b may be overwritten."""
        return self.Q.T @ b if self.Q.dim() == 2 else project(self.Q, b)

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """b - A x (n, w)."""
        if self.A.dim() == 2:
            return torch.addmm(b, self.A, x, alpha=-1)
        r = b.clone()
        for j, column in enumerate(self.A.unbind(1)):
            r.addcmul_(column, x[j], value=-1)
        return r


def compress_shared(A: torch.Tensor, rcond: float | None, *, sum_to_one: bool) -> Compressed:
    """A matrix (n, p) that all pixels share."""
    n, p = A.shape
    scaled, exponent = column_scaled(A)
    Q, R = torch.linalg.qr(scaled)
    if n < p:
        Q, R = torch.nn.functional.pad(Q, (0, p - n)), torch.nn.functional.pad(R, (0, 0, 0, p - n))
    R = R.unsqueeze(-1)
    cut = _cut(torch.tensor([n], device=A.device), p, rcond)
    rank, cond = _rank(R, cut)
    R, exponent = _in_units(R, exponent.unsqueeze(-1), sum_to_one=sum_to_one)
    tolerance = float(_tolerance(rank, cut, p))
    sets = SharedSets.of(R.squeeze(-1), tolerance=tolerance, sum_known=sum_to_one)
    status = _status(torch.tensor([n], device=A.device), p, cond)
    return Compressed(A, Q, R, sets, exponent, rank, cut, cond, status)


def compress_own(
    A: torch.Tensor, rows: torch.Tensor, rcond: float | None, *, sum_to_one: bool, want_cond: bool
) -> Compressed:
    """Matrices (n, p, w), each with `rows` (w,) that are there, the others being zero."""
    p = A.shape[1]
    Q, exponent = column_scaled(A)
    R = orthogonalise(Q)
    cut = _cut(rows, p, rcond)
    rank, cond = _rank_or_bound(R, cut, rows, want_cond=want_cond)
    R, exponent = _in_units(R, exponent, sum_to_one=sum_to_one)
    sets = OwnSets.of(R, tolerance=_tolerance(rank, cut, p))
    return Compressed(A, Q, R, sets, exponent, rank, cut, cond, _status(rows, p, cond))


def solve_compressed(
    compressed: Compressed, b: torch.Tensor, upper: torch.Tensor | None, constraints: Constraints
) -> Minimiser:
    """Minimisers for right-hand sides b (n, w), with upper bounds (p, w), rows times the roots of their weights."""
    w = b.shape[1]
    level = euclidean_norm(b, dim=0)
    exponent = _level_exponent(compressed, level, sum_to_one=constraints.sum_to_one)
    units = compressed.exponent - exponent  # x = y 2^-units
    if constraints.sum_to_one:
        units = torch.zeros_like(units)
    infeasible, bounds = _bounds(upper, units, w, sum_to_one=constraints.sum_to_one, device=b.device)
    own = compressed.A.dim() == 3
    problem = Problem(
        compressed.sets,
        scaled_by(compressed.project(b.clone() if own else b), -exponent),
        euclidean_norm(compressed.R, dim=0),
        scaled_by(level, -exponent),
        bounds,
        level.new_ones(w) if constraints.sum_to_one else None,
    )
    regular = (compressed.rank == len(problem.c)).expand(w)
    point = minimise(problem, regular, constraints.max_iter)
    y, g = _improved(compressed, problem, point, b, units, exponent)
    noise = problem.noise(y, point.free, 4 * b.shape[0] * len(y))
    converged = _is_minimiser(problem, y, g, noise)
    x = scaled_by(y, -units)
    if upper is not None and point.above is not None:
        x = torch.where(point.above, upper, torch.minimum(x, upper))
    unique = _unique(compressed, problem, point, g, noise, regular)
    return _minimiser(compressed, x, converged, unique, infeasible)


def _level_exponent(compressed: Compressed, level: torch.Tensor, *, sum_to_one: bool) -> torch.Tensor:
    """Exponents (w,) by which right-hand sides are scaled: to norm one, or with A where the sum is known."""
    exponent = exponent_of(level)
    if not sum_to_one:
        return exponent
    return torch.maximum(compressed.exponent[0].expand_as(exponent), exponent - _HIGHEST_LEVEL)


def _bounds(
    upper: torch.Tensor | None, units: torch.Tensor, w: int, *, sum_to_one: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where bounds cannot hold (w,), and the bounds (p, w) in the units of the problem, harmless there."""
    if upper is None:
        return torch.zeros(w, dtype=torch.bool, device=device), None
    infeasible = ~(upper >= 0).all(0)
    if sum_to_one:
        infeasible |= upper.sum(0) < 1
    return infeasible, scaled_by(torch.where(infeasible, 1.0, upper), units)


def _improved(
    compressed: Compressed,
    problem: Problem,
    point: Point,
    b: torch.Tensor,
    units: torch.Tensor,
    exponent: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solutions improved with their true residual, as far as the bounds allow, and g (p, w) there."""
    y = point.x
    r = compressed.residual(b, scaled_by(y, -units))
    d = scaled_by(compressed.project(r), -exponent)
    nothing = None if problem.total is None else torch.zeros_like(problem.total)
    step, _ = problem.sets.solve(point.free, d, nothing)
    step = torch.where(point.free, step, 0.0)
    room = torch.where(step < 0, y / -step, torch.inf)
    if problem.upper is not None:
        room = torch.where(step > 0, (problem.upper - y) / step, room)
    length = torch.where(point.done, room.amin(0).clamp(0, 1), 0.0)
    better = torch.maximum(y + length * step, torch.zeros_like(y))
    g = problem.sets.gradient(d - problem.sets.product(better - y))
    return better, problem.relative(g, point.free)


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
    step = max(64, _MOST_ELEMENTS // (p * p))
    for start in range(0, len(where), step):
        pixels = where[start : start + step]
        R, places, cut = (
            x if x.shape[-1] == 1 else x[..., pixels] for x in (compressed.R, order, compressed.cut)
        )
        columns = packed(R, loose[:, pixels], places, sum_known=sum_known)[0]
        count = (loose[:, pixels].sum(0) - sum_known).clamp(min=0)
        rank = _rank(columns, cut)[0] if columns.shape[1] else torch.zeros_like(count)
        unique[pixels] = rank == count
    return unique


def _minimiser(
    compressed: Compressed,
    x: torch.Tensor,
    converged: torch.Tensor,
    unique: torch.Tensor,
    infeasible: torch.Tensor,
) -> Minimiser:
    p, w = x.shape
    status = compressed.status.expand(w)
    status = torch.where(unique, status, status.clamp(min=int(Status.RANK_DEFICIENT)))
    status = torch.where(converged, status, status.clamp(min=int(Status.NOT_CONVERGED)))
    status = torch.where(infeasible, int(Status.INFEASIBLE), status).to(torch.uint8)
    condition = torch.where(compressed.rank < p, math.inf, compressed.cond).expand(w)
    return Minimiser(
        torch.where(infeasible, math.nan, x) if bool(infeasible.any()) else x,
        status,
        compressed.rank.expand(w),
        condition,
        infeasible,
    )


def _cut(rows: torch.Tensor, p: int, rcond: float | None) -> torch.Tensor:
    """Singular values (w,) at most this times the largest are zero."""
    if rcond is not None:
        return torch.full_like(rows, rcond, dtype=torch.float64)
    return rows.clamp(min=p) * EPS


def _rank(R: torch.Tensor, cut: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank and condition (w,) of matrices (m, p, w), cut at the rank, by their singular values."""
    s = torch.linalg.svdvals(batch_first(R))
    rank = (s > cut.unsqueeze(-1) * s[:, :1]).sum(-1)
    smallest = s.gather(-1, (rank - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return rank, torch.where(rank > 0, s[:, 0] / smallest, math.inf)


def _rank_or_bound(
    R: torch.Tensor, cut: torch.Tensor, rows: torch.Tensor, *, want_cond: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank and condition, or where ||R||_F ||R^-1||_F proves full rank and good condition (see `factors`) that bound."""
    p, _, w = R.shape
    if want_cond:
        return _rank(R, cut)
    X = triangular_inverse(R)
    bound = ((R * R).sum((0, 1)) * (X * X).sum((0, 1))).sqrt()
    limit = (1 / cut.clamp(min=p * EPS)).clamp(max=ILL_CONDITIONED) / 4
    rank = torch.full((w,), p, dtype=torch.int64, device=R.device)
    doubtful = (~(bound < limit) | (rows < p)).nonzero().flatten()
    if len(doubtful):
        rank[doubtful], bound[doubtful] = _rank(R[..., doubtful], cut[doubtful])
    return rank, bound


def _tolerance(rank: torch.Tensor, cut: torch.Tensor, p: int) -> torch.Tensor:
    """Pivot, as part of the norm of a set, at which a column depends on others: none at full rank."""
    return torch.where(rank == p, 0.0, cut.clamp(min=8 * p * U))


def _in_units(R: torch.Tensor, exponent: torch.Tensor, *, sum_to_one: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """R and exponents in the units of the problem: each column's own, or the largest for all where the sum is known."""
    if not sum_to_one:
        return R, exponent
    zero = (R == 0).all(0)
    largest = torch.where(zero, torch.iinfo(torch.int32).min, exponent).amax(0, keepdim=True)
    largest = torch.where(zero.all(0, keepdim=True), 0, largest)
    return scaled_by(R, torch.where(zero, 0, exponent - largest)), largest.expand_as(exponent)


def _status(rows: torch.Tensor, p: int, cond: torch.Tensor) -> torch.Tensor:
    """ok, ill_conditioned or underdetermined (w,); what depends on the solution is added to it."""
    status = torch.where((cond > ILL_CONDITIONED) & (cond < math.inf), int(Status.ILL_CONDITIONED), int(Status.OK))
    return torch.where(rows < p, int(Status.UNDERDETERMINED), status)
