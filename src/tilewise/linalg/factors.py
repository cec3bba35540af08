"""Least-squares factors of a batch of matrices, with their rank and condition.

Every matrix A (n, p) is first scaled by columns, A = S 2^e, which rounds nothing; rank and condition are those of
S. The result is the pseudo-inverse in factors, A^+ = 2^-e left basis^H, with orthonormal columns in `basis`:

- full column rank by QR, S = Q R: left = R^-1, basis = Q;
- otherwise by the singular value decomposition S = U diag(s) V^H cut at the rank: basis = U, left = V diag(1/s) where
  the rank is p, and where it is less the minimum-norm factor (`minimum_norm`), in the user's units, with e = 0.

Error. u is the unit roundoff, gamma_k = k u / (1 - k u), c a modest constant times n p. Householder QR and the SVD
give the exact factors of S + E, ||E|| <= c u ||S||, up to c u in orthonormality (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., chapters 19 and 20). R^-1 is solved for by rows, so that |X R - I| <= gamma_p |X||R|
(ibid., 14.2): to use it is as accurate as back-substitution. With y = 2^e x and r = b - A x, both give

    ||y^ - y|| <= c u ( cond ||y|| + ||S^+|| ||b|| + ||S^+|| cond ||r|| ),      cond = ||S|| ||S^+||,

the bound of a backward stable solver. Neither the factors nor their product as a matrix ever see the square of the
condition unless the residual does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilewise.fields import Status
from tilewise.linalg.minimum_norm import minimum_norm_left
from tilewise.linalg.scaling import batch_first, batch_last, column_scaled, euclidean_norm, scaled_by
from tilewise.linalg.subset import Subset

EPS = torch.finfo(torch.float64).eps
#: Above this condition half of the digits of float64 are lost.
ILL_CONDITIONED = 1 / math.sqrt(EPS)


@dataclass(frozen=True)
class Factors:
    """Pseudo-inverses 2^-exponent left @ basis^H of a batch of G matrices (n, p), with k = min(n, p).

    Attributes
    ----------
    exponent
        (G, p) int64: exponents that take the solution to the user's units.
    left, basis
        (G, p, k), and (G, n, k) with orthonormal columns; float64 or complex128.
    rank
        (G,) int64: singular values above rcond times the largest.
    status
        (G,) uint8: ok, ill_conditioned, rank_deficient or underdetermined.
    cond
        (G,) condition of the column-scaled matrix cut at its rank, in the 2-norm; infinite for rank 0. Where nobody
        asked for it, and QR serves the matrix, an upper bound.
    estimable
        (G, p) bool: whether the unknown is the same in every least-squares solution, which is so if its unit vector
        lies in the row space. That of the computed V is turned by about max(n, p) eps cond, so no more is resolved.
    """

    exponent: torch.Tensor
    left: torch.Tensor
    basis: torch.Tensor
    rank: torch.Tensor
    status: torch.Tensor
    cond: torch.Tensor
    estimable: torch.Tensor

    @property
    def condition(self) -> None:
        """Nothing: QR serves its matrices without one."""

    def take(self, which: slice) -> Factors:
        """Those of some matrices."""
        return Factors(*(values[which] for values in vars(self).values()))

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (G, p, w) of right-hand sides (G, n, w) into `out`."""
        torch.bmm(self.left, torch.bmm(self.basis.mH, b), out=out)
        out.copy_(scaled_by(out, -self.exponent.unsqueeze(-1)))

    def pseudoinverse(self) -> torch.Tensor:
        """The matrices (G, p, n) themselves."""
        return scaled_by(torch.bmm(self.left, self.basis.mH), -self.exponent.unsqueeze(-1))


def default_rcond(n: int, p: int) -> float:
    """Singular values at most this times the largest are zero: max(n, p) eps of float64.

    >>> default_rcond(50, 100) == 100 * 2.0**-52
    True
    """
    return max(n, p) * EPS


def factor(
    A: torch.Tensor,
    rcond: float | None = None,
    *,
    rows: torch.Tensor | None = None,
    want_cond: bool = False,
) -> Factors:
    """Factors of matrices (n, p, G) of finite float64 or complex128 numbers.

    QR serves the matrices whose full rank and good condition it proves, and the SVD the others. Which of the two
    serves a matrix depends on that matrix alone, and so does every bit of its factors, for its place in the batch.

    `rows` (G,) int64 counts the rows of each matrix that are there, the others being zeros; all, if it is left out.
    """
    n, p, count = A.shape
    if n < p:
        return factor_svd(A, rcond, rows=rows)
    rows = _all_rows(n, count, A.device) if rows is None else rows
    scaled, exponent = _scaled(A)
    factors, proven = _factor_qr(scaled, exponent, _cut(rcond, rows, p), want_cond=want_cond)
    proven &= rows >= p
    if not bool(proven.all()):
        doubtful = Subset.of(~proven)
        others = _factor_svd_scaled(doubtful.take(scaled), doubtful.take(exponent), doubtful.take(rows), rcond)
        for name, values in vars(others).items():
            doubtful.put(values, getattr(factors, name))
    return factors


