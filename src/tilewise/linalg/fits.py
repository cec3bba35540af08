"""Least-squares fits of pixels that share one design, or have a weighted design each, and what is said of them.

A fit solves min ||sqrt(W) (A x - b)||^2 + ||L x||^2 for b of any kind, and knows rank, condition and spread: the norms
of the rows of the pseudo-inverse, whose squares are the variances of the unknowns for equations of variance one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from tilewise.linalg.factors import Factors, factor, factor_svd
from tilewise.linalg.rows import Panel
from tilewise.linalg.scaling import batch_last, euclidean_norm, power_of_two, scaled_by


class Fit(Protocol):
    """What the pixels of one panel have in common: how their b is fitted."""

    @property
    def rank(self) -> torch.Tensor:
        """(w,) or (1,) int64."""

    @property
    def status(self) -> torch.Tensor:
        """(w,) or (1,) uint8."""

    @property
    def cond(self) -> torch.Tensor:
        """(w,) or (1,) condition of the matrix cut at its rank; an upper bound where it was not asked for."""

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Solutions (p, w) for b (n, w), which is 0 where a row is not there."""

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sqrt(W) (b - A x), (n, w)."""

    def outside(self, b: torch.Tensor) -> torch.Tensor:
        """(w,) norms of what of sqrt(W) b lies outside the column space of sqrt(W) A, without a penalty.

        For DesignFit and PatternFit by the orthonormal basis: the pseudo-inverse as one matrix would leave u cond of b.
        """

    def spread(self) -> torch.Tensor:
        """(p, w) or (p, 1) norms of the rows of the pseudo-inverse; NaN where the unknown cannot be estimated."""


class _Factored:
    """A fit with the factors of one stacked design, or of one a pixel: its last axis is 1 or w."""

    factors: Factors

    @property
    def rank(self) -> torch.Tensor:
        """(1,) or (w,)."""
        return self.factors.rank

    @property
    def status(self) -> torch.Tensor:
        """(1,) or (w,)."""
        return self.factors.status

    @property
    def cond(self) -> torch.Tensor:
        """(1,) or (w,)."""
        return self.factors.cond

    def spread(self) -> torch.Tensor:
        """(p, 1) or (p, w)."""
        return _spread(self.factors)


@dataclass(frozen=True)
class DesignFit(_Factored):
    """One design for all pixels, whose rows are all there.

    Attributes
    ----------
    A
        (n, p).
    pseudoinverse
        (p, n) of the stacked design, for the rows of A.
    factors
        Of the one stacked design.
    """

    A: torch.Tensor
    pseudoinverse: torch.Tensor
    factors: Factors

    @classmethod
    def of(cls, A: torch.Tensor, penalty: torch.Tensor | None, rcond: float | None) -> DesignFit:
        """Factor A (n, p) with the rows of the penalty (q, p) below.

        The pseudo-inverse is the product of the SVD's factors: rounding that product costs gamma_k |left||basis^H|,
        of the order of u ||P||, so P b keeps the bound of the factors (see `factors`).
        """
        stacked = A if penalty is None else torch.cat([A, penalty.to(A.dtype)])
        factors = factor_svd(stacked.unsqueeze(-1), rcond)
        return cls(A, factors.pseudoinverse()[0, :, : len(A)].contiguous(), factors)

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Solutions (p, w) of b (n, w): within gamma_n |P||b| of the exact product."""
        return self.pseudoinverse @ b

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """b - A x."""
        return torch.addmm(b, self.A, x, alpha=-1)

    def outside(self, b: torch.Tensor) -> torch.Tensor:
        """Norms (w,) of b less its projection."""
        return euclidean_norm(_outside(self.factors, b.unsqueeze(0))[0], dim=0)


@dataclass
class Patterns:
    """The gap patterns that were factored last: neighbouring panels of a tile often have the same.

    Attributes
    ----------
    masks
        (n, k) the patterns; None before there are any.
    factors, pseudoinverses
        Of the stacked designs, and (k, p, n) for the rows of A.
    """

    masks: torch.Tensor | None = None
    factors: Factors | None = None
    pseudoinverses: torch.Tensor | None = None

    def factored(
        self, panel: Panel, A: torch.Tensor, penalty: torch.Tensor | None, rcond: float | None, *, want_cond: bool
    ) -> tuple[Factors, torch.Tensor]:
        """Factors and pseudo-inverses for one pixel of each pattern; all but the panel is the same at each call."""
        known = self.masks is not None and panel.weights is not None and torch.equal(self.masks, panel.weights)
        if not known or self.factors is None or self.pseudoinverses is None:
            self.masks = panel.weights
            self.factors = OwnFit.of(panel, A, penalty, rcond, want_cond=want_cond).factors
            self.pseudoinverses = self.factors.pseudoinverse()[:, :, : len(A)].contiguous()
        return self.factors, self.pseudoinverses


