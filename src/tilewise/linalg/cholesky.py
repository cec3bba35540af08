"""Cholesky factors of one small matrix a pixel, pixels last: elementwise operations on all pixels at once.

A Hermitian matrix G (p, p) a pixel is held as its lower triangle packed by columns, as in LAPACK's xPPTRF, in an array
(p (p + 1) / 2, w), so that every operation runs along pixels. No operation mixes pixels, and a matrix that is not
positive definite makes NaN of its own pixel only.

Error: the computed factor is exact for G + E, |E_ij| <= gamma_(p+1) sqrt(G_ii G_jj) / (1 - gamma_(p+1)) (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 10.5): scaling rows and columns alike changes nothing,
so the error of a solution has the condition of the matrix scaled to a unit diagonal (ibid., theorem 10.6).
"""

from __future__ import annotations

import math
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
    table
        (p (p + 1) / 2 + p, w): L packed by columns, and the inverses of its diagonal.
    columns
        Views of the table: column k of L below and with its diagonal, (p - k, w), for each k.
    share
        (w,) float64: product of L_kk^2 / G_kk, which is the determinant of G scaled to a unit diagonal: in (0, 1], NaN
        where G is not positive definite.
    """

    table: torch.Tensor
    columns: tuple[torch.Tensor, ...]
    share: torch.Tensor

    @classmethod
    def of(cls, table: torch.Tensor, share: torch.Tensor) -> Cholesky:
        """The factors in a table."""
        p = unknowns(len(table))
        starts = [packed_size(p) - packed_size(p - k) for k in range(p + 1)]
        return cls(table, tuple(table[a:b] for a, b in pairwise(starts)), share)

    @property
    def inverse(self) -> torch.Tensor:
        """(p, w) inverses of the diagonal of L."""
        return self.table[-len(self.columns) :]

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """L^-1 y in place, for y (p, w) or (p, r, w)."""
        inverse = self.inverse
        for k, column in enumerate(self.columns):
            y[k] *= inverse[k]
            if k + 1 < len(self.columns):
                below = column[1:] if y.dim() == 2 else column[1:].unsqueeze(1)
                y[k + 1 :].addcmul_(below, y[k], value=-1)
        return y

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """G^-1 y in place, for y (p, w)."""
        self.forward(y)
        inverse = self.inverse
        for k in range(len(self.columns) - 1, -1, -1):
            if k + 1 < len(self.columns):
                y[k] -= (self.columns[k][1:].conj() * y[k + 1 :]).sum(0)
            y[k] *= inverse[k]
        return y


def unknowns(rows: int) -> int:
    """p of a table with so many rows.

    >>> unknowns(packed_size(6) + 6)
    6
    """
    return (math.isqrt(8 * rows + 9) - 3) // 2


def cholesky(packed: torch.Tensor) -> Cholesky:
    """Factor packed matrices, the first p (p + 1) / 2 rows of a table (p (p + 1) / 2 + p, w), in place."""
    p = unknowns(len(packed))
    factors = Cholesky.of(packed, torch.ones_like(_real(packed[0])))
    inverse = factors.inverse
    diagonal = [_real(column[0]).clone() for column in factors.columns]
    for k, column in enumerate(factors.columns):
        pivot = _real(column[0])
        factors.share.mul_(pivot / diagonal[k])
        inverse[k] = pivot.rsqrt()  # NaN or infinite where the matrix is not positive definite
        column *= inverse[k]
        for i in range(k + 1, p):
            factor = column[i - k].conj().resolve_conj()
            factors.columns[i].addcmul_(column[i - k :], factor, value=-1)
    return factors


def _real(x: torch.Tensor) -> torch.Tensor:
    return x.real if x.is_complex() else x
