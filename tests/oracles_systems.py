"""Exact answers of small linear systems, in rational arithmetic, and the error that a stable solver may make."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Matrix = list[list[Fraction]]

U = 2.0**-53


def fractions(x: Array) -> Matrix:
    """Floats as the rationals that they are."""
    return [[Fraction(float(value)) for value in row] for row in np.atleast_2d(x)]


def transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def times(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
        for row in a
    ]


def reduced(a: Matrix) -> tuple[Matrix, list[int]]:
    """Reduced row echelon form and the pivot columns."""
    a = [list(row) for row in a]
    pivots: list[int] = []
    for column in range(len(a[0])):
        row = len(pivots)
        found = next((i for i in range(row, len(a)) if a[i][column]), None)
        if found is None:
            continue
        a[row], a[found] = a[found], a[row]
        a[row] = [value / a[row][column] for value in a[row]]
        for i in range(len(a)):
            if i != row and a[i][column]:
                a[i] = [x - a[i][column] * y for x, y in zip(a[i], a[row], strict=True)]
        pivots.append(column)
    return a, pivots


def solved(a: Matrix, b: Matrix) -> Matrix:
    """X with a X = b for a square, regular a."""
    joined, pivots = reduced([left + right for left, right in zip(a, b, strict=True)])
    assert pivots[: len(a)] == list(range(len(a)))
    return [row[len(a) :] for row in joined]


def exact_least_squares(A: Array, b: Array) -> tuple[Array, int]:
    """Minimum-norm least-squares solution of real or complex A x = b, and the rank.

    A^+ = C^T (C C^T)^-1 (B^T B)^-1 B^T, where B are the pivot columns of A and C the rows of its echelon form, so that
    A = B C, both of full rank.
    """
    if np.iscomplexobj(A) or np.iscomplexobj(b):
        x, rank = exact_least_squares(real_form(A), np.concatenate([b.real, b.imag]))
        return x[: len(x) // 2] + 1j * x[len(x) // 2 :], rank // 2
    rows = fractions(A)
    echelon, pivots = reduced(rows)
    if not pivots:
        return np.zeros(A.shape[1]), 0
    B = [[row[j] for j in pivots] for row in rows]
    C = echelon[: len(pivots)]
    Bt, Ct = transposed(B), transposed(C)
    inner = solved(times(Bt, B), times(Bt, transposed(fractions(b))))
    x = times(Ct, solved(times(C, Ct), inner))
    return np.array([float(row[0]) for row in x]), len(pivots)


def real_form(A: Array) -> Array:
    """The real matrix that does to (Re x, Im x) what a complex one does to x."""
    return np.block([[A.real, -A.imag], [A.imag, A.real]])


def column_scales(A: Array) -> Array:
    """Powers of two that bring the norm of each column into [1/2, 1); 1 for a zero column."""
    exponent = np.frexp(np.abs(A).max(0))[1]
    exponent = exponent + np.frexp(np.linalg.norm(A * np.ldexp(1.0, -exponent), axis=0))[1]
    return np.ldexp(1.0, -exponent)


def least_squares_bound(A: Array, b: Array, x: Array, rank: int) -> Array:
    """What each unknown may be in error, in its own units, after a backward stable solution.

    For factors of S + E, ||E|| <= c u ||S||, S = A D column-scaled and y = D^-1 x, to first order

        ||dy|| <= c u (cond ||y|| + ||S^+|| ||b|| + ||S^+|| cond ||b - A x||)

    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 20.1; the second term is the rounding
    of U^H b). Below full rank the solution is carried to the user's units by the inverse of r rows of V, whichever
    are chosen as pivots: at worst `amplification`, once for K and twice for the Gram matrix of M. c is n p times 4.
    """
    D = column_scales(A)
    S = A * D
    s, Vh = np.linalg.svd(S, full_matrices=False)[1:]
    y_scaled = np.linalg.norm(np.linalg.pinv(S, rcond=0.5 * s[rank - 1] / s[0]) @ b) if rank else 0.0
    y = max(float(np.linalg.norm(x / D)), float(y_scaled))
    pinv = 1 / s[rank - 1] if rank else 0.0
    cond = s[0] * pinv
    residual = float(np.linalg.norm(b - S @ (x / D)))
    size = cond * y + pinv * np.linalg.norm(b) + pinv * cond * residual
    error = 4 * U * A.size * size * amplification(Vh[:rank].conj().T, D) ** 3
    return np.asarray(D * error)


def amplification(V: Array, D: Array) -> float:
    """Largest norm of the inverse of r rows of V (p, r) that are not dependent; 1 at full rank."""
    p, r = V.shape
    if r == p or r == 0:
        return 1.0
    smallest = [np.linalg.svd(V[list(rows)], compute_uv=False)[-1] for rows in combinations(range(p), r)]
    return float(1 / min(value for value in smallest if value > 1e-12))
