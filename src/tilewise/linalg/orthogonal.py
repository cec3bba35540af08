"""Modified Gram-Schmidt of many small matrices at once, pixels last: every operation runs along the pixels.

LAPACK factors a batch one matrix after the other, which for a handful of columns is mostly overhead. Here a step is a
dot product and an update of whole panels. The right-hand side is treated as one more column. Modified Gram-Schmidt of
[A b] is then Householder QR of the same below p rows of zeros (Bjorck, Solving linear least squares problems by
Gram-Schmidt orthogonalization, BIT 7, 1967): with A = Q R and c what is projected,

    min ||A x - b||   and   min ||R x - c||

agree, for x on any set of columns, but for changes of A and b by c u ||a_j|| in each column and c u ||b||, c a modest
constant times n p. That Q itself loses orthogonality with the condition does not matter, as b loses the same.
"""

from __future__ import annotations

import torch

#: A column that is left with this many roundings a column of its former self is nothing but rounding.
_ROUNDINGS = 4 * 2.0**-53


def orthogonalise(A: torch.Tensor) -> torch.Tensor:
    """Replace matrices A (n, p, w), columns of norm in [0.5, 1) or zero, by Q; returns R (p, p, w).

    A column that depends on those before it becomes zero, in Q and on the diagonal of R.
    """
    p, w = A.shape[1:]
    R = A.new_zeros(p, p, w)
    for j in range(p):
        q = A[:, j]
        norm = (q * q).sum(0).sqrt_()
        R[j, j] = norm * (norm > p * _ROUNDINGS)
        q.mul_(_inverse(R[j, j]))
        if j + 1 < p:
            rest = A[:, j + 1 :]
            R[j, j + 1 :] = (q.unsqueeze(1) * rest).sum(0)
            rest.sub_(q.unsqueeze(1) * R[j, j + 1 :])
    return R


def project(Q: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Components c (p, w) of right-hand sides b (n, w) along Q (n, p, w); what is left stays in `b`."""
    c = b.new_empty(Q.shape[1:])
    for j, column in enumerate(Q.unbind(1)):
        torch.sum(column * b, 0, out=c[j])
        b.sub_(column * c[j])
    return c


def back_substitute(R: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Solutions (p, w) of the triangular systems R x = c; 0 where the diagonal is."""
    x = torch.zeros_like(c)
    left = c.clone()
    for j in reversed(range(len(c))):
        x[j] = left[j] * _inverse(R[j, j])
        left[:j].sub_(R[:j, j] * x[j])
    return x


def triangular_inverse(R: torch.Tensor) -> torch.Tensor:
    """Inverses of upper triangular R (p, p, w), column by column; with infinities where the diagonal has a zero."""
    p, _, w = R.shape
    X = R.new_zeros(p, p, w)
    for k in range(p):
        X[k, k] = 1 / R[k, k]
        for j in reversed(range(k)):
            X[j, k] = -(R[j, j + 1 : k + 1] * X[j + 1 : k + 1, k]).sum(0) / R[j, j]
    return X


def _inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, 1 / x, 0.0)
