"""Exact least squares of one pixel with gaps, weights and a ridge, and the error that a stable solver may make.

Everything is said twice: in rational arithmetic what is right (`answer`), and in floating point how far from it a
solver may be (`bounds`). Square roots of weights, which are not rational, never enter the first: with B the pivot
columns of A and C the rows of its echelon form, A = B C, the minimum-norm solution is

    x = C^T (C C^T)^-1 (B^T W B)^-1 B^T W b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from oracles_systems import (
    Array,
    Matrix,
    U,
    amplification,
    column_scales,
    fractions,
    least_squares_bound,
    real_form,
    reduced,
    solved,
    times,
    transposed,
)
from tilewise.fields import Status

EPS = 2.0**-52
NAN = math.nan
#: Gram matrices serve where cond^2 eps is at most this.
GRAM = 1e-10
#: No rank, for want of a matrix that is computed.
NONE = -1


@dataclass(frozen=True)
class Problem:
    """One pixel: A (n, p), b (n,), weights (n,), and the penalty's rows (m, p) with their weights (m,)."""

    A: Array
    b: Array
    weights: Array
    penalty: Array
    penalty_weights: Array

    @classmethod
    def of(cls, A: Array, b: Array, weights: Array | None = None, ridge: Any = 0.0, L: Array | None = None) -> Problem:
        n, p = A.shape
        weights = np.ones(n) if weights is None else weights
        lambdas = np.broadcast_to(np.asarray(ridge, dtype=float), (p,))
        # A lambda of zero frees its unknown: it adds no equation.
        rows, of_rows = np.eye(p)[lambdas > 0], lambdas[lambdas > 0]
        if L is not None:
            rows, of_rows = np.concatenate([rows, L]), np.concatenate([of_rows, np.ones(len(L))])
        return cls(A, b, weights, rows, of_rows)

    def rows(self, there: Array) -> Problem:
        return Problem(self.A[there], self.b[there], self.weights[there], self.penalty, self.penalty_weights)

    def stacked(self) -> tuple[Array, Array]:
        """The matrix sqrt(W) A over the penalty, and sqrt(W) b over zeros, in floating point."""
        M = np.concatenate(
            [np.sqrt(self.weights)[:, None] * self.A, np.sqrt(self.penalty_weights)[:, None] * self.penalty]
        )
        return M, np.concatenate([np.sqrt(self.weights) * self.b, np.zeros(len(self.penalty))])


@dataclass(frozen=True)
class Answer:
    """What is right at one pixel."""

    status: Status
    n_valid: int
    rank: int
    solution: Array
    residual_norm: float
    stderr: Array
    r2: float
    centred: bool
    conditions: tuple[float, ...]


def rows_there(problem: Problem, nan_policy: str) -> tuple[Array, bool]:
    """Which rows are there, and whether one of them holds what cannot be computed with."""
    A, b, w = problem.A, problem.b, problem.weights
    missing = np.isnan(b) | np.isnan(w) | np.isnan(A).any(1)
    there = w != 0
    if nan_policy == "omit":
        there = there & ~missing
    bad = missing | np.isinf(b) | np.isinf(A).any(1) | np.isinf(w) | (w < 0)
    return there, bool((there & bad).any())


def answer(
    problem: Problem,
    nan_policy: str = "propagate",
    min_valid: int = 1,
    deficient: str = "min_norm",
    weights_kind: str = "relative",
) -> Answer:
    """The answer by the design's table: a pixel has the highest code that applies."""
    p = problem.A.shape[1]
    there, bad = rows_there(problem, nan_policy)
    n_valid = int(there.sum())
    if n_valid == 0:
        return lost(Status.NO_DATA, 0, 0, p)
    if bad:
        return lost(Status.NON_FINITE, n_valid, NONE, p)
    kept = problem.rows(there)
    exact = Exact.of(kept)
    conditions = conditions_of(kept.stacked()[0]) if exact.rank == p else (math.inf,)
    status = status_of(n_valid + len(kept.penalty), p, exact.rank, max(conditions))
    if n_valid < min_valid:
        # Rank and condition are those of the rows there, whether or not they are enough for a solution.
        return lost(Status.TOO_FEW, n_valid, exact.rank, p, conditions)
    if deficient == "nan" and status in (Status.RANK_DEFICIENT, Status.UNDERDETERMINED):
        return lost(status, n_valid, exact.rank, p, conditions)
    return Answer(
        status,
        n_valid,
        exact.rank,
        exact.solution(),
        root(exact.squares),
        exact.stderr(n_valid, weights_kind),
        exact.r2(),
        exact.centred(),
        conditions,
    )


