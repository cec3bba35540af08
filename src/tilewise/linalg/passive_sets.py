"""Least squares on a set of the unknowns, the others held: what an active-set method does at every step.

The problem is min ||R x - c|| for p unknowns, after compression by QR. On a set F of unknowns, with the others held at
values whose part of c has been taken away,

    x_F = argmin ||R_F x_F - c||,   or, where the unknowns sum to s,   x_F = G c + s h,

the sum eliminated through one unknown of F, the pivot k: x_k = s - sum of the others, whose columns become r_j - r_k.
The pivot is the one of smallest column, so that no difference loses the digits of its own column. G has rows that
sum to zero and h to one; without a sum h is zero and there is no pivot.

Every set is solved by orthogonal factors of R_F itself with columns scaled by powers of two, so with the error of a
backward stable solver. `SharedSets` factors each set once for all pixels of one R, which is the idea of Van Benthem
and Keenan (Fast algorithm for the solution of large-scale non-negativity-constrained least squares problems, Journal of
Chemometrics 18, 2004): all sets beforehand where there are few, else those that occur. `OwnSets` serves pixels that
each have an R.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tilewise.linalg.batching import MOST_ELEMENTS, MOST_IN_TABLE
from tilewise.linalg.orthogonal import back_substitute, orthogonalise, project
from tilewise.linalg.scaling import euclidean_norm, exponent_of, power_of_two, scaled_by

U = 2.0**-53


class Sets(Protocol):
    """Solves on sets of unknowns, for the pixels of a batch."""

    def take(self, pixels: torch.Tensor) -> Sets:
        """The same for chosen pixels."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """R x (p, w)."""

    def gradient(self, r: torch.Tensor) -> torch.Tensor:
        """R^T r (p, w)."""

    def solve(
        self, free: torch.Tensor, c: torch.Tensor, total: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Solutions (p, w), 0 off `free` (p, w), and the mask (w,) of sets without dependent columns.

        `total` (w,) is what the free unknowns sum to, or None where they may sum to anything.
        """


@dataclass(frozen=True)
class Factored:
    """Factors of u sets: G (p p, u), h (p, u), the pivots (u,), and which have no dependent columns (u,)."""

    G: torch.Tensor
    h: torch.Tensor
    pivot: torch.Tensor
    independent: torch.Tensor