def factor_svd(A: torch.Tensor, rcond: float | None = None, *, rows: torch.Tensor | None = None) -> Factors:
    """Factors of matrices (n, p, G) by the singular value decomposition, whatever their rank."""
    rows = _all_rows(A.shape[0], A.shape[2], A.device) if rows is None else rows
    return _factor_svd_scaled(*_scaled(A), rows, rcond)


def _all_rows(n: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.full((count,), n, dtype=torch.int64, device=device)


def _cut(rcond: float | None, rows: torch.Tensor, p: int) -> torch.Tensor:
    """Singular values (G,) at most this times the largest are zero."""
    if rcond is not None:
        return torch.full_like(rows, rcond, dtype=torch.float64)
    return rows.clamp(min=p) * EPS


def _scaled(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The column-scaled matrices (G, n, p) and their exponents (G, p)."""
    scaled, exponent = column_scaled(A)
    return batch_first(scaled), batch_first(exponent)


def _factor_qr(
    scaled: torch.Tensor, exponent: torch.Tensor, rcond: torch.Tensor, *, want_cond: bool
) -> tuple[Factors, torch.Tensor]:
    """Factors by QR, and which of them (G,) are proven to have full rank and a condition that is not ill.

    cond(R) <= ||R||_F ||R^-1||_F. The computed inverse X differs from R^-1 by at most gamma_p ||X|| ||R|| ||R^-1||, a
    quarter of it while the computed product is below 1 / (4 p eps); so a product below a quarter of 1 / rcond,
    of 1 / (p eps) and of 1 / sqrt(eps) is proof, whatever was rounded.
    """
    count, _, p = scaled.shape
    Q, R = torch.linalg.qr(scaled)
    identity = torch.eye(p, dtype=R.dtype, device=R.device).expand_as(R)
    X = torch.linalg.solve_triangular(R, identity, upper=True, left=False)
    limit = (1 / rcond.clamp(min=p * EPS)).clamp(max=ILL_CONDITIONED) / 4
    bound = _frobenius(R) * _frobenius(X)
    proven = bound < limit
    if want_cond and bool(proven.any()):
        s = torch.linalg.svdvals(torch.where(proven[:, None, None], X, identity))
        bound = s[:, 0] / s[:, -1]
    rank = torch.full((count,), p, dtype=torch.int64, device=R.device)
    status = torch.zeros_like(rank, dtype=torch.uint8)
    estimable = torch.ones(count, p, dtype=torch.bool, device=R.device)
    return Factors(exponent, X, Q, rank, status, bound, estimable), proven


def _frobenius(x: torch.Tensor) -> torch.Tensor:
    return euclidean_norm(batch_last(x.flatten(1)), dim=0)


def _factor_svd_scaled(
    scaled: torch.Tensor, exponent: torch.Tensor, rows: torch.Tensor, rcond: float | None
) -> Factors:
    n, p = scaled.shape[-2:]
    U, s, Vh = torch.linalg.svd(scaled, full_matrices=False)
    kept = s > _cut(rcond, rows, p).unsqueeze(-1) * s[:, :1]
    rank = kept.sum(-1)
    smallest = s.gather(-1, (rank - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    cond = torch.where(rank > 0, s[:, 0] / smallest, math.inf)
    inverse = torch.where(kept, 1 / s, 0.0)
    left = Vh.mH * inverse.unsqueeze(-2)
    deficient = rank < p
    estimable = torch.ones_like(exponent, dtype=torch.bool)
    if bool(deficient.any()):
        noise = max(n, p) * EPS * cond
        shortest = minimum_norm_left(Vh.mH, inverse, kept, exponent, noise=noise)
        left = torch.where(deficient[:, None, None], shortest, left)
        exponent = torch.where(deficient.unsqueeze(-1), 0, exponent)
        estimable = ~deficient.unsqueeze(-1) | _in_row_space(Vh, kept, noise.clamp(max=math.sqrt(EPS)))
    return Factors(exponent, left, U, rank, _status(rows, p, rank, cond), cond, estimable)


def _in_row_space(Vh: torch.Tensor, kept: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Which unit vectors (G, p) are within `noise` of the space of the kept rows of V^H (G, k, p)."""
    V = Vh.mH * kept.unsqueeze(-2)
    rest = torch.eye(V.shape[-2], dtype=V.dtype, device=V.device) - torch.bmm(V, V.mH)
    within: torch.Tensor = torch.linalg.vector_norm(rest, dim=-2) <= noise.unsqueeze(-1)
    return within


def _status(rows: torch.Tensor, p: int, rank: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
    """The highest code that applies."""
    status = torch.where(cond > ILL_CONDITIONED, int(Status.ILL_CONDITIONED), int(Status.OK))
    status = torch.where(rank < p, int(Status.RANK_DEFICIENT), status)
    return torch.where(rows < p, int(Status.UNDERDETERMINED), status).to(torch.uint8)
