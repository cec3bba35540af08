"""Factors of a batch of square matrices, equilibrated, with a condition that says which are singular.

Rows and columns are scaled by powers of two, A = 2^row S 2^column, which rounds nothing: first rows and then columns of
a general A, rows and columns alike of one that is symmetric. S = P L U by partial pivoting, or S = L L^H by Cholesky
where A is positive definite; x = 2^-column S^-1 2^-row b. A symmetric S that may be indefinite is factored by LU too:
Bunch and Kaufman's L D L^T of small batches took three to four times as long as LU by LAPACK (n = 3 to 10, one thread),
about as long at n = 30, and longer again above; and vendors' libraries for CUDA have it for one matrix at a time only.

The condition is that of S in the 1-norm, from its inverse itself: unlike the usual estimate of ||S^-1||_1 it is never
too low, and it costs twice the factorisation once more.

Error: the computed y = 2^column x solves (S + E) y^ = 2^-row b with ||E|| <= c u rho ||S||, c a modest constant times
n^2 and rho the growth of the pivots, at most 2^(n - 1) and 1 for Cholesky (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., theorems 9.5 and 10.4), so ||y^ - y|| <= c u rho cond ||y||.

Where Cholesky breaks down. It runs to its end on an S of unit diagonal whose least eigenvalue is above n gamma_(n+1),
about n (n + 1) u (ibid., theorem 10.7). So a breakdown with a least eigenvalue above -n (n + 1) eps ||S||, which also
covers the error of the eigenvalue, may be rounding: A is singular to working precision. With one below, A has a
direction of negative curvature that no rounding explains: it is not positive definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from tilewise.fields import Status
from tilewise.linalg.factors import EPS, ILL_CONDITIONED, default_rcond
from tilewise.linalg.scaling import batch_first, batch_last, equilibrated, scaled_by, symmetrically_equilibrated
from tilewise.linalg.subset import Subset


@dataclass(frozen=True)
class SquareFactors:
    """Factors of G equilibrated matrices (n, n); those of one without a solution are of the identity.

    Attributes
    ----------
    factor, pivots
        (G, n, n) and (G, n) as `torch.linalg.lu_factor` gives them; or the lower Cholesky factor and None.
    row, column
        (G, n) exponents of the scales.
    rank
        (G,) int64 by singular values of the equilibrated matrix, or n where nobody asked for it.
    condition
        (G,) float64; infinite where the status is rank_deficient, NaN where it is infeasible.
    status
        (G,) uint8: ok, ill_conditioned, rank_deficient, or infeasible where A is not positive definite.
    """

    factor: torch.Tensor
    pivots: torch.Tensor | None
    row: torch.Tensor
    column: torch.Tensor
    rank: torch.Tensor
    condition: torch.Tensor
    status: torch.Tensor

    @property
    def lost(self) -> torch.Tensor:
        """(G,) bool: matrices that have no solution to give."""
        return self.status >= int(Status.RANK_DEFICIENT)

    def to(self, dtype: torch.dtype) -> SquareFactors:
        """The same factors in another dtype."""
        return replace(self, factor=self.factor.to(dtype))

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (G, n, w) of right-hand sides (G, n, w) into `out`."""
        scaled = scaled_by(b, -self.row.unsqueeze(-1))
        if self.pivots is None:
            y = torch.cholesky_solve(scaled, self.factor)
        else:
            y = torch.linalg.lu_solve(self.factor, self.pivots, scaled)
        out.copy_(scaled_by(y, -self.column.unsqueeze(-1)))


def factor_general(A: torch.Tensor, *, want_rank: bool = False) -> SquareFactors:
    """LU factors of matrices (n, n, G) of finite float64 or complex128 numbers."""
    return _factor_lu(*equilibrated(A), want_rank)


def factor_symmetric(A: torch.Tensor, *, want_rank: bool = False) -> SquareFactors:
    """LU factors of matrices (n, n, G) with A = A^T, both triangles filled."""
    scaled, exponent = symmetrically_equilibrated(A)
    return _factor_lu(scaled, exponent, exponent, want_rank)


