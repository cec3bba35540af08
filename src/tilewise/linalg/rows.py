"""Which rows of a pixel's system are there, and what a solver is then given: clean numbers, and nothing else.

A row is not there when its weight is zero, under every policy; or, under `omit`, when its b, its weight or an entry of
its row of A is NaN. Of a row that is not there nothing is looked at. A row that is there and holds an infinity, a NaN
or a weight that is negative or infinite spoils its pixel, and its pixel alone: the solver sees zeros in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tilewise.linalg.scaling import exponent_of, power_of_two


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
    """

    policy: str = "propagate"
    min_valid: int = 1
    kept: torch.Tensor | None = None
    root: torch.Tensor | None = None


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
) -> Look:
    """What is there of b (n, w), A (n, p, w) and weights (n, w), which are cleaned in place."""
    clean = _sums_are_finite(b, A)
    if clean and weights is None:
        panel = _panel(b, A, None, others, binary=True)
        return Look(panel, None, None, panel.count)
    nan, wrong = _faults(b, A, weights, clean=clean)
    there = None if weights is None else weights != 0
    if rules.policy == "omit" and nan is not None:
        there = ~nan if there is None else there & ~nan
    found = _first(nan, there) if rules.policy == "raise" else None
    bad = _any_there(wrong if rules.policy == "omit" else _either(nan, wrong), there)
    count = None
    if bad is not None:
        there = torch.ones_like(b, dtype=torch.bool) if there is None else there
        count = there.sum(0)
        there = there & ~bad
    factor = _cleaned(b, A, weights, there)
    panel = _panel(b, A, factor, others, binary=weights is None)
    partial = None if factor is None else ((panel.count < len(b)) | (weights is not None)) & (panel.count > 0)
    return Look(panel, partial, bad, panel.count if count is None else count, found)


def _sums_are_finite(b: torch.Tensor, A: torch.Tensor | None) -> bool:
    """Whether nothing is NaN or infinite: a sum that overflows is a false alarm, and no more."""
    return bool(b.sum().isfinite()) and (A is None or bool(A.sum().isfinite()))


def _faults(
    b: torch.Tensor, A: torch.Tensor | None, weights: torch.Tensor | None, *, clean: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Masks (n, w) of rows with a NaN, and of rows with an infinity or a weight that no row may have."""
    nan = wrong = None
    if not clean:
        nan = b.isnan()
        # A number less itself is 0, unless it is infinite or NaN.
        wrong = None if bool(torch.where(nan, 0, b).sum().isfinite()) else b.isinf() & ~nan
        if A is not None and not bool(A.sum().isfinite()):
            of_A = A.isnan().any(1)
            nan = nan | of_A
            wrong = _either(wrong, A.isinf().any(1) & ~of_A)
    if weights is not None and not bool(((weights >= 0) & (weights < torch.inf)).all()):
        nan = _either(nan, weights.isnan())
        wrong = _either(wrong, (weights < 0) | weights.isinf())
    return nan, wrong


def _either(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other


def _any_there(rows: torch.Tensor | None, there: torch.Tensor | None) -> torch.Tensor | None:
    """Pixels (w,) with such a row that is there; None where there are none."""
    if rows is None:
        return None
    found = (rows if there is None else rows & there).any(0)
    return found if bool(found.any()) else None


def _first(rows: torch.Tensor | None, there: torch.Tensor | None) -> int | None:
    found = _any_there(rows, there)
    return None if found is None else int(found.nonzero()[0])


def _cleaned(
    b: torch.Tensor, A: torch.Tensor | None, weights: torch.Tensor | None, there: torch.Tensor | None
) -> torch.Tensor | None:
    """Weights with zeros for rows that are not there, None where all are there with weight 1; b and A likewise."""
    if there is None:
        return None
    if weights is None and bool(there.all()):
        return None
    gone = ~there
    zero = torch.zeros((), dtype=b.dtype, device=b.device)
    torch.where(gone, zero, b, out=b)
    if A is not None:
        A.masked_fill_(gone.unsqueeze(1), 0)
    if weights is None:
        return there.double()
    torch.where(gone, torch.zeros((), dtype=weights.dtype, device=b.device), weights, out=weights)
    return weights


def _panel(
    b: torch.Tensor,
    A: torch.Tensor | None,
    weights: torch.Tensor | None,
    others: Mapping[str, torch.Tensor],
    *,
    binary: bool,
) -> Panel:
    width = b.shape[1]
    if weights is None:
        count = torch.full((width,), len(b), dtype=torch.int64, device=b.device)
        return Panel(b, A, None, True, torch.zeros_like(count), count, others)
    if binary:
        count = (weights.new_ones(1, len(b)) @ weights)[0].long()
        return Panel(b, A, weights, True, torch.zeros_like(count), count, others)
    count = (weights != 0).sum(0)
    exponent = exponent_of(weights.amax(0))
    exponent = (exponent + exponent % 2).clamp(-1022, 1022)  # even, so that its root is a power of two as well
    weights *= power_of_two(-exponent)
    return Panel(b, A, weights, False, exponent, count, others)
