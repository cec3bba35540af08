"""Fits of pixels that share one design and have rows or weights of their own, by Gram matrices of its Q.

The shared design, column-scaled, is factored once: S = A 2^-e = Q R with orthonormal Q. A pixel with weights W solves

    G y = Q^H W b,   G = Q^H W Q,   R z = y,   x = 2^-e z,

and then once more for what is left over, W (b - S z): one step of refinement with the true residual. That is the
method of corrected seminormal equations, on Q in place of A (Bjorck, Stability analysis of the method of seminormal
equations for linear least squares problems, Linear Algebra and its Applications 88/89, 1987): as long as
cond(sqrt(W) Q)^2 u is well below one, a corrected solution is as accurate as that of a backward stable method. The
condition of A itself is not squared: it enters through R alone, which is as well known as any stable method knows it.

A penalty (q, p), ||L x||^2, is more rows of S, which every pixel has with weight one.

Which pixels are served. All Gram matrices of a panel are one product, of the products of columns of Q with the
weights. Let H be G scaled to a unit diagonal. Its determinant d = prod L_kk^2 / G_kk comes with the factor, and

    cond(H) <= 4 / d

(Merikoski, Urpala, Virtanen, Tam and Uhlig, A best upper bound for the 2-norm condition number of a matrix, Linear
Algebra and its Applications 254, 1997: (1 + s) / (1 - s) with s = sqrt(1 - d), for a trace of p). So d tells whether
cond(H) u <= 1e-10, the limit for this method. With g the largest over the smallest diagonal of G, cond(sqrt(W) Q)^2 is
at most 4 g / d. By van der Sluis (Condition numbers and equilibration of matrices, Numerische Mathematik 14, 1969)
scaling columns to equal norm is within sqrt(p) of the best scaling, and to norms in [1/2, 1) within 2 sqrt(p):

    cond(S) / (2 sqrt(p) cond(sqrt(W) Q)) <= cond(pixel) <= 2 sqrt(p) cond(S) cond(sqrt(W) Q),

with cond(pixel) that of the pixel's own column-scaled matrix.

Where these bounds, with a factor of two for what was rounded, prove the full rank, and prove that the condition is
above 1 / sqrt(eps) or that it is not, the pixel is served. The others are left to QR and the SVD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewise.fields import Status
from tilewise.linalg.batching import residuals_at_once
from tilewise.linalg.cholesky import Cholesky, cholesky, packed_index
from tilewise.linalg.factors import EPS, ILL_CONDITIONED, Factors
from tilewise.linalg.rows import Panel
from tilewise.linalg.scaling import batch_first, euclidean_norm, exponent_of, power_of_two, scaled_by

#: Largest cond(sqrt(W) Q)^2 eps that this method serves: the design's limit, at which one step of refinement still
#: gains ten digits.
LIMIT = 1e-10


@dataclass(frozen=True)
class Gram:
    """What Gram matrices are made of; A is the shared design (n, p) of full rank, with a penalty (q, p) or without.

    Attributes
    ----------
    S
        (n, p) column-scaled A.
    Qh
        (p, n) conjugate transpose of the rows of Q that belong to A.
    products
        (p (p + 1) / 2, n): the entries of Q^H W Q are this times the weights.
    back
        (p, p) R^-1.
    exponent
        (p,) int64: A = S 2^exponent.
    cond
        Of S, with the penalty.
    penalty
        (q, p) rows of S that belong to the penalty, (p (p + 1) / 2, 1) their Gram matrix, and (p, p) the product of
        their part of Q^H with them; None without one.
    """

    S: torch.Tensor
    Qh: torch.Tensor
    products: torch.Tensor
    back: torch.Tensor
    exponent: torch.Tensor
    cond: float
    penalty: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None

    @classmethod
    def of(cls, A: torch.Tensor, penalty: torch.Tensor | None, factors: Factors) -> Gram:
        """From the factors (one matrix, full rank) of the design with the penalty below it."""
        n, exponent, basis = len(A), factors.exponent[0], factors.basis[0]
        i, k = packed_index(A.shape[1])
        products = (basis[:, i].conj() * basis[:, k]).T
        rest = None
        if penalty is not None:
            scaled = scaled_by(penalty.to(A.dtype), -exponent)
            rest = (scaled, products[:, n:].sum(1, keepdim=True), basis[n:].mH @ scaled)
        return cls(
            S=scaled_by(A, -exponent),
            Qh=basis[:n].mH.resolve_conj().contiguous(),
            products=products[:, :n].resolve_conj().contiguous(),
            back=factors.left[0],
            exponent=exponent,
            cond=float(factors.cond),
            penalty=rest,
        )

    def fit(self, panel: Panel, rcond: float | None) -> GramFit:
        """Fits of a panel with weights, and which of them are to be trusted."""
        assert panel.weights is not None
        return GramFit(self, panel, *self._judged(panel.weights, panel.count, panel.exponent, rcond))

    def _judged(
        self, weights: torch.Tensor, count: torch.Tensor, exponent: torch.Tensor, rcond: float | None
    ) -> tuple[Cholesky, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Factors of Gram matrices for weights (n, k); bounds of their conditions, statuses, and which are served."""
        p, size = len(self.Qh), len(self.products)
        extra = 0 if self.penalty is None else len(self.penalty[0])
        table = torch.empty(size + p, weights.shape[1], dtype=self.products.dtype, device=weights.device)
        torch.mm(self.products, weights.to(table.dtype), out=table[:size])
        if self.penalty is not None:
            table[:size] += self.penalty[1] * power_of_two(-exponent)
        diagonal = table[self._diagonal()]
        diagonal = diagonal.real if diagonal.is_complex() else diagonal
        graded = diagonal.amax(0) / diagonal.amin(0)
        factors = cholesky(table)
        apart = 4 * (p * graded / factors.share).sqrt()
        upper, lower = self.cond * apart, self.cond / apart
        well, ill = upper < ILL_CONDITIONED / 2, lower > 2 * ILL_CONDITIONED
        rows = count + extra
        cut = rows.clamp(min=p) * EPS if rcond is None else rcond
        # The smallest eigenvalue of G, beside the largest weight, and of G scaled to a unit diagonal: see above.
        safe = factors.share * diagonal.amin(0).clamp(max=1) >= 4 * EPS / LIMIT
        served = safe & (upper * cut < 0.5) & (well | ill) & (rows >= p)
        status = torch.where(ill, int(Status.ILL_CONDITIONED), int(Status.OK)).to(torch.uint8)
        return factors, upper, status, served

    def _diagonal(self) -> list[int]:
        """Rows of the packed triangle that hold the diagonal."""
        i, k = packed_index(len(self.Qh))
        return [place for place, (a, b) in enumerate(zip(i, k, strict=True)) if a == b]


