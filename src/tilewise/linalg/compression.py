"""Matrices compressed by QR for bounded least squares: one that all pixels share, or one for each of a batch.

A, its rows times the roots of their weights, is scaled by columns, A = S 2^e, and factored once, S = Q R. With c = Q^T
b the p x p problem min ||R y - c|| stands for min ||A x - b||, y = 2^e x. Where the unknowns sum to one they are in
one unit, so columns keep their sizes beside one another, R 2^(e - max e), and c is scaled by 2^-max e. Nothing is
rounded by either scaling. The factors are those of S + E, ||e_j|| <= c u ||s_j||: by Householder QR where A is shared,
and by modified Gram-Schmidt with b as one more column (`orthogonal`) where it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilewise.fields import Status
from tilewise.linalg.batching import residuals_at_once
from tilewise.linalg.exchange import Table
from tilewise.linalg.factors import EPS, ILL_CONDITIONED
from tilewise.linalg.orthogonal import orthogonalise, project, triangular_inverse
from tilewise.linalg.passive_sets import OwnSets, Sets, SharedSets, U
from tilewise.linalg.scaling import batch_first, column_scaled, euclidean_norm, scaled_by


@dataclass(frozen=True)
class Compressed:
    """A of one or of w pixels, compressed: the last axis of what is a pixel's own is w, and 1 where all share it.

    Attributes
    ----------
    A
        (n, p) or (n, p, w): the matrix times the unknowns in the units of the problem, in the units of b.
    Q
        Of the same shape: what compresses right-hand sides.
    R
        (p, p, 1 or w) in the units of the problem.
    size
        (p, 1 or w) norms of its columns.
    sets, table
        Least squares on sets of its columns; the table where a matrix of a few columns and full rank is shared.
    exponent
        (p, 1 or w): unknowns of the problem are 2^exponent times those of the user.
    shift
        (1 or w,): right-hand sides of the user are 2^shift times those of the problem.
    rank, cut, cond, status
        (1 or w,) of the column-scaled A; `cut` is rcond.
    """

    A: torch.Tensor
    Q: torch.Tensor
    R: torch.Tensor
    size: torch.Tensor
    sets: Sets
    table: Table | None
    exponent: torch.Tensor
    shift: torch.Tensor
    rank: torch.Tensor
    cut: torch.Tensor
    cond: torch.Tensor
    status: torch.Tensor

    def project(self, b: torch.Tensor) -> torch.Tensor:
        """Q^T b (p, w) in the units of the problem; where matrices are the pixels' own b is overwritten."""
        if self.Q.dim() == 2:
            return self.Q.T @ b
        c = project(self.Q, b)
        return scaled_by(c, -self.shift) if bool(self.shift.any()) else c

    def residual(self, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """b - A y (n, w)."""
        if self.A.dim() == 2:
            return torch.addmm(b, self.A, y, alpha=-1)
        r = b.clone()
        for j, column in enumerate(self.A.unbind(1)):
            r.addcmul_(column, y[j], value=-1)
        return r

    def projected_residual(self, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Q^T (b - A y) (p, w); where A is shared a few pixels at a time, whose residuals stay in cache."""
        if self.A.dim() == 3:
            return self.project(self.residual(b, y))
        step = residuals_at_once(len(b))
        parts = [slice(start, start + step) for start in range(0, b.shape[1], step)]
        return torch.cat([self.project(self.residual(b[:, part], y[:, part])) for part in parts], 1)

    def level(self, b: torch.Tensor) -> torch.Tensor:
        """||b|| (w,) in the units of the problem."""
        return scaled_by(euclidean_norm(b, dim=0), -self.shift)


def compress_shared(A: torch.Tensor, rcond: float | None, *, sum_to_one: bool) -> Compressed:
    """A matrix (n, p) that all pixels share."""
    n, p = A.shape
    scaled, exponent = column_scaled(A)
    Q, R = torch.linalg.qr(scaled)
    if n < p:
        Q, R = torch.nn.functional.pad(Q, (0, p - n)), torch.nn.functional.pad(R, (0, 0, 0, p - n))
    R = R.unsqueeze(-1)
    rows = torch.tensor([n], device=A.device)
    cut = _cut(rows, p, rcond)
    rank, cond = rank_and_condition(R, cut)
    status = _status(rows, p, cond)
    exponent, shift = exponent.unsqueeze(-1), torch.zeros_like(rank)
    if sum_to_one:
        R, exponent, shift = _in_one_unit(R, exponent)
        Q, scaled = scaled_by(Q, -shift), A
    sets, projectors = SharedSets.of(R.squeeze(-1), tolerance=float(_tolerance(rank, cut, p)), sum_known=sum_to_one)
    table = None
    if projectors is not None and sets.table is not None and int(rank) == p:
        table = Table.of(sets.R, projectors[0], sets.table, projectors[1], sum_known=sum_to_one)
    return Compressed(scaled, Q, R, euclidean_norm(R, dim=0), sets, table, exponent, shift, rank, cut, cond, status)


def compress_own(
    A: torch.Tensor, rows: torch.Tensor, rcond: float | None, *, sum_to_one: bool, want_cond: bool
) -> Compressed:
    """Matrices (n, p, w), each with `rows` (w,) that are there, the others being zero."""
    p = A.shape[1]
    scaled, exponent = column_scaled(A)
    Q = scaled.clone()
    R = orthogonalise(Q)
    cut = _cut(rows, p, rcond)
    rank, cond = _rank_or_bound(R, cut, rows, want_cond=want_cond)
    status = _status(rows, p, cond)
    shift = torch.zeros_like(rank)
    if sum_to_one:
        R, exponent, shift = _in_one_unit(R, exponent)
        scaled = A
    sets = OwnSets.of(R, tolerance=_tolerance(rank, cut, p))
    return Compressed(scaled, Q, R, euclidean_norm(R, dim=0), sets, None, exponent, shift, rank, cut, cond, status)


def _cut(rows: torch.Tensor, p: int, rcond: float | None) -> torch.Tensor:
    """Singular values (w,) at most this times the largest are zero."""
    if rcond is not None:
        return torch.full_like(rows, rcond, dtype=torch.float64)
    return rows.clamp(min=p) * EPS


def rank_and_condition(R: torch.Tensor, cut: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank and condition (w,) of matrices (m, p, w), cut at the rank, by their singular values."""
    s = torch.linalg.svdvals(batch_first(R))
    rank = (s > cut.unsqueeze(-1) * s[:, :1]).sum(-1)
    smallest = s.gather(-1, (rank - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return rank, torch.where(rank > 0, s[:, 0] / smallest, math.inf)


def _rank_or_bound(
    R: torch.Tensor, cut: torch.Tensor, rows: torch.Tensor, *, want_cond: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank and condition; or, where it proves full rank and good condition (see `factors`), ||R||_F ||R^-1||_F."""
    p, _, w = R.shape
    if want_cond:
        return rank_and_condition(R, cut)
    X = triangular_inverse(R)
    bound = ((R * R).sum((0, 1)) * (X * X).sum((0, 1))).sqrt()
    limit = (1 / cut.clamp(min=p * EPS)).clamp(max=ILL_CONDITIONED) / 4
    rank = torch.full((w,), p, dtype=torch.int64, device=R.device)
    doubtful = (~(bound < limit) | (rows < p)).nonzero().flatten()
    if len(doubtful):
        rank[doubtful], bound[doubtful] = rank_and_condition(R[..., doubtful], cut[doubtful])
    return rank, bound


def _tolerance(rank: torch.Tensor, cut: torch.Tensor, p: int) -> torch.Tensor:
    """Pivot, as part of the norm of a set, at which a column depends on others: none at full rank."""
    return torch.where(rank == p, 0.0, cut.clamp(min=8 * p * U))


def _in_one_unit(R: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """R (p, p, w) with columns as large beside one another as they are, no exponents, and the common shift (w,)."""
    zero = (R == 0).all(0)
    largest = torch.where(zero, torch.iinfo(torch.int32).min, exponent).amax(0)
    shift = torch.where(zero.all(0), 0, largest)
    return scaled_by(R, torch.where(zero, 0, exponent - shift)), torch.zeros_like(exponent), shift


def _status(rows: torch.Tensor, p: int, cond: torch.Tensor) -> torch.Tensor:
    """ok, ill_conditioned or underdetermined (w,); what depends on the solution is added to it."""
    status = torch.where((cond > ILL_CONDITIONED) & (cond < math.inf), int(Status.ILL_CONDITIONED), int(Status.OK))
    return torch.where(rows < p, int(Status.UNDERDETERMINED), status).to(torch.uint8)
