"""Which rows of a pixel's system are there, and what a solver is then given: clean numbers, and nothing else.

A row is not there when its weight is zero, under every policy; or, under `omit`, when its b, its weight or an entry of
its row of A is NaN. Of a row that is not there nothing is looked at. A row that is there and holds an infinity, a NaN
or a weight that is negative or infinite spoils its pixel, and its pixel alone: the solver sees zeros in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tilewise.linalg.scaling import even_exponent, power_of_two


@dataclass(frozen=True)
class Rules:
    """How rows are read.

    Attributes
    ----------
    policy
        "propagate", "omit" or "raise".
    min_valid
        Rows that a pixel needs to have a solution.
    kept
        (m,) int64: rows of the inputs that what all pixels share leaves there; None where those are all.
    root
        (m, 1) float64: square roots of weights that all pixels share, by which the rows are multiplied; None for ones.
    exponent
        Even: those weights are 2^exponent times the squares of the roots, the largest of which is in [1/2, 1).
    """

    policy: str = "propagate"
    min_valid: int = 1
    kept: torch.Tensor | None = None
    root: torch.Tensor | None = None
    exponent: int = 0


@dataclass(frozen=True)
class Panel:
    """Pixels that are solved together, with clean numbers only.

    Attributes
    ----------
    b
        (n, w) float64 or complex128; 0 where a row is not there.
    A
        (n, p, w) matrices of the pixels, 0 where a row is not there; None where one that all share is in the state.
    weights
        (n, w) float64: 0 where a row is not there, else the weight times 2^-exponent, the largest of a pixel in
        [1/4, 1]; None where every row is there with weight 1.
    binary
        Whether the weights are zeros and ones.
    exponent
        (w,) int64, even.
    count
        (w,) int64: rows that are there.
    others
        Further inputs (k, w) by name, as they are.
    """

    b: torch.Tensor
    A: torch.Tensor | None
    weights: torch.Tensor | None
    binary: bool
    exponent: torch.Tensor
    count: torch.Tensor
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def take(self, where: torch.Tensor) -> Panel:
        """The pixels of these indices."""
        return Panel(
            self.b[:, where],
            None if self.A is None else self.A[..., where],
            None if self.weights is None else self.weights[:, where],
            self.binary,
            self.exponent[where],
            self.count[where],
            {name: values[:, where] for name, values in self.others.items()},
        )

    def whole(self) -> Panel:
        """The same pixels as if every row were there."""
        count = torch.full_like(self.count, len(self.b))
        return Panel(self.b, self.A, None, True, torch.zeros_like(self.exponent), count, self.others)


@dataclass(frozen=True)
class Look:
    """What was seen: the panel, and masks (w,) of its pixels.

    Attributes
    ----------
    partial
        Rows are missing, or have weights of their own; None where there are no such pixels.
    bad
        A row that is there holds what no row may; None where there are no such pixels.
    count
        (w,) int64: rows that are there, in bad pixels too, of which the panel shows none.
    nan
        The first pixel with a NaN in a row that is there, under the policy "raise"; else None.
    """

    panel: Panel
    partial: torch.Tensor | None
    bad: torch.Tensor | None
    count: torch.Tensor
    nan: int | None = None


def look(
    rules: Rules,
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor | None,
    others: Mapping[str, torch.Tensor],
    mask: torch.Tensor | None = None,
) -> Look:
    """What is there of b (n, w), A (n, p, w) and weights (n, w), which may be cleaned in place.

    `mask` (n, w) float64 is memory for the mask of rows, which the panel may keep; some is allocated if it is left out.
    """
    seen = _glance(rules, b, A, weights, others, mask)
    return _scrutiny(rules, b, A, weights, others) if seen is None else seen


def _glance(
    rules: Rules,
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor | None,
    others: Mapping[str, torch.Tensor],
    mask: torch.Tensor | None,
) -> Look | None:
    """A look that is enough for finite numbers, and for NaN in b that are left out; None where it is not.

    It uses sums and floating masks, which cost a fraction of what boolean masks do. A sum that overflows is a false
    alarm, and no more.
    """
    if A is not None and not bool(A.sum().isfinite()):
        return None
    lowest = 1.0
    if weights is not None:
        lowest = float(weights.amin()) if weights.numel() else 1.0
        if not (lowest >= 0 and bool(weights.sum().isfinite())):
            return None
    there = None
    if not bool(b.sum().isfinite()):
        if rules.policy != "omit" or b.is_complex():
            return None
        there = torch.eq(b, b, out=torch.empty_like(b) if mask is None else mask)
        b.nan_to_num_(0.0, torch.inf, -torch.inf)
        if not bool(b.sum().isfinite()):
            b.masked_fill_(there == 0, torch.nan)
            return None
    if lowest == 0 and weights is not None:
        positive = torch.ne(weights, 0, out=torch.empty_like(weights))
        there = positive if there is None else there.mul_(positive)
        b *= positive
    return _seen(b, A, weights, there, others)


def _seen(
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor | None,
    there: torch.Tensor | None,
    others: Mapping[str, torch.Tensor],
) -> Look:
    """Finite numbers, b being zero where a row is not `there` (n, w), a mask of float64."""
    n, width = b.shape
    count = torch.full((width,), n, dtype=torch.int64, device=b.device)
    if there is not None:
        count = (there.new_ones(1, n) @ there)[0].long()
        A = A if A is None else A.mul_(there.unsqueeze(1))
        weights = there if weights is None else weights.mul_(there)
    if weights is None:
        return Look(Panel(b, A, None, True, torch.zeros_like(count), count, others), None, None, count)
    if weights is there:
        panel = Panel(b, A, there, True, torch.zeros_like(count), count, others)
        return Look(panel, (count < n) & (count > 0), None, count)
    return Look(_with_weights(b, A, weights, count, others), count > 0, None, count)


def _with_weights(
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor,
    count: torch.Tensor,
    others: Mapping[str, torch.Tensor],
) -> Panel:
    exponent = even_exponent(weights.amax(0) if len(weights) else torch.zeros_like(count).double())
    return Panel(b, A, weights.mul_(power_of_two(-exponent)), False, exponent, count, others)


def _scrutiny(
    rules: Rules,
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor | None,
    others: Mapping[str, torch.Tensor],
) -> Look:
    """A look at every number."""
    nan, wrong = _faults(b, A, weights)
    there = torch.ones_like(nan) if weights is None else weights != 0
    if rules.policy == "omit":
        there &= ~nan
        bad = (wrong & there).any(0)
    else:
        bad = ((nan | wrong) & there).any(0)
    found = (nan & there).any(0).nonzero().flatten().tolist() if rules.policy == "raise" else []
    count = there.sum(0)
    gone = ~there | bad
    b.masked_fill_(gone, 0)
    if A is not None:
        A.masked_fill_(gone.unsqueeze(1), 0)
    if weights is not None:
        weights.masked_fill_(gone, 0)
    seen = _seen(b, A, weights, (~gone).double(), others)
    return Look(seen.panel, seen.partial, bad, count, found[0] if found else None)


def _faults(b: torch.Tensor, A: torch.Tensor | None, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks (n, w) of rows with a NaN, and of rows with an infinity or a weight that no row may have."""
    nan, wrong = b.isnan(), b.isinf()
    if A is not None:
        nan = nan | A.isnan().any(1)
        wrong = wrong | A.isinf().any(1)
    if weights is not None:
        nan = nan | weights.isnan()
        wrong = wrong | (weights < 0) | weights.isinf()
    return nan, wrong