@dataclass(frozen=True)
class GramFit:
    """Fits of the pixels of one panel; those that are not `served` (w,) are not to be used."""

    gram: Gram
    panel: Panel
    factors: Cholesky
    cond: torch.Tensor
    status: torch.Tensor
    served: torch.Tensor

    @property
    def rank(self) -> torch.Tensor:
        """(w,): full."""
        return torch.full_like(self.panel.count, len(self.gram.Qh))

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Solutions (p, w) of b (n, w), once refined."""
        gram = self.gram
        z = gram.back @ self.factors.solve(gram.Qh @ self._weighted(b))
        rhs = self._projected_residual(b, z)
        if gram.penalty is not None:
            rhs -= (gram.penalty[2] @ z) * power_of_two(-self.panel.exponent)
        z = torch.addmm(z, gram.back, self.factors.solve(rhs))
        return scaled_by(z, -gram.exponent.unsqueeze(-1))

    def _projected_residual(self, b: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Q^H W (b - S z) (p, w), a few pixels at a time, whose residuals stay in cache."""
        gram, weights = self.gram, self._weights(b)
        n, w = b.shape
        step = residuals_at_once(n)
        scratch, found = b.new_empty(n * step), torch.empty_like(z)
        for start in range(0, w, step):
            part = slice(start, min(start + step, w))
            rest = scratch[: n * (part.stop - start)].view(n, -1)
            torch.addmm(b[:, part], gram.S, z[:, part], alpha=-1, out=rest)
            rest *= weights[:, part]
            found[:, part] = gram.Qh @ rest
        return found

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sqrt(W) (b - A x)."""
        z = scaled_by(x, self.gram.exponent.unsqueeze(-1))
        weights = self._weights(b)
        return torch.addmm(b, self.gram.S, z, alpha=-1) * (weights if self.panel.binary else weights.sqrt())

    def outside(self, b: torch.Tensor) -> torch.Tensor:
        """Norms (w,) of sqrt(W) b less its projection: what a refined fit leaves."""
        return euclidean_norm(self.residual(b, self.solve(b)), dim=0)

    def spread(self) -> torch.Tensor:
        """(p, w)."""
        norms = euclidean_norm(self._inverse(), dim=0)
        return scaled_by(norms, -self.gram.exponent.unsqueeze(-1))

    def exact_cond(self) -> torch.Tensor:
        """(w,) conditions by singular values of the inverse of each pixel's column-scaled R."""
        gram, weights = self.gram, self._weights(self.gram.S)
        squares = (gram.S.abs() ** 2).T @ weights
        if gram.penalty is not None:
            squares += (gram.penalty[0].abs() ** 2).sum(0).unsqueeze(-1) * power_of_two(-self.panel.exponent)
        rows = scaled_by(self._inverse(), exponent_of(squares.sqrt()).unsqueeze(0))
        identity = torch.eye(len(rows), dtype=rows.dtype, device=rows.device).unsqueeze(-1)
        s: torch.Tensor = torch.linalg.svdvals(batch_first(torch.where(self.served, rows, identity)))
        return s[:, 0] / s[:, -1]

    def _inverse(self) -> torch.Tensor:
        """(p, p, w): L^-1 R^-H, whose columns are the rows of the pseudo-inverse in an orthonormal basis."""
        rhs = self.gram.back.mH.resolve_conj().unsqueeze(-1)
        return self.factors.forward(rhs.repeat(1, 1, self.panel.b.shape[1]))

    def _weights(self, like: torch.Tensor) -> torch.Tensor:
        assert self.panel.weights is not None
        return self.panel.weights

    def _weighted(self, b: torch.Tensor) -> torch.Tensor:
        """W b, which is b itself where the weights are zeros and ones."""
        return b if self.panel.binary else b * self._weights(b)
