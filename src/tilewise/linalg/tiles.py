"""Tiles of square systems: a shared matrix factored once, or batches of matrices of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tilewise.linalg.precision import double_dtype
from tilewise.linalg.products import Batch, Solver, solve_shared, solve_varying
from tilewise.linalg.shared import check_finite
from tilewise.linalg.square import FACTOR, SquareFactors, referenced

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class SquareState:
    """A shared square A (1, n, n) in float64 or complex128, as it is assumed to be, and its factors."""

    A: torch.Tensor
    factors: SquareFactors


def square_state(A: torch.Tensor, dim: str, *, assume_a: str, want_rank: bool) -> SquareState:
    """Factor a shared square A (n, n) once; `assume_a` is a key of `FACTOR`.

    Raises
    ------
    ParameterError
        A has a value that is not finite.
    """
    used = A if assume_a == "general" else A.tril()
    check_finite("A, which all pixels share,", used, dim, do=f"mend A, or leave that part of {dim!r} out of A and b")
    double = referenced(used.to(double_dtype(A), copy=True).contiguous(), assume_a)
    return SquareState(double.unsqueeze(0), FACTOR[assume_a](double.unsqueeze(-1), want_rank=want_rank))


def solve_square(
    state: SquareState | None, fields: Tensors, out: Tensors, *, assume_a: str, want_rank: bool, panel: int
) -> None:
    """Solutions of a tile of square systems, by the shared A of `state` or by the A of `fields`."""
    if state is None:

        def factored(A: torch.Tensor) -> tuple[Solver, torch.Tensor]:
            factors = FACTOR[assume_a](A, want_rank=want_rank)
            return factors, factors.lost

        views, dtype = {**fields, **out}, double_dtype(*fields.values())
        solve_varying(factored, views, dtype, panel=panel, referenced=lambda A: referenced(A, assume_a))
        return
    dtype = double_dtype(state.A, fields["b"])
    batch = Batch(state.factors.to(dtype), state.factors.lost, state.A.to(dtype))
    solve_shared(batch, {**fields, **out}, dtype, panel=panel)
