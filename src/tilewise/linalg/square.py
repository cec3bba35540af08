"""LU factors of a batch of square matrices, equilibrated, with a condition that says which are singular.

Rows and then columns are scaled by powers of two, A = 2^row S 2^column, which rounds nothing; S = P L U by partial
pivoting; x = 2^-column S^-1 2^-row b. The condition is that of S in the 1-norm, from its inverse itself: unlike the
usual estimate of ||S^-1||_1 it is never too low, and it costs twice the factorisation once more.

Error: the computed y = 2^column x solves (S + E) y^ = 2^-row b with ||E|| <= c u rho ||S||, c a modest constant times
n^2 and rho the growth of the pivots (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 9.5), so
||y^ - y|| <= c u rho cond ||y||.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tilewise.fields import Status
from tilewise.linalg.factors import EPS, ILL_CONDITIONED, default_rcond
from tilewise.linalg.scaling import batch_first, batch_last, equilibrated, scaled_by


@dataclass(frozen=True)
class SquareFactors:
    """LU factors of G equilibrated matrices (n, n); those of a singular one are of the identity.

    Attributes
    ----------
    LU, pivots
        As `torch.linalg.lu_factor` gives them: (G, n, n) and (G, n).
    row, column
        (G, n) exponents of the scales.
    rank
        (G,) int64 by singular values of the equilibrated matrix, or n where nobody asked for it.
    status
        (G,) uint8: ok, ill_conditioned or rank_deficient.
    """

    LU: torch.Tensor
    pivots: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    rank: torch.Tensor
    status: torch.Tensor

    @property
    def singular(self) -> torch.Tensor:
        """(G,) bool: matrices that have no solution to give."""
        return self.status == int(Status.RANK_DEFICIENT)

    def to(self, dtype: torch.dtype) -> SquareFactors:
        """The same factors in another dtype."""
        return replace(self, LU=self.LU.to(dtype))

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (G, n, w) of right-hand sides (G, n, w) into `out`."""
        y = torch.linalg.lu_solve(self.LU, self.pivots, scaled_by(b, -self.row.unsqueeze(-1)))
        out.copy_(scaled_by(y, -self.column.unsqueeze(-1)))


def factor_square(A: torch.Tensor, *, want_rank: bool = False) -> SquareFactors:
    """LU factors of matrices (n, n, G) of finite float64 or complex128 numbers."""
    n = len(A)
    scaled, row, column = equilibrated(A)
    matrices = batch_first(scaled)
    LU, pivots, _ = torch.linalg.lu_factor_ex(matrices)
    identity = torch.eye(n, dtype=A.dtype, device=A.device).expand_as(LU)
    cond = _norm_1(scaled) * _norm_1(batch_last(torch.linalg.lu_solve(LU, pivots, identity)))
    # A zero pivot makes the inverse infinite or NaN: neither is below the limit.
    singular = ~(cond <= 1 / (n * EPS))
    status = torch.where(cond > ILL_CONDITIONED, int(Status.ILL_CONDITIONED), int(Status.OK))
    status = torch.where(singular, int(Status.RANK_DEFICIENT), status).to(torch.uint8)
    if bool(singular.any()):
        LU = torch.where(singular[:, None, None], identity, LU)
    return SquareFactors(LU, pivots, batch_first(row), batch_first(column), _rank(matrices, want_rank), status)


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
