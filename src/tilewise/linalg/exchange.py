"""Non-negative least squares of a few unknowns with one matrix for all pixels: block exchange by table.

Which unknowns are free is one of 2^p sets, a number of p bits. What is wrong with a set at a pixel is linear in its
right-hand side, v = M c + m with a matrix for each set: -x_j for j in the set, and for the others

    g_j = (r_j - r_k)^T W (c - r_k) / (||r_j|| + ||r_k||),      W = I - Q Q^T of the set,

k being the pivot where the sum is known, and r_k = 0 where it is not. Unknown j has to change sides where v_j is above
what rounding can do; all that have to do so at once, by an exclusive or of bits. A step is a handful of passes over
panels of p rows; pixels that are done leave. As W is applied to c at once, g is within 4 p u (||c|| + ||r_k||) of
the exact value whatever x is. Two or three steps serve nearly all pixels; the steps are limited, as the exchange may
run in circles, and what is left then is for `active_set`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewise.linalg.passive_sets import Factored, U, products
from tilewise.linalg.scaling import euclidean_norm

#: Makes any x below zero a violation beside the noise of g, however small it is.
_STRICT = 2.0**100


@dataclass(frozen=True)
class Table:
    """All sets of p unknowns: what decides about each, and its factors.

    Attributes
    ----------
    M, m
        (p p, 2^p) and (p, 2^p); m is None without a sum.
    unscaled
        (p, 2^p): what makes x of v, 0 for unknowns that are not in the set.
    noise
        (2^p,) the part of the noise of g that does not depend on c; None without a sum.
    factors
        Least squares on each set.
    """

    M: torch.Tensor
    m: torch.Tensor | None
    unscaled: torch.Tensor
    noise: torch.Tensor | None
    factors: Factored

    @classmethod
    def of(
        cls, R: torch.Tensor, sets: torch.Tensor, factors: Factored, projectors: torch.Tensor, *, sum_known: bool
    ) -> Table:
        """From the factors of all sets (p, 2^p) of the columns of R (p, p), and their projectors W (2^p, p, p)."""
        p, u = sets.shape
        size = euclidean_norm(R, dim=0)
        pivot = R[:, factors.pivot] * sum_known
        pivot_size = size[factors.pivot] * sum_known
        units = size + pivot_size.unsqueeze(-1)
        units = torch.where(units > 0, units, 1.0).unsqueeze(-1)
        outer = (R.T - pivot.T.unsqueeze(1)) @ projectors / units
        M = torch.where(sets.T.unsqueeze(-1), -_STRICT * factors.G.view(p, p, u).permute(2, 0, 1), outer)
        M = M.permute(1, 2, 0).reshape(p * p, u).contiguous()
        unscaled = torch.where(sets, -1 / _STRICT, 0.0)
        if not sum_known:
            return cls(M, None, unscaled, None, factors)
        m = torch.where(sets, -_STRICT * factors.h, -(outer @ pivot.T.unsqueeze(-1)).squeeze(-1).T)
        return cls(M, m, unscaled, pivot_size * (4 * p * U), factors)

    def settle(
        self, c: torch.Tensor, level: torch.Tensor, steps: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The set (w,) of each right-hand side c (p, w) of norm `level`, its x (p, w), and the pixels not settled.

        What decided that a set is right holds its x as well.
        """
        p, w = c.shape
        bits = (2.0 ** torch.arange(p, dtype=c.dtype, device=c.device)).unsqueeze(0)
        noise = level * (4 * p * U)
        everything = 2**p - 1
        v = self.M[:, everything].view(p, p) @ c
        if self.m is not None:
            v.add_(self.m[:, everything].unsqueeze(-1))
        wrong = _number(bits, torch.gt(v, 0, out=torch.empty_like(v)))
        code = wrong ^ everything
        pixels = self._open(wrong, code)
        for _ in range(steps - 1):
            if len(pixels) == 0:
                break
            if 2 * len(pixels) > w:  # to look at all is less work than to choose
                v, wrong = self._look(c, noise, code, bits)
                code = code ^ wrong
                pixels = self._open(wrong, code)
                continue
            mine = code[pixels]
            v[:, pixels], wrong = self._look(c[:, pixels], noise[pixels], mine, bits)
            mine = mine ^ wrong
            code[pixels] = mine
            pixels = pixels[self._open(wrong, mine)]
        return code, v.mul_(self.unscaled.gather(1, code.expand(p, -1))), pixels

    def _open(self, wrong: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        """Pixels whose set is not settled; a sum needs someone to carry it, so none is left without."""
        if self.m is not None:
            code.masked_fill_(code == 0, 1)
        return wrong.nonzero().flatten()

    def _look(
        self, c: torch.Tensor, noise: torch.Tensor, code: torch.Tensor, bits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """v (p, w), and the numbers (w,) of the unknowns that are on the wrong side."""
        v = products(self.M, code, c)
        if self.m is not None and self.noise is not None:
            v.add_(self.m.gather(1, code.expand(len(v), -1)))
            noise = noise + self.noise[code]
        return v, _number(bits, torch.gt(v, noise, out=torch.empty_like(v)))


def _number(bits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The number (w,) of each set (p, w) of zeros and ones: unknown j is bit j."""
    return (bits @ chosen).squeeze(0).long()
