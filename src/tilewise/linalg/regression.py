"""Least squares of pixels with rows and weights of their own: which method serves which pixel, and its diagnostics.

- Pixels of which every row is there with weight one: the pseudo-inverse of the shared design, as one product.
- Others, with a shared design and a few gap patterns: QR or the SVD of each pattern (`factors`), and its
  pseudo-inverse as a product.
- Others, with a shared design of full rank: Gram matrices of its Q (`seminormal`), where that is safe.
- Others: QR or the SVD of each weighted design.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tilewise.linalg.batching import designs_at_once
from tilewise.linalg.factors import EPS
from tilewise.linalg.fits import DesignFit, Fit, OwnFit, PatternFit, Patterns
from tilewise.linalg.patterns import distinct
from tilewise.linalg.pixels import Found
from tilewise.linalg.rows import Panel, Rules
from tilewise.linalg.scaling import euclidean_norm, power_of_two
from tilewise.linalg.seminormal import Gram

#: A pattern is factored where it serves this many pixels or more; or two, where the alternative is to factor each of
#: them. QR of one design takes as long as the seminormal equations of about so many pixels.
PATTERN_PIXELS = 64


@dataclass(frozen=True)
class Design:
    """What the pixels of a job share.

    Attributes
    ----------
    rules
        How rows are read.
    A
        (n, p) float64 or complex128 of the rows that are kept, times the roots of shared weights; None where A varies.
    penalty
        (q, p) rows of ||L x||^2; None without.
    rcond
        Cut of singular values; None for the default.
    fit, gram
        Of a shared A: for pixels with all rows, and for others where its rank is full.
    constant
        Whether the constant lies in the column space of a shared A, by all of its rows.
    unpenalised
        The same without the penalty, where there is one.
    """

    rules: Rules
    A: torch.Tensor | None
    penalty: torch.Tensor | None
    rcond: float | None
    fit: DesignFit | None = None
    gram: Gram | None = None
    constant: bool = False
    unpenalised: Design | None = None

    @classmethod
    def of(
        cls, rules: Rules, A: torch.Tensor | None, penalty: torch.Tensor | None = None, rcond: float | None = None
    ) -> Design:
        """Factor a shared A, if there is one with rows."""
        unpenalised = None if penalty is None else cls.of(rules, A, None, rcond)
        if A is None or len(A) == 0:
            return cls(rules, A, penalty, rcond, unpenalised=unpenalised)
        fit = DesignFit.of(A, penalty, rcond)
        gram = Gram.of(A, penalty, fit.factors) if int(fit.rank) == A.shape[1] else None
        if unpenalised is not None:
            return cls(rules, A, penalty, rcond, fit, gram, unpenalised.constant, unpenalised)
        design = cls(rules, A, penalty, rcond, fit, gram)
        ones = torch.ones(len(A), 1, dtype=A.dtype, device=A.device)
        none = torch.zeros(1, dtype=torch.int64, device=A.device)
        return replace(
            design, constant=bool(_constant_fits(design, Panel(ones, None, None, True, none, none + len(A))))
        )

    @property
    def extra(self) -> int:
        """Rows of the penalty."""
        return 0 if self.penalty is None else len(self.penalty)

    @property
    def rows(self) -> int:
        """Rows of the stacked design, where A is shared."""
        return self.extra + (0 if self.A is None else len(self.A))

    def to(self, dtype: torch.dtype) -> Design:
        """The same in another dtype: complex, where b is and A is not."""
        if self.A is None or self.A.dtype == dtype:
            return self
        return Design.of(self.rules, self.A.to(dtype), self.penalty, self.rcond)


def regress(design: Design, panel: Panel, wanted: frozenset[str], known: Patterns | None = None) -> Found:
    """Solution, status, rank, cond, and what is `wanted` of residual_norm, stderr, absolute stderr and r2.

    `known` holds the patterns that were factored last, of this design with the same wanted.
    """
    if panel.weights is None and design.fit is not None:
        return _described(design, design.fit, panel, wanted)
    patterns = _few_patterns(design, panel)
    if patterns is not None and design.A is not None:
        want_cond = "condition" in wanted
        known = Patterns() if known is None else known
        fit = PatternFit.of(panel, design.A, design.penalty, design.rcond, patterns, known, want_cond=want_cond)
        return _described(design, fit, panel, wanted)
    if design.gram is None or panel.weights is None:
        return _apart(design, panel, wanted)
    return _by_gram(design, design.gram, panel, wanted)


def _few_patterns(design: Design, panel: Panel) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The gap pattern (w,) of each pixel and a pixel of each pattern, where patterns are few enough to factor each."""
    if design.A is None or panel.weights is None or not panel.binary:
        return None
    which, first = distinct(panel.weights)
    most = len(which) // (PATTERN_PIXELS if design.gram is not None else 2)
    return (which, first) if len(first) <= min(most, designs_at_once(design.rows, design.A.shape[1])) else None


def _by_gram(design: Design, gram: Gram, panel: Panel, wanted: frozenset[str]) -> Found:
    """Seminormal equations where they are safe."""
    fit = gram.fit(panel, design.rcond)
    others = replace(design, gram=None)
    if not bool(fit.served.any()):
        return regress(others, panel, wanted)
    found = _described(design, fit, panel, wanted)
    if "condition" in wanted:
        found["cond"] = fit.exact_cond()
    if not bool(fit.served.all()):
        where = (~fit.served).nonzero().flatten()
        _put(regress(others, panel.take(where), wanted), where, found)
    return found


