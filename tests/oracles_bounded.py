"""Exact minimisers of small bounded least-squares problems: every pattern of bounds, in rational arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from oracles_systems import Matrix, fractions, reduced, solved, times, transposed

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Minimum:
    """One minimiser as rationals and floats, the least sum of squares, and whether there is no other."""

    exact: list[Fraction]
    x: Array
    squares: Fraction
    unique: bool


def exact_minimum(A: Array, b: Array, upper: Array | None = None, *, sum_to_one: bool = False) -> Minimum | None:
    """The minimiser of ||A x - b|| with 0 <= x <= upper, and sum x = 1 where asked; None where nothing is feasible.

    Some minimiser has independent columns for its unknowns between the bounds (their differences, where the sum is
    known), and solves the least squares on them; so the best of all feasible points of that kind is one.
    """
    rows, right = fractions(A), [Fraction(float(v)) for v in b]
    bounds = [None if upper is None or np.isinf(v) else Fraction(float(v)) for v in _uppers(upper, A.shape[1])]
    best: tuple[Fraction, list[Fraction]] | None = None
    for pattern in product(("low", "free", "high"), repeat=A.shape[1]):
        x = _point(rows, right, bounds, pattern, sum_to_one=sum_to_one)
        if x is None or not _feasible(x, bounds):
            continue
        squares = sum((r * r for r in _residual(rows, right, x)), Fraction(0))
        if best is None or squares < best[0]:
            best = squares, x
    if best is None:
        return None
    squares, x = best
    unique = _unique(rows, right, bounds, x, sum_to_one=sum_to_one)
    return Minimum(x, np.array([float(v) for v in x]), squares, unique)


def _uppers(upper: Array | None, p: int) -> Array:
    return np.full(p, np.inf) if upper is None else np.asarray(upper)


def _point(
    rows: Matrix, right: list[Fraction], bounds: list[Fraction | None], pattern: tuple[str, ...], *, sum_to_one: bool
) -> list[Fraction] | None:
    x = [Fraction(0)] * len(pattern)
    for j, side in enumerate(pattern):
        if side == "high":
            bound = bounds[j]
            if bound is None:
                return None
            x[j] = bound
    free = [j for j, side in enumerate(pattern) if side == "free"]
    if sum_to_one:
        rest = 1 - sum(x, Fraction(0))
        if not free:
            return x if rest == 0 else None
        last = free.pop()
        x[last] = rest
        columns = [[row[j] - row[last] for j in free] for row in rows]
    else:
        columns = [[row[j] for j in free] for row in rows]
    if not free:
        return x
    gram = times(transposed(columns), columns)
    if len(reduced(gram)[1]) < len(free):
        return None
    residual = [[r] for r in _residual(rows, right, x)]
    step = solved(gram, times(transposed(columns), residual))
    for j, (value,) in zip(free, step, strict=True):
        x[j] = value
        if sum_to_one:
            x[last] -= value
    return x


def _feasible(x: list[Fraction], bounds: list[Fraction | None]) -> bool:
    return all(v >= 0 and (bound is None or v <= bound) for v, bound in zip(x, bounds, strict=True))


def _residual(rows: Matrix, right: list[Fraction], x: list[Fraction]) -> list[Fraction]:
    return [
        v - sum((a * y for a, y in zip(row, x, strict=True)), Fraction(0)) for row, v in zip(rows, right, strict=True)
    ]


def _unique(
    rows: Matrix, right: list[Fraction], bounds: list[Fraction | None], x: list[Fraction], *, sum_to_one: bool
) -> bool:
    """Whether the columns of unknowns that no multiplier holds at a bound are independent."""
    residual = [[r] for r in _residual(rows, right, x)]
    g = [row[0] for row in times(transposed(rows), residual)]
    inside = [j for j, v in enumerate(x) if v > 0 and (bounds[j] is None or v < bounds[j])]  # type: ignore[operator]
    movable = [j for j in range(len(x)) if bounds[j] is None or bounds[j] > 0]  # type: ignore[operator]
    if not sum_to_one:
        level = Fraction(0)
    elif inside:
        level = g[inside[0]]
    else:
        level = _level(g, x, bounds)
    loose = [j for j in movable if g[j] == level]
    if not loose:
        return True
    columns = [[row[j] for j in loose] for row in rows]
    if sum_to_one:
        columns.append([Fraction(1)] * len(loose))
    return len(reduced(columns)[1]) == len(loose)


def _level(g: list[Fraction], x: list[Fraction], bounds: list[Fraction | None]) -> Fraction:
    """The multiplier of the sum at a vertex: the least that any unknown above zero has."""
    return min(value for value, v in zip(g, x, strict=True) if v > 0)
