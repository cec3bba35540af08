"""Some matrices of a batch, worked on apart from the others without a trace of it in their bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Matrices after which alignment repeats, and elements that every vector loop divides: the last bits of LAPACK and
#: of complex arithmetic depend on both.
LANES = 16


@dataclass(frozen=True)
class Subset:
    """Chosen matrices of a batch, each with a place in a smaller batch.

    A matrix keeps its index modulo 16, hence its alignment, and the smaller batch is a multiple of 16, so that no
    vector loop has a tail: what is computed of it comes out the same to the bit whichever other matrices were
    chosen. A batch of up to 16 is kept as it is, for the same reason. Places that nothing was chosen for hold zeros.

    >>> mask = torch.zeros(64, dtype=torch.bool)
    >>> mask[[3, 19, 20]] = True
    >>> subset = Subset.of(mask)
    >>> subset.size, subset.places.tolist()
    (32, [3, 19, 4])
    """

    where: torch.Tensor
    places: torch.Tensor
    size: int

    @classmethod
    def of(cls, mask: torch.Tensor) -> Subset:
        """The matrices (G,) where `mask` is true: at least one."""
        where = mask.nonzero().flatten()
        if len(mask) <= LANES:
            return cls(where, where, len(mask))
        lane = where % LANES
        depth = torch.zeros_like(where)
        for value in range(LANES):
            of_lane = (lane == value).nonzero().flatten()
            depth[of_lane] = torch.arange(len(of_lane), device=where.device)
        return cls(where, depth * LANES + lane, LANES * (int(depth.max()) + 1))

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """The chosen of x (G, ...) at their places."""
        taken = torch.zeros(self.size, *x.shape[1:], dtype=x.dtype, device=x.device)
        taken[self.places] = x[self.where]
        return taken

    def put(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Values at their places back to where they were chosen from."""
        into[self.where] = values[self.places]
