"""Inputs that all pixels share: which of their rows are there, and errors ahead for what no pixel could use."""

from __future__ import annotations

import torch

from tilewise.errors import ParameterError, and_more
from tilewise.linalg.precision import double_dtype
from tilewise.linalg.rows import Rules
from tilewise.linalg.scaling import even_exponent, scaled_by


def shared_rows(
    A: torch.Tensor | None, weights: torch.Tensor | None, dim: str, *, policy: str, min_valid: int
) -> tuple[Rules, torch.Tensor | None]:
    """How rows are read, by what all pixels share of A (n, p) and weights (n,); and A in double precision, with them.

    Raises
    ------
    ParameterError
        A weight that no row may have, or a value that is not finite in a row of A that is there.
    """
    if A is None and weights is None:
        return Rules(policy, min_valid), None
    there = _all_rows(A, weights)
    if weights is not None:
        there &= weights != 0
        there &= ~(weights.isnan() & (policy == "omit"))
        _check_weights(weights, there, dim)
    if A is not None:
        there &= ~(A.isnan().any(1) & (policy == "omit"))
        check_finite(
            "A, which all pixels share,",
            A,
            dim,
            there,
            do=f"mend A, leave that part of {dim!r} out of A and b, give it the weight 0, or, for NaN, set "
            "kernel.nan_policy to omit",
        )
    kept = None if bool(there.all()) else there.nonzero().flatten()
    A = A if A is None or kept is None else A[kept]
    A = None if A is None else A.to(double_dtype(A)).contiguous()
    if weights is None:
        return Rules(policy, min_valid, kept), A
    weights = (weights if kept is None else weights[kept]).double()
    exponent = int(even_exponent(weights.amax())) if len(weights) else 0
    root = scaled_by(weights, torch.tensor(-exponent, device=weights.device)).sqrt().unsqueeze(-1)
    return Rules(policy, min_valid, kept, root, exponent), None if A is None else A * root


def _check_weights(weights: torch.Tensor, there: torch.Tensor, dim: str) -> None:
    bad = (~((weights >= 0) & weights.isfinite()) & there).nonzero().flatten()
    if len(bad):
        raise ParameterError(
            "weights, which all pixels share, have a value that no weight can have",
            got=f"{weights[bad[0]].item()} at {dim} {int(bad[0])}{and_more(len(bad) - 1)}",
            expected="finite numbers of at least 0; they multiply squared residuals",
            do="mend the weights: 0 leaves an equation out, and kernel.nan_policy omit one whose weight is NaN",
        )


def _all_rows(*inputs: torch.Tensor | None) -> torch.Tensor:
    """True for each row of the inputs that there are."""
    given = next(x for x in inputs if x is not None)
    return torch.ones(len(given), dtype=torch.bool, device=given.device)


def check_finite(name: str, matrix: torch.Tensor, dim: str, there: torch.Tensor | None = None, *, do: str) -> None:
    """Refuse a matrix (n, p) with an entry that is not finite in a row along `dim` that is `there` (n,).

    Raises
    ------
    ParameterError
        It has one.
    """
    bad = ~matrix.isfinite()
    found = (bad if there is None else bad & there.unsqueeze(-1)).nonzero()
    if len(found):
        row, column = found[0].tolist()
        raise ParameterError(
            f"{name} has a value that is not finite",
            got=f"{matrix[row, column].item()} at {dim} {row}, unknown {column}{and_more(len(found) - 1)}",
            expected="finite values",
            do=do,
        )