@dataclass(frozen=True)
class PatternFit:
    """One design of which pixels lack rows by a few patterns; each pattern is factored once.

    Attributes
    ----------
    A, weights
        (n, p), and (n, w) zeros and ones.
    pseudoinverses
        (k, p, n) of the stacked designs of all patterns, for the rows of A.
    factors
        Of these.
    which, order, ends
        (w,) the pattern of each pixel, the pixels by pattern, and where each pattern ends among these.
    """

    A: torch.Tensor
    weights: torch.Tensor
    pseudoinverses: torch.Tensor
    factors: Factors
    which: torch.Tensor
    order: torch.Tensor
    ends: tuple[int, ...]

    @classmethod
    def of(
        cls,
        panel: Panel,
        A: torch.Tensor,
        penalty: torch.Tensor | None,
        rcond: float | None,
        patterns: tuple[torch.Tensor, torch.Tensor],
        known: Patterns,
        *,
        want_cond: bool,
    ) -> PatternFit:
        """Factor the designs of the patterns of a panel: the number of each pixel, and a pixel of each."""
        which, first = patterns
        assert panel.weights is not None
        factors, P = known.factored(panel.take(first), A, penalty, rcond, want_cond=want_cond)
        ends = tuple(torch.bincount(which, minlength=len(first)).cumsum(0).tolist())
        return cls(A, panel.weights, P, factors, which, torch.argsort(which, stable=True), ends)

    @property
    def rank(self) -> torch.Tensor:
        """(w,)."""
        return self.factors.rank[self.which]

    @property
    def status(self) -> torch.Tensor:
        """(w,)."""
        return self.factors.status[self.which]

    @property
    def cond(self) -> torch.Tensor:
        """(w,)."""
        return self.factors.cond[self.which]

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Solutions (p, w) of b (n, w): one product a pattern, within gamma_n |P||b| of the exact one."""
        x = b.new_empty(self.A.shape[1], b.shape[1])
        for P, (start, end) in zip(self.pseudoinverses, pairwise((0, *self.ends)), strict=True):
            where = self.order[start:end]
            x[:, where] = P @ b.index_select(1, where)
        return x

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """b - A x, 0 where a row is not there."""
        return torch.addmm(b, self.A, x, alpha=-1).mul_(self.weights)

    def outside(self, b: torch.Tensor) -> torch.Tensor:
        """Norms (w,) of b less its projection."""
        norms = torch.empty_like(self.weights[0])
        for k, (start, end) in enumerate(pairwise((0, *self.ends))):
            where = self.order[start:end]
            factors = self.factors.take(slice(k, k + 1))
            norms[where] = euclidean_norm(_outside(factors, b[:, where].unsqueeze(0))[0], dim=0)
        return norms

    def spread(self) -> torch.Tensor:
        """(p, w)."""
        return _spread(self.factors)[:, self.which]


@dataclass(frozen=True)
class OwnFit(_Factored):
    """A weighted design of its own for each pixel.

    Attributes
    ----------
    A
        (n, p) or (n, p, w).
    root
        (n, w) square roots of the weights; None for ones.
    factors
        Of the stacked designs of all pixels.
    """

    A: torch.Tensor
    root: torch.Tensor | None
    factors: Factors

    @classmethod
    def of(
        cls, panel: Panel, A: torch.Tensor, penalty: torch.Tensor | None, rcond: float | None, *, want_cond: bool
    ) -> OwnFit:
        """Factor the designs of a panel, from its own A or the one that all share."""
        root = None if panel.weights is None else panel.weights if panel.binary else panel.weights.sqrt()
        matrices = A if A.dim() == 3 else A.unsqueeze(-1)
        matrices = matrices if root is None else matrices * root.unsqueeze(1)
        matrices = matrices.expand(-1, -1, panel.b.shape[1])
        if penalty is not None:
            scale = power_of_two(-panel.exponent // 2)
            matrices = torch.cat([matrices, penalty.to(matrices.dtype).unsqueeze(-1) * scale])
        extra = 0 if penalty is None else len(penalty)
        return cls(A, root, factor(matrices, rcond, rows=panel.count + extra, want_cond=want_cond))

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Solutions (p, w) of b (n, w)."""
        rhs = (b if self.root is None else b * self.root).t().unsqueeze(1)
        n = rhs.shape[-1]
        # Row vectors, so that the basis (w, n, k) is read as it lies: (rhs basis.conj()) left^T.
        y = torch.bmm(rhs, self.factors.basis[:, :n].conj())
        x = torch.bmm(y, self.factors.left.mT)[:, 0]
        return scaled_by(x, -self.factors.exponent).t().contiguous()

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sqrt(W) (b - A x)."""
        Ax = self.A @ x if self.A.dim() == 2 else torch.einsum("npw,pw->nw", self.A, x)
        r = b - Ax
        return r if self.root is None else r * self.root

    def outside(self, b: torch.Tensor) -> torch.Tensor:
        """Norms (w,) of sqrt(W) b less its projection."""
        rows = b if self.root is None else b * self.root
        return euclidean_norm(_outside(self.factors, rows.t().unsqueeze(-1))[..., 0], dim=1)


def _outside(factors: Factors, b: torch.Tensor) -> torch.Tensor:
    """b (G, n, w) less its projections on the columns of the bases that count: the first, as many as the rank."""
    basis = factors.basis[:, : b.shape[1]]
    counts = torch.arange(basis.shape[-1], device=b.device) < factors.rank.unsqueeze(-1)
    basis = basis * counts.unsqueeze(1)
    return b - torch.bmm(basis, torch.bmm(basis.mH, b))


def _spread(factors: Factors) -> torch.Tensor:
    """Row norms (p, G) of the pseudo-inverses: those of `left`, for the columns of the basis are orthonormal."""
    norms = scaled_by(euclidean_norm(factors.left, dim=-1), -factors.exponent)
    return batch_last(norms.masked_fill(~factors.estimable, math.nan))
