"""Cholesky factors of one small matrix a pixel, pixels last: elementwise operations on all pixels at once.

A Hermitian matrix G (p, p) a pixel is held as its lower triangle packed by columns, as in LAPACK's xPPTRF, in an array
(p (p + 1) / 2, w), so that every operation runs along pixels. No operation mixes pixels, and a matrix that is not
positive definite makes NaN of its own pixel only.

Error: the computed factor is exact for G + E, |E_ij| <= gamma_(p+1) sqrt(G_ii G_jj) / (1 - gamma_(p+1)) (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 10.5): scaling rows and columns alike changes nothing,
so the error of a solution has the condition of the matrix scaled to a unit diagonal (ibid., theorem 10.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch


def packed_size(p: int) -> int:
    """Entries of a packed triangle.

    >>> packed_size(3)
    6
    """
    return p * (p + 1) // 2


def packed_index(p: int) -> tuple[list[int], list[int]]:
    """Rows and columns of the entries of a packed triangle.

    >>> packed_index(2)
    ([0, 1, 1], [0, 0, 1])
    """
    pairs = [(i, k) for k in range(p) for i in range(k, p)]
    return [i for i, _ in pairs], [k for _, k in pairs]


@dataclass(frozen=True)
class Cholesky:
    """Factors L of G = L L^H for w pixels.

    Attributes
    ----------
    columns
        Column k of L below and with its diagonal: (p - k, w), for each k.
    inverse
        (p, w) float64: inverses of the diagonal of L.
    share
        (w,) float64: product of L_kk^2 / G_kk, which is the determinant of G scaled to a unit diagonal: in (0, 1], NaN
        where G is not positive definite.
    """

    columns: tuple[torch.Tensor, ...]
    inverse: torch.Tensor
    share: torch.Tensor

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """L^-1 y in place, for y (p, w) or (p, r, w)."""
        extra = (slice(None),) + (None,) * (y.dim() - 2)
        for k, column in enumerate(self.columns):
            y[k] *= self.inverse[k]
            if k + 1 < len(self.columns):
                y[k + 1 :].addcmul_(column[1:][extra], y[k], value=-1)
        return y

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """G^-1 y in place, for y (p, w)."""
        self.forward(y)
        for k in range(len(self.columns) - 1, -1, -1):
            if k + 1 < len(self.columns):
                y[k] -= (self.columns[k][1:].conj() * y[k + 1 :]).sum(0)
            y[k] *= self.inverse[k]
        return y

    def take(self, where: torch.Tensor) -> Cholesky:
        """The factors of these pixels."""
        return Cholesky(tuple(c[:, where] for c in self.columns), self.inverse[:, where], self.share[where])


def cholesky(packed: torch.Tensor, p: int) -> Cholesky:
    """Factor packed matrices (p (p + 1) / 2, w) in place."""
    starts = [packed_size(p) - packed_size(p - k) for k in range(p + 1)]
    columns = tuple(packed[a:b] for a, b in pairwise(starts))
    inverse = torch.empty(p, packed.shape[1], dtype=torch.float64, device=packed.device)
    share = torch.ones_like(inverse[0])
    diagonal = [_real(column[0]).clone() for column in columns]
    for k, column in enumerate(columns):
        pivot = _real(column[0])
        share *= pivot / diagonal[k]
        torch.rsqrt(pivot, out=inverse[k])  # NaN or infinite where the matrix is not positive definite
        column *= inverse[k]
        for i in range(k + 1, p):
            factor = column[i - k].conj().resolve_conj() if column.is_complex() else column[i - k]
            columns[i].addcmul_(column[i - k :], factor, value=-1)
    return Cholesky(columns, inverse, share)


def _real(x: torch.Tensor) -> torch.Tensor:
    return x.real if x.is_complex() else x