def lost(status: Status, n_valid: int, rank: int, p: int, conditions: tuple[float, ...] = (NAN,)) -> Answer:
    """Nothing but its counts is known of a pixel without a solution."""
    return Answer(status, n_valid, rank, np.full(p, NAN), NAN, np.full(p, NAN), NAN, False, conditions)


def status_of(rows: int, p: int, rank: int, cond: float) -> Status:
    if rows < p:
        return Status.UNDERDETERMINED
    if rank < p:
        return Status.RANK_DEFICIENT
    return Status.ILL_CONDITIONED if cond > EPS**-0.5 else Status.OK


@dataclass(frozen=True)
class Exact:
    """A weighted system in rational arithmetic; a complex one as the real one that it is."""

    A: Matrix  # data rows only
    b: Matrix
    weights: list[Fraction]
    x: Matrix
    echelon: Matrix
    pivots: list[int]
    inverse: Matrix  # (B^T W B)^-1
    parts: int  # 2 for a complex system, which has everything twice

    @classmethod
    def of(cls, problem: Problem) -> Exact:
        A, b, rows = problem.A, problem.b, problem.penalty
        parts = 2 if any(map(np.iscomplexobj, (A, b, rows))) else 1
        if parts == 2:
            A, b, rows = real_form(A + 0j), np.concatenate([b.real, b.imag]), real_form(rows + 0j)
        data, target = fractions(A), transposed(fractions(b))
        weights = [Fraction(float(w)) for w in problem.weights] * parts
        of_rows = [Fraction(float(w)) for w in problem.penalty_weights] * parts
        stacked = data + (fractions(rows) if len(rows) else [])
        all_weights = weights + of_rows
        zeros = [[Fraction(0)]] * len(of_rows)
        echelon, pivots = reduced(stacked)
        if not pivots:
            return cls(data, target, weights, [[Fraction(0)]] * len(data[0]), [], [], [], parts)
        B = [[row[j] for j in pivots] for row in stacked]
        C = echelon[: len(pivots)]
        weighted = transposed([[w * v for v in row] for w, row in zip(all_weights, B, strict=True)])
        identity = [[Fraction(int(i == j)) for j in range(len(pivots))] for i in range(len(pivots))]
        inverse = solved(times(weighted, B), identity)
        inner = times(inverse, times(weighted, target + zeros))
        Ct = transposed(C)
        x = times(Ct, solved(times(C, Ct), inner))
        return cls(data, target, weights, x, C, pivots, inverse, parts)

    @property
    def rank(self) -> int:
        return len(self.pivots) // self.parts

    def solution(self) -> Array:
        x = np.array([float(row[0]) for row in self.x])
        return x if self.parts == 1 else x[: len(x) // 2] + 1j * x[len(x) // 2 :]

    @property
    def squares(self) -> Fraction:
        """Sum of w |b - A x|^2."""
        fitted = times(self.A, self.x)
        return total(w * (b[0] - f[0]) ** 2 for w, b, f in zip(self.weights, self.b, fitted, strict=True))

    def stderr(self, n_valid: int, kind: str) -> Array:
        """Standard errors: e_j in the row space is a row of the reduced echelon form that is a unit vector."""
        p = len(self.x) // self.parts
        freedom = n_valid - self.rank
        errors = np.full(p, NAN)
        if kind == "relative" and freedom <= 0:
            return errors
        variance = self.squares / freedom if kind == "relative" else Fraction(1)
        for k, j in enumerate(self.pivots):
            if j < p and sum(value != 0 for value in self.echelon[k]) == 1:
                errors[j] = root(variance * self.inverse[k][k])
        return errors

    def centred(self) -> bool:
        """Whether a constant lies in the column space of the rows there."""
        n = len(self.A) // self.parts
        ones = [[Fraction(int(i < n))] for i in range(len(self.A))]
        joined = [row + one for row, one in zip(self.A, ones, strict=True)]
        return len(self.A[0]) not in reduced(joined)[1]

    def r2(self) -> float:
        """1 - (sum of w |r|^2) / (sum of w |b - mean|^2), or of w |b|^2; NaN where that is zero."""
        n = len(self.A) // self.parts
        spread = Fraction(0)
        for part in range(self.parts):
            w, b = self.weights[:n], [row[0] for row in self.b[part * n : (part + 1) * n]]
            mean = total(x * y for x, y in zip(w, b, strict=True)) / total(w) if self.centred() else Fraction(0)
            spread += total(x * (y - mean) ** 2 for x, y in zip(w, b, strict=True))
        return float(1 - self.squares / spread) if spread else NAN


def total(values: Any) -> Fraction:
    return sum(values, Fraction(0))


def root(square: Fraction) -> float:
    """The square root of a rational, correctly rounded but for its last bit, whatever its size."""
    if square == 0:
        return 0.0
    shift = (square.denominator.bit_length() - square.numerator.bit_length() + 128) // 2
    return math.ldexp(float(math.isqrt(int(square * Fraction(4) ** shift))), -shift)


def conditions_of(M: Array) -> tuple[float, ...]:
    """Conditions in the 2-norm of the column-scaled matrix.

    Scales are powers of two of the column norms: a norm that is within rounding of one may be taken for either side,
    and both conditions are right.
    """
    D = column_scales(M)
    norms = np.linalg.norm(M * D, axis=0)
    slack = 4 * len(M) * U
    sides = [(1.0, 2.0) if n < 0.5 * (1 + slack) else (1.0, 0.5) if n > 1 - slack else (1.0,) for n in norms]
    found = [np.linalg.svd(M * D * choice, compute_uv=False) for choice in product(*sides)]
    return tuple(float(s[0] / s[-1]) if s[-1] else math.inf for s in found)


def decisive(M: Array, rank: int, rcond: float | None = None) -> bool:
    """Whether floating point can tell the rank: a clear gap around the cut, on either side."""
    n, p = M.shape
    cut = max(n, p) * EPS if rcond is None else rcond
    s = np.linalg.svd(M * column_scales(M), compute_uv=False)
    return rank == 0 or (s[rank - 1] > 1e3 * cut * s[0] and not (s[rank:] > 0.5 * cut * s[0]).any())


@dataclass(frozen=True)
class Bounds:
    """By how much each output may differ from the answer, before it is rounded to its dtype."""

    solution: Array
    residual_norm: float
    stderr: Array
    r2: float
    condition: float


def bounds(problem: Problem, nan_policy: str, right: Answer, unit: float = U) -> Bounds:
    """Bounds of a pixel that has a solution; `unit` is 2^-24 where a product may be in float32.

    Solution. M = sqrt(W) A over the penalty, c = sqrt(W) b over zeros. Forming them rounds each entry by 2 u, within
    the normwise backward error of a QR or SVD of M, so `least_squares_bound` of (M, c) holds with twice its constant
    (weights spread over many decades are stable rowwise only with pivoting; rank is normwise as well: Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 20.6). Below full rank it is multiplied by at
    most the square of the ratio of the column norms, where they are alike to a factor of 8 and Z^H Z serves as it is
    (`tilewise.linalg.minimum_norm`), and by the cube of the largest pivot's inverse elsewhere. Gram matrices followed
    by one step of refinement end at the same bound: the first error, at most n p GRAM of x, is squared, and what
    remains is the rounding of the residual, u (|c| + |M||x|) carried by M^+, and of M^H r, u cond ||M^+|| ||r||
    (ibid., 20.5). A product in float32 adds gamma_(n + 2) |M^+| |c|.

    Residual norm. The error of x passes through M; each residual rounds by (p + 2) u (|c| + |M||x|), and the sum
    of n squares by n u of itself.

    Standard errors. sigma errs as the residual norm over sqrt(n_valid - rank). Row j of S^+, whose norm is the other
    factor, errs by 2 c u cond relatively (first-order perturbation of a pseudo-inverse: Wedin 1973), and by c GRAM
    where a Gram matrix serves. The condition errs likewise: singular values err by c u of the largest.

    R^2. Sums of squares err by twice their root times the error of the vectors.
    """
    there, _ = rows_there(problem, nan_policy)
    kept = problem.rows(there)
    M, c = kept.stacked()
    n, p = M.shape
    data = len(kept.b)
    x = right.solution
    level = np.ldexp(1.0, exponent(c))
    D = column_scales(M)
    s, Vh = np.linalg.svd(M * D, full_matrices=False)[1:]
    cond = float(s[0] / s[right.rank - 1]) if right.rank else 1.0
    pivoted = amplification(Vh[: right.rank].conj().T, D) ** 3
    ratio = float(D.max() / D.min())
    spread = 1.0 if right.rank == p else ratio**2 if ratio <= 8 else pivoted
    solution = 2 * level * least_squares_bound(M, c / level, x / level, right.rank) * (spread / pivoted)
    if unit > U:
        inverse = D[:, None] * abs(np.linalg.pinv(M * D)) if right.rank == p else abs(np.linalg.pinv(M))
        solution = solution + 2 * (n + 2) * unit * inverse @ abs(c)
    W = np.sqrt(kept.weights)
    moved = abs(M[:data]) @ solution + (p + 2) * unit * (abs(c[:data]) + abs(M[:data]) @ (abs(x) + solution))
    passed = norm(moved)
    residual = passed + (data + 2) * unit * (right.residual_norm + passed)
    relative = 2 * n * p * (4 * U * cond + GRAM) * spread
    freedom = data - right.rank
    sigma = residual / math.sqrt(freedom) if freedom > 0 else 0.0
    error = np.nan_to_num(right.stderr) * relative
    if right.residual_norm > 0:
        error = error + np.nan_to_num(right.stderr) * (residual / right.residual_norm) * (1 + relative)
    else:
        # Nothing is left of the right-hand side: sigma is rounding alone.
        error = error + 2 * sigma * D * abs(np.linalg.pinv(M * D)).sum(1)
    return Bounds(
        solution,
        residual,
        error,
        r2_bound(kept, W, right, residual),
        condition_bound(right, n * p),
    )


def condition_bound(right: Answer, size: int) -> float:
    """Of a matrix of `size` entries and full rank: singular values err by 4 n p u of the largest, or by n p GRAM."""
    cond = max(right.conditions)
    return cond * size * (4 * U * cond + GRAM) if math.isfinite(cond) else 0.0


def r2_bound(kept: Problem, W: Array, right: Answer, residual: float) -> float:
    c = W * kept.b
    level = np.ldexp(1.0, exponent(c))
    mean = 0.0
    if right.centred:
        mean = (kept.weights * kept.b).sum() / kept.weights.sum()
    n = len(c)
    total = norm(W * (kept.b - mean)) / level
    # The mean rounds by (n + 2) u of the mean size, and so does each deviation from it.
    moved = norm(2 * (n + 2) * U * W * (abs(kept.b) + np.average(abs(kept.b), weights=kept.weights))) / level
    left, error = right.residual_norm / level, residual / level
    if not total > 4 * moved:
        return math.inf
    top, bottom = 2 * left * error + error**2, 2 * total * moved + moved**2
    return float(top / total**2 + 2 * (left / total) ** 2 * bottom / total**2 + 8 * U * (1 + (left / total) ** 2))


def exponent(x: Array) -> int:
    """A power of two near the largest entry."""
    return int(np.frexp(np.abs(x).max(initial=0.0))[1])


def norm(x: Array) -> float:
    """The 2-norm without overflow."""
    level = np.ldexp(1.0, exponent(x))
    return float(np.linalg.norm(x / level) * level)
