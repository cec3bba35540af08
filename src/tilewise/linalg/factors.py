"""Least-squares factors of a batch of matrices, with their rank and condition.

Every matrix A (n, p) is first scaled by columns, A = S 2^e, which rounds nothing; rank and condition are those of
S. The result is a pair of factors of the pseudo-inverse, A^+ = left @ basis^H, with orthonormal columns in `basis`:

- full column rank by QR, S = Q R: left = 2^-e R^-1, basis = Q;
- otherwise by the singular value decomposition S = U diag(s) V^H cut at the rank: basis = U, left = 2^-e V diag(1/s)
  where the rank is p, and the minimum-norm factor (`minimum_norm`) where it is less.

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
from tilewise.linalg.scaling import column_scaled, scaled_by

EPS = torch.finfo(torch.float64).eps
#: Above this condition half of the digits of float64 are lost.
ILL_CONDITIONED = 1 / math.sqrt(EPS)
#: Matrices after which alignment repeats, and elements that every vector loop divides: the last bits of LAPACK and
#: of complex arithmetic depend on both.
_LANES = 16


@dataclass(frozen=True)
class Factors:
    """Pseudo-inverses left @ basis^H of a batch of G matrices (n, p), with k = min(n, p).

    Attributes
    ----------
    left, basis
        (G, p, k) in the user's units, and (G, n, k) with orthonormal columns; float64 or complex128.
    rank
        (G,) int64: singular values above rcond times the largest.
    status
        (G,) uint8: ok, ill_conditioned, rank_deficient or underdetermined.
    """

    left: torch.Tensor
    basis: torch.Tensor
    rank: torch.Tensor
    status: torch.Tensor

    def solve(self, b: torch.Tensor, out: torch.Tensor) -> None:
        """Put the solutions (G, p, w) of right-hand sides (G, n, w) into `out`."""
        torch.bmm(self.left, torch.bmm(self.basis.mH, b), out=out)


def default_rcond(n: int, p: int) -> float:
    """Singular values at most this times the largest are zero: max(n, p) eps of float64.

    >>> default_rcond(50, 100) == 100 * 2.0**-52
    True
    """
    return max(n, p) * EPS


def factor(A: torch.Tensor, rcond: float | None = None) -> Factors:
    """Factors of matrices (G, n, p) of finite float64 or complex128 numbers.

    QR serves the matrices whose full rank and good condition it proves, and the SVD the others. Which of the two
    serves a matrix depends on that matrix alone, and so does every bit of its factors, for its place in the batch.
    """
    n, p = A.shape[-2:]
    rcond = default_rcond(n, p) if rcond is None else rcond
    if n < p:
        return factor_svd(A, rcond)[0]
    scaled, exponent = column_scaled(A)
    factors, proven = _factor_qr(scaled, exponent, rcond)
    doubtful = (~proven).nonzero().flatten()
    if doubtful.numel():
        slots, places = _aligned(doubtful, len(A))
        chosen = torch.zeros(slots, n, p, dtype=A.dtype, device=A.device)
        chosen[places] = scaled[doubtful]
        exponents = torch.zeros(slots, p, dtype=exponent.dtype, device=A.device)
        exponents[places] = exponent[doubtful]
        _replace(factors, doubtful, _factor_svd_scaled(chosen, exponents, rcond)[0], places)
    return factors


def factor_svd(A: torch.Tensor, rcond: float | None = None) -> tuple[Factors, torch.Tensor]:
    """Factors of matrices (G, n, p) by the singular value decomposition, whatever their rank, and the condition (G,).

    The condition is that of the column-scaled matrix cut at its rank, in the 2-norm; infinite for rank 0.
    """
    rcond = default_rcond(*A.shape[-2:]) if rcond is None else rcond
    return _factor_svd_scaled(*column_scaled(A), rcond)


def _factor_qr(scaled: torch.Tensor, exponent: torch.Tensor, rcond: float) -> tuple[Factors, torch.Tensor]:
    """Factors by QR, and which of them (G,) are proven to have full rank and a condition that is not ill.

    cond(R) <= ||R||_F ||R^-1||_F. The computed inverse X differs from R^-1 by at most gamma_p ||X|| ||R|| ||R^-1||, a
    quarter of it while the computed product is below 1 / (4 p eps); so a product below a quarter of 1 / rcond,
    of 1 / (p eps) and of 1 / sqrt(eps) is proof, whatever was rounded.
    """
    p = scaled.shape[-1]
    Q, R = torch.linalg.qr(scaled)
    identity = torch.eye(p, dtype=R.dtype, device=R.device).expand_as(R)
    X = torch.linalg.solve_triangular(R, identity, upper=True, left=False)
    product = _frobenius(R) * _frobenius(X)
    limit = min(1 / max(rcond, p * EPS), ILL_CONDITIONED) / 4
    count = len(scaled)
    factors = Factors(
        left=scaled_by(X, -exponent.unsqueeze(-1)),
        basis=Q,
        rank=torch.full((count,), p, dtype=torch.int64, device=R.device),
        status=torch.zeros(count, dtype=torch.uint8, device=R.device),
    )
    return factors, product < limit


def _frobenius(x: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=(-2, -1))
    return norm


def _factor_svd_scaled(scaled: torch.Tensor, exponent: torch.Tensor, rcond: float) -> tuple[Factors, torch.Tensor]:
    n, p = scaled.shape[-2:]
    U, s, Vh = torch.linalg.svd(scaled, full_matrices=False)
    kept = s > rcond * s[:, :1]
    rank = kept.sum(-1)
    cond = _condition(s, rank)
    inverse = torch.where(kept, 1 / s, torch.zeros_like(s))
    if n < p or bool((rank < p).any()):
        left = minimum_norm_left(Vh.mH, inverse, kept, exponent, noise=max(n, p) * EPS * cond)
        left = torch.where((rank < p)[:, None, None], left, _full_rank_left(Vh, inverse, exponent))
    else:
        left = _full_rank_left(Vh, inverse, exponent)
    return Factors(left, U, rank, _status(n, p, rank, cond)), cond


def _full_rank_left(Vh: torch.Tensor, inverse: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return scaled_by(Vh.mH * inverse.unsqueeze(-2), -exponent.unsqueeze(-1))


def _condition(s: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    smallest = s.gather(-1, (rank - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(rank > 0, s[:, 0] / smallest, math.inf)


def _status(n: int, p: int, rank: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
    """The highest code that applies."""
    status = torch.where(cond > ILL_CONDITIONED, int(Status.ILL_CONDITIONED), int(Status.OK))
    status = torch.where(rank < p, int(Status.RANK_DEFICIENT), status)
    if n < p:
        status = torch.full_like(status, int(Status.UNDERDETERMINED))
    return status.to(torch.uint8)


def _aligned(chosen: torch.Tensor, count: int) -> tuple[int, torch.Tensor]:
    """Places for chosen ones of `count` matrices in a batch of their own: its size, and the place of each.

    A matrix keeps its index modulo 16, hence its alignment, and the batch is a multiple of 16, so that no vector
    loop has a tail: factors come out the same to the bit whichever other matrices were chosen. A batch that is
    small anyway is kept as it is, for the same reason.

    >>> _aligned(torch.tensor([3, 19, 20]), 64)
    (32, tensor([ 3, 19,  4]))
    """
    if count <= _LANES:
        return count, chosen
    lane = chosen % _LANES
    depth = torch.zeros_like(chosen)
    for value in range(_LANES):
        of_lane = (lane == value).nonzero().flatten()
        depth[of_lane] = torch.arange(len(of_lane), device=chosen.device)
    return _LANES * (int(depth.max()) + 1), depth * _LANES + lane


def _replace(factors: Factors, where: torch.Tensor, others: Factors, places: torch.Tensor) -> None:
    factors.left[where] = others.left[places]
    factors.basis[where] = others.basis[places]
    factors.rank[where] = others.rank[places]
    factors.status[where] = others.status[places]