def _apart(design: Design, panel: Panel, wanted: frozenset[str]) -> Found:
    """Pixels whose designs are factored one by one, a batch at a time."""
    width = panel.b.shape[1]
    found: Found = {}
    A = _matrices(design, panel)
    step = designs_at_once(len(panel.b) + design.extra, A.shape[1])
    for start in range(0, width, step):
        where = torch.arange(start, min(start + step, width), device=panel.b.device)
        some = panel.take(where)
        matrices = _matrices(design, some)
        fit = OwnFit.of(some, matrices, design.penalty, design.rcond, want_cond="condition" in wanted)
        part = _described(design, fit, some, wanted)
        if not found:
            found = {name: values.new_zeros(*values.shape[:-1], width) for name, values in part.items()}
        _put(part, where, found)
    return found


def _matrices(design: Design, panel: Panel) -> torch.Tensor:
    """A (n, p) that all pixels share, or (n, p, w)."""
    A = panel.A if design.A is None else design.A
    assert A is not None
    return A


def _put(part: Found, where: torch.Tensor, into: Found) -> None:
    for name, values in part.items():
        into[name][..., where] = values


def _described(design: Design, fit: Fit, panel: Panel, wanted: frozenset[str]) -> Found:
    """What is wanted of a fit, in full width."""
    width = panel.b.shape[1]
    x = fit.solve(panel.b)
    found: Found = {
        "solution": x,
        "status": fit.status.expand(width).clone(),
        "rank": fit.rank.expand(width).clone(),
        "cond": fit.cond.expand(width).clone(),
    }
    if "outside" in wanted:
        found["outside"] = fit.outside(panel.b)
    if not wanted & {"residual_norm", "stderr", "r2"}:
        return found | _absolute(design, fit, panel, wanted)
    norm = euclidean_norm(fit.residual(panel.b, x), dim=0)
    root = power_of_two((panel.exponent + design.rules.exponent) // 2)
    if "residual_norm" in wanted:
        found["residual_norm"] = norm * root
    if "stderr" in wanted:
        free = panel.count - found["rank"]
        sigma = torch.where(free > 0, norm / free.to(norm.dtype).sqrt(), torch.nan)
        found["stderr"] = fit.spread() * sigma
    if "r2" in wanted:
        found["r2"] = r_squared(design, panel, norm)
    return found | _absolute(design, fit, panel, wanted)


def _absolute(design: Design, fit: Fit, panel: Panel, wanted: frozenset[str]) -> Found:
    """Standard errors for weights that are inverse variances."""
    if "absolute" not in wanted:
        return {}
    return {"stderr": fit.spread() * power_of_two(-(panel.exponent + design.rules.exponent) // 2)}


def r_squared(design: Design, panel: Panel, residual: torch.Tensor) -> torch.Tensor:
    """1 - ||sqrt(W) (b - A x)||^2 / ||sqrt(W) (b - m)||^2, with m the weighted mean where A holds the constant, else 0.

    The mean of n numbers is within gamma_n of the exact one, relative to theirs; complex products and centring leave
    room for as much again: centred values below 4 n eps of b are nothing but rounding, and so would the quotient be.
    It is NaN then, as it is for b = 0.
    """
    ones = _ones(design, panel)
    weights = panel.weights
    weighted = ones if weights is None else ones * weights
    mean = (weighted * panel.b).sum(0) / (weighted * ones).sum(0)
    centred = panel.b - ones * mean
    root = None if weights is None else weights.sqrt()
    total, about_mean = (euclidean_norm(v if root is None else v * root, dim=0) for v in (panel.b, centred))
    noise = 4 * len(panel.b) * EPS * total
    about_mean = torch.where(about_mean > noise, about_mean, torch.nan)
    total = torch.where(total > 0, total, torch.nan)
    return 1 - (residual / torch.where(_has_constant(design, panel), about_mean, total)) ** 2


def _ones(design: Design, panel: Panel) -> torch.Tensor:
    """The constant (n, 1) as the rows of the panel are scaled: the roots of shared weights."""
    root = design.rules.root
    return torch.ones(len(panel.b), 1, dtype=torch.float64, device=panel.b.device) if root is None else root


def _has_constant(design: Design, panel: Panel) -> torch.Tensor:
    """(w,) bool: whether the constant lies in the column space of the rows that are there."""
    width = panel.b.shape[1]
    if design.constant:
        return torch.ones(width, dtype=torch.bool, device=panel.b.device)
    if panel.weights is None and design.A is not None:
        return torch.zeros(width, dtype=torch.bool, device=panel.b.device)
    return _constant_fits(design.unpenalised or design, panel)


def _constant_fits(design: Design, panel: Panel) -> torch.Tensor:
    """Whether the constant lies in the column space but for what a stable solver rounds: 2 n p eps cond of it.

    Householder QR and the SVD find the column space of a matrix that differs by c n p u of its norm, so turned by that
    times the condition at most; by less where the constant is one of the columns, which is why half of the digits are
    asked for whatever the condition.
    """
    ones = _ones(design, panel).to(panel.b.dtype).expand_as(panel.b)
    ones = ones if panel.weights is None else ones * (panel.weights != 0)
    fit = regress(design, replace(panel, b=ones.contiguous()), frozenset({"outside"}))
    size = euclidean_norm(ones if panel.weights is None else ones * panel.weights.sqrt(), dim=0)
    tolerance = (2 * len(panel.b) * fit["solution"].shape[0] * EPS * fit["cond"]).clamp(max=EPS**0.5)
    return fit["outside"] <= tolerance * size
