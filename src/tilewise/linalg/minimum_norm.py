"""The minimum-norm solution in the user's units, from factors of a matrix whose columns were scaled.

Let S = A 2^-e be the column-scaled matrix, cut at its rank to U diag(s) V^H, and c = diag(1/s) U^H b. Every x with

    V^H 2^e x = c

minimises ||A x - b||. The one of minimum norm in the user's units is x = Z (Z^H Z)^-1 c with Z = 2^e V: 2^-e V c, the
shortest in the scaled units, is another one.

Where the units are alike, Z^H Z is well conditioned. Where they are not, the rows of Z differ by any power of ten, and
Z^H Z would drown the small ones. So Z is then reduced by column operations with complete pivoting, Z K = M, to an M
that is the identity on the pivot rows and bounded elsewhere (Peters and Wilkinson, The least squares problem and
pseudo-inverses, Computer Journal 13, 1970), and

    x = M (M^H M)^-1 K^H c,

where M^H M is well conditioned whatever the units, and graded as its parts are.
"""

from __future__ import annotations

import math

import torch

from tilewise.linalg.scaling import magnitude, power_of_two, scaled_by
from tilewise.linalg.subset import Subset

#: Exponents that differ by so little that Z^H Z has a condition of at most 2^(2 * 3) = 64.
_ALIKE = 3
#: Noise is never taken above this: where half of the digits are in doubt, no entry can be said to be zero.
_MOST_NOISE = math.sqrt(torch.finfo(torch.float64).eps)


def minimum_norm_left(
    V: torch.Tensor, inverse: torch.Tensor, kept: torch.Tensor, exponent: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """The factor (G, p, k) that takes U^H b to the minimum-norm solution.

    Parameters
    ----------
    V, inverse, kept
        Right singular vectors (G, p, k), inverse singular values (G, k), and which of them count (G, k).
    exponent
        Exponents e (G, p) of the columns: the scaled matrix is A 2^-e.
    noise
        (G,) size below which an entry of V cannot be told from zero.
    """
    V = V * kept.unsqueeze(-2)
    common = exponent.amax(-1, keepdim=True)
    # Columns of similar units: K = I, and M = Z but for a common power of two.
    M = V * power_of_two(exponent - common).unsqueeze(-1)
    right = scaled_by(inverse.diag_embed(), -common.unsqueeze(-1)).to(V.dtype)
    dead = ~kept
    mixed = (common - exponent).amax(-1) > _ALIKE
    if bool(mixed.any()):
        chosen = Subset.of(mixed)
        graded = _graded(*(chosen.take(x) for x in (V, inverse, exponent, noise)))
        for values, into in zip(graded, (M, right, dead), strict=True):
            chosen.put(values, into)
    gram = torch.bmm(M.mH, M) + dead.to(M.dtype).diag_embed()
    L, failed = torch.linalg.cholesky_ex(gram)
    # Only units beyond the range of float64 can make it fail: a NaN, so that the pixel says so.
    L = torch.where(failed[:, None, None] > 0, math.nan, L)
    return torch.bmm(M, torch.cholesky_solve(right, L))


def _graded(
    V: torch.Tensor, inverse: torch.Tensor, exponent: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """M, K^H diag(1/s), and the columns (G, k) without a pivot, which are zero."""
    W, K, pivots = _reduced(V, exponent, noise.clamp(max=_MOST_NOISE))
    found = pivots >= 0
    pivot_exponent = exponent.gather(-1, pivots.clamp(min=0))
    # M = 2^e W 2^-e_pivot: bounded by the choice of pivots, so the clamped powers serve.
    M = W * power_of_two(exponent.unsqueeze(-1) - pivot_exponent.unsqueeze(-2)) * found.unsqueeze(-2)
    right = scaled_by(K.mH * inverse.unsqueeze(-2), -pivot_exponent.unsqueeze(-1)) * found.unsqueeze(-1)
    return M, right, ~found


def _reduced(
    V: torch.Tensor, exponent: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W = V K with unit rows at the pivots, K, and the pivot row (G, k) of each column, -1 where it has none.

    A pivot is the largest entry of 2^e W among the rows and columns not yet used, by exponent plus mantissa, which
    overflows nowhere and is exact in every vector lane: complete pivoting on Z, done on V. Entries that are noise
    beside the largest their row has had are set to zero: they would pass for pivots beside rows in much smaller
    units.
    """
    G, p, k = V.shape
    batch = torch.arange(G, device=V.device)
    W, K = V.clone(), torch.eye(k, dtype=V.dtype, device=V.device).repeat(G, 1, 1)
    pivots = torch.full((G, k), -1, dtype=torch.int64, device=V.device)
    open_rows = torch.ones(G, p, dtype=torch.bool, device=V.device)
    history = torch.ones(G, p, dtype=torch.float64, device=V.device)
    for _ in range(k):
        size = magnitude(W)
        history = torch.maximum(history, size.amax(-1))
        real = size > noise[:, None, None] * history.unsqueeze(-1)
        W = torch.where(real, W, torch.zeros_like(W))
        usable = real & open_rows.unsqueeze(-1) & (pivots < 0).unsqueeze(-2)
        mantissa, power = torch.frexp(size)
        score = torch.where(usable, power + exponent.unsqueeze(-1) + mantissa, -torch.inf)
        best, flat = score.flatten(1).max(-1)
        row, column = flat // k, flat % k
        alive = best > -torch.inf
        pivots[batch[alive], column[alive]] = row[alive]
        open_rows[batch[alive], row[alive]] = False
        pivot = torch.where(alive, W[batch, row, column], torch.ones_like(W[:, 0, 0]))
        across = W[batch, row] * alive.unsqueeze(-1)
        across[batch, column] = 0
        W = _eliminate(W, across, pivot, column, batch)
        K = _eliminate(K, across, pivot, column, batch)
    return W, K, pivots


def _eliminate(
    X: torch.Tensor, across: torch.Tensor, pivot: torch.Tensor, column: torch.Tensor, batch: torch.Tensor
) -> torch.Tensor:
    """X with its pivot column divided by the pivot, and that column taken `across` times from the others."""
    unit = X[batch, :, column] / pivot.unsqueeze(-1)
    X = X - unit.unsqueeze(-1) * across.unsqueeze(-2)
    X[batch, :, column] = unit
    return X
