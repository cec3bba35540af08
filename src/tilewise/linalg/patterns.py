"""Distinct gap patterns of pixels, exactly: no hash that two patterns could share."""

from __future__ import annotations

import torch

from tilewise.linalg.scaling import power_of_two

#: Rows in one word: a sum of distinct powers of two below 2^53 is exact in float64, in any order.
_BITS = 52


def distinct(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct columns of a matrix (n, w) of float64 zeros and ones.

    Returns
    -------
    which : (w,) int64
        The number of the pattern of each column.
    first : (k,) int64
        A column of each pattern.

    >>> which, first = distinct(torch.tensor([[1.0, 0, 1], [1, 1, 1]], dtype=torch.float64))
    >>> which.tolist(), len(first)
    ([1, 0, 1], 2)
    """
    which = torch.zeros(mask.shape[1], dtype=torch.int64, device=mask.device)
    count = 1
    for start in range(0, len(mask), _BITS):
        rows = mask[start : start + _BITS]
        powers = power_of_two(torch.arange(len(rows), device=mask.device))
        words, found = torch.unique((powers.unsqueeze(0) @ rows)[0], return_inverse=True)
        if count > 1:
            words, found = torch.unique(which * len(words) + found, return_inverse=True)
        which, count = found, len(words)
    first = torch.zeros(count, dtype=torch.int64, device=mask.device)
    first[which] = torch.arange(mask.shape[1], device=mask.device)
    return which, first