@dataclass(frozen=True)
class SharedSets:
    """Sets of unknowns of one R (p, p) that all pixels share.

    Attributes
    ----------
    R, tolerance
        The matrix, and the pivot beside which a column counts as dependent, as part of the norm of its set.
    order
        (p,) norms of the columns by size: the pivot of a set is its member of lowest place.
    sum_known
        Whether the sum of the unknowns is prescribed.
    table
        Factors of all 2^p sets, by their bits, where p is at most `MOST_IN_TABLE`.
    """

    R: torch.Tensor
    tolerance: float
    order: torch.Tensor
    sum_known: bool
    table: Factored | None

    @classmethod
    def of(
        cls, R: torch.Tensor, *, tolerance: float, sum_known: bool
    ) -> tuple[SharedSets, tuple[torch.Tensor, torch.Tensor] | None]:
        """Sets of R (p, p); and where there is a table its sets (p, 2^p) and their projectors (2^p, p, p)."""
        p = len(R)
        order = size_order(R.unsqueeze(-1)).squeeze(-1)
        if p > MOST_IN_TABLE:
            return cls(R, tolerance, order, sum_known, None), None
        codes = torch.arange(2**p, device=R.device)
        every = (codes >> torch.arange(p, device=R.device).unsqueeze(-1)) & 1 == 1
        table, projectors = factored_sets(R, every, order, tolerance, sum_known=sum_known)
        return cls(R, tolerance, order, sum_known, table), (every, projectors)

    def take(self, pixels: torch.Tensor) -> SharedSets:
        """The same: R serves every pixel."""
        return self

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """R x (p, w)."""
        return self.R @ x

    def gradient(self, r: torch.Tensor) -> torch.Tensor:
        """R^T r (p, w)."""
        return self.R.T @ r

    def solve(
        self, free: torch.Tensor, c: torch.Tensor, total: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Solutions on `free`, and which sets have no dependent columns."""
        if self.table is not None:
            return _solved(self.table, _bits(free), c, total)
        parts = [self._solve_part(free[:, part], c[:, part], _part(total, part)) for part in _parts(c)]
        z, independent = zip(*parts, strict=True)
        return torch.cat(z, 1), torch.cat(independent)

    def _solve_part(
        self, free: torch.Tensor, c: torch.Tensor, total: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sets, code = torch.unique(free, dim=1, return_inverse=True)
        factors, _ = factored_sets(self.R, sets, self.order, self.tolerance, sum_known=self.sum_known)
        return _solved(factors, code, c, total)


@dataclass(frozen=True)
class OwnSets:
    """Sets of unknowns where each pixel has its own R (p, p, w); the rest is as in `SharedSets`."""

    R: torch.Tensor
    tolerance: torch.Tensor
    order: torch.Tensor

    @classmethod
    def of(cls, R: torch.Tensor, *, tolerance: torch.Tensor) -> OwnSets:
        """Sets of R (p, p, w), with a tolerance (w,) for each pixel."""
        return cls(R, tolerance, size_order(R))

    def take(self, pixels: torch.Tensor) -> OwnSets:
        """The same for chosen pixels."""
        return OwnSets(self.R[..., pixels], self.tolerance[pixels], self.order[:, pixels])

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """R x (p, w)."""
        return (self.R * x).sum(1)

    def gradient(self, r: torch.Tensor) -> torch.Tensor:
        """R^T r (p, w)."""
        return (self.R * r.unsqueeze(1)).sum(0)

    def solve(
        self, free: torch.Tensor, c: torch.Tensor, total: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Solutions on `free`, and which sets have no dependent columns."""
        columns, live, places, exponent, pivot = packed(
            self.R, free, self.order, self.tolerance, sum_known=total is not None
        )
        width = columns.shape[1]
        rest = c.clone()
        if total is not None:
            rest -= total * self.R.gather(1, pivot.expand(len(self.R), 1, -1)).squeeze(1)
        if width:
            triangle = orthogonalise(columns)
            independent = independence(triangle, live, self.tolerance)
            solved = back_substitute(triangle, project(columns, rest))
            solved = scaled_by(solved, -exponent)
            z = torch.zeros_like(c).scatter_(0, places, solved * live)
        else:
            z, independent = torch.zeros_like(c), torch.ones_like(free[0])
        if total is not None:
            balance(z, pivot, total)
        return z, independent


def size_order(R: torch.Tensor) -> torch.Tensor:
    """Places (p, w) of the columns of R (p, p, w) in ascending order of norm; of equal ones the first comes first."""
    norm = exponent_of(euclidean_norm(R, dim=0))
    zero = (R == 0).all(0)
    return torch.where(zero, torch.iinfo(torch.int32).min, norm).argsort(dim=0, stable=True).argsort(dim=0)


def balance(z: torch.Tensor, pivot: torch.Tensor, total: torch.Tensor | float) -> None:
    """Give what is missing to `total` to the pivot: the sum is then `total` but for its own rounding."""
    z.scatter_add_(0, pivot.view(1, -1), (total - z.sum(0)).unsqueeze(0))


def packed(
    R: torch.Tensor, free: torch.Tensor, order: torch.Tensor, tolerance: torch.Tensor | float, *, sum_known: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The columns of each set side by side, scaled by powers of two.

    Returns the columns (p, f, w), zero where a set has fewer; the mask (f, w) of those there; their places (f, w)
    among the unknowns; their exponents (f, w); and the pivots (1, w). A difference of columns that is within the
    tolerance of what it is a difference of is zero: scaled up, its rounding would pass for a direction.
    """
    p = len(free)
    pivot = torch.where(free, order, p).argmin(0, keepdim=True)
    if sum_known:
        free = free.scatter(0, pivot, False)
    count = free.sum(0)
    width = int(count.max())
    places = (~free).to(torch.uint8).argsort(dim=0, stable=True)[:width]
    live = torch.arange(width, device=R.device).unsqueeze(-1) < count
    columns = R.expand(p, p, free.shape[1]).gather(1, places.expand(p, *places.shape))
    if sum_known:
        minus = R.expand(p, p, free.shape[1]).gather(1, pivot.expand(p, *pivot.shape))
        size = euclidean_norm(columns, dim=0) + euclidean_norm(minus, dim=0)
        columns = columns - minus
        columns = columns * (euclidean_norm(columns, dim=0) > tolerance * size)
    columns = columns * live
    exponent = exponent_of(euclidean_norm(columns, dim=0)) if width else places
    return scaled_by(columns, -exponent) if width else columns, live, places, exponent, pivot


def independence(triangle: torch.Tensor, live: torch.Tensor, tolerance: torch.Tensor | float) -> torch.Tensor:
    """Whether the diagonal of each R (f, f, w) stays above the tolerance times its norm, on the columns there."""
    diagonal = triangle.diagonal(dim1=0, dim2=1).T.abs()
    norm = (triangle * triangle).sum((0, 1)).sqrt()
    return ((diagonal > tolerance * norm) | ~live).all(0)


def factored_sets(
    R: torch.Tensor, sets: torch.Tensor, order: torch.Tensor, tolerance: float, *, sum_known: bool
) -> tuple[Factored, torch.Tensor]:
    """Factors of sets (p, u) of the columns of R (p, p) by Householder QR, and their projectors I - Q Q^T (u, p, p)."""
    p, u = sets.shape
    columns, live, places, exponent, pivot = packed(
        R.unsqueeze(-1), sets, order.unsqueeze(-1), tolerance, sum_known=sum_known
    )
    width = columns.shape[1]
    G = R.new_zeros(u, p, p)
    projectors = torch.eye(p, dtype=R.dtype, device=R.device).repeat(u, 1, 1)
    independent = torch.ones(u, dtype=torch.bool, device=R.device)
    if width:
        Q, triangle = torch.linalg.qr(columns.permute(2, 0, 1))
        independent = independence(triangle.permute(1, 2, 0), live, tolerance)
        inner = Q * live.T.unsqueeze(1)
        projectors -= inner @ inner.mT
        # Columns that are not there come last: a unit diagonal leaves the others as they are.
        fill = (~live.T | ~independent.unsqueeze(-1)).to(R.dtype).diag_embed()
        inverse = torch.linalg.solve_triangular(triangle + fill, Q.mT, upper=True)
        inverse = inverse * power_of_two(-exponent.T).unsqueeze(-1) * (live.T & independent.unsqueeze(-1)).unsqueeze(-1)
        G.scatter_(1, places.T.unsqueeze(-1).expand(u, width, p), inverse)
    h = R.new_zeros(p, u)
    pivot = pivot.squeeze(0)
    if sum_known:
        G.scatter_(1, pivot.view(u, 1, 1).expand(u, 1, p), -G.sum(1, keepdim=True))
        h = -torch.einsum("uij,ju->iu", G, R[:, pivot])
        h.scatter_add_(0, pivot.unsqueeze(0), h.new_ones(1, u))
        h = h * sets.any(0)
        G = G * sets.any(0).view(u, 1, 1)
    return Factored(G.permute(1, 2, 0).reshape(p * p, u).contiguous(), h, pivot, independent), projectors


def _bits(free: torch.Tensor) -> torch.Tensor:
    """The number (w,) of each set (p, w): unknown j is bit j."""
    code = free[0].long()
    for j in range(1, len(free)):
        code.add_(free[j], alpha=1 << j)
    return code


def _solved(
    factors: Factored, code: torch.Tensor, c: torch.Tensor, total: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solutions with the factors of each pixel's own set, in index order, and which sets are independent."""
    z = products(factors.G, code, c)
    if total is not None:
        z.add_(factors.h[:, code] * total)
        balance(z, factors.pivot[code], total)
    return z, factors.independent[code]


def products(G: torch.Tensor, code: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The product (p, w) of c (p, w) and the matrix of each pixel's own set, of u (p p, u)."""
    parts = [applied(gathered(G, code[part]), c[:, part]) for part in _parts(c)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def gathered(G: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """The matrices (p p, w) of each pixel's own set, of u (p p, u)."""
    return G.gather(1, code.expand(len(G), -1))


def applied(own: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The product (p, w) of matrices (p p, w) and c (p, w), in index order by elementwise operations."""
    p, w = c.shape
    columns = own.view(p, p, w).unbind(1)
    rows = c.unbind(0)
    z = columns[0] * rows[0]
    for column, row in zip(columns[1:], rows[1:], strict=True):
        z.addcmul_(column, row)
    return z


def _parts(c: torch.Tensor) -> list[slice]:
    """Pixels for which factors of their own are few enough to be gathered at a time."""
    p, w = c.shape
    step = max(64, MOST_ELEMENTS // (p * p) // 64 * 64)
    return [slice(start, min(start + step, w)) for start in range(0, w, step)]


def _part(x: torch.Tensor | None, part: slice) -> torch.Tensor | None:
    return None if x is None else x[part]