def factor_positive_definite(A: torch.Tensor, *, want_rank: bool = False) -> SquareFactors:
    """Cholesky factors of matrices (n, n, G) with A = A^H, both triangles filled."""
    scaled, exponent = symmetrically_equilibrated(A)
    matrices = batch_first(scaled)
    L, info = torch.linalg.cholesky_ex(matrices)
    broken = info != 0
    L = _identity_where(broken, L)
    cond = (_norm_1(scaled) * _norm_1(batch_last(torch.cholesky_inverse(L)))).masked_fill(broken, math.inf)
    status, cond = _judged(cond, len(A))
    if bool(broken.any()):
        indefinite = _clearly_indefinite(matrices, broken)
        status = torch.where(indefinite, int(Status.INFEASIBLE), status)
        cond = torch.where(indefinite, math.nan, cond)
    L = _identity_where(status >= int(Status.RANK_DEFICIENT), L)
    scale = batch_first(exponent)
    return SquareFactors(L, None, scale, scale, _rank(matrices, want_rank), cond, status)


#: How A is factored, by what is assumed of it.
FACTOR: Mapping[str, Callable[..., SquareFactors]] = {
    "general": factor_general,
    "symmetric": factor_symmetric,
    "positive definite": factor_positive_definite,
}


def referenced(A: torch.Tensor, assume_a: str) -> torch.Tensor:
    """Matrices (n, n, ...) as they are assumed: what is above the diagonal is filled in from below, in place.

    The conjugate is, for positive definite ones, and their diagonal is real.
    """
    if assume_a == "general":
        return A
    row, column = torch.tril_indices(len(A), len(A), -1, device=A.device)
    below = A[row, column]
    A[column, row] = below.conj() if assume_a == "positive definite" else below
    if assume_a == "positive definite" and A.is_complex():
        A.diagonal().imag.zero_()
    return A


def _factor_lu(scaled: torch.Tensor, row: torch.Tensor, column: torch.Tensor, want_rank: bool) -> SquareFactors:
    """LU factors of equilibrated matrices (n, n, G)."""
    n = len(scaled)
    matrices = batch_first(scaled)
    LU, pivots, _ = torch.linalg.lu_factor_ex(matrices)
    identity = torch.eye(n, dtype=LU.dtype, device=LU.device).expand_as(LU)
    cond = _norm_1(scaled) * _norm_1(batch_last(torch.linalg.lu_solve(LU, pivots, identity)))
    status, cond = _judged(cond, n)
    LU = _identity_where(status == int(Status.RANK_DEFICIENT), LU)
    rank = _rank(matrices, want_rank)
    return SquareFactors(LU, pivots, batch_first(row), batch_first(column), rank, cond, status)


def _judged(cond: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Statuses (G,) by the condition, and the condition itself, infinite where the matrix is singular."""
    status = torch.where(cond > ILL_CONDITIONED, int(Status.ILL_CONDITIONED), int(Status.OK))
    # A zero pivot makes the inverse infinite or NaN: neither is below the limit.
    singular = ~(cond <= 1 / (n * EPS))
    status = torch.where(singular, int(Status.RANK_DEFICIENT), status).to(torch.uint8)
    return status, cond.masked_fill(singular, math.inf)


def _clearly_indefinite(matrices: torch.Tensor, broken: torch.Tensor) -> torch.Tensor:
    """Mask (G,): of the matrices (G, n, n) whose factorisation broke down, those that no rounding made indefinite."""
    n = matrices.shape[-1]
    chosen = Subset.of(broken)
    taken = chosen.take(matrices)
    least = torch.linalg.eigvalsh(taken)[:, 0]
    found = torch.zeros_like(broken)
    chosen.put(least < -n * (n + 1) * EPS * taken.abs().sum(-1).amax(-1), found)
    return found


def _identity_where(mask: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Factors (G, n, n) with those of the identity where `mask` (G,) is true."""
    if not bool(mask.any()):
        return factor
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.where(mask[:, None, None], identity, factor)


def _norm_1(x: torch.Tensor) -> torch.Tensor:
    """1-norms (G,) of matrices (n, n, G)."""
    return x.abs().sum(0).amax(0)


def _rank(scaled: torch.Tensor, wanted: bool) -> torch.Tensor:
    n = scaled.shape[-1]
    if not wanted:
        return torch.full(scaled.shape[:1], n, dtype=torch.int64, device=scaled.device)
    s = torch.linalg.svdvals(scaled)
    rank: torch.Tensor = (s > default_rcond(n, n) * s[:, :1]).sum(-1)
    return rank
