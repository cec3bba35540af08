"""From tensors of a kernel to solved tiles: shared matrices factored once, precision chosen, batches set up.

Precision of a shared product. In float64, P b is within gamma_n |P||b| of the exact product, u = 2^-53; in float32
the same with u = 2^-24, and one u more for rounding P. `auto` takes float32 where A and b arrive in it and
cond 2^-24 <= 1e-5, which bounds the relative error of a consistent solution by about n 1e-5 and is far below it in
practice; and where float32 can hold P.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tilewise.errors import ParameterError
from tilewise.linalg.factors import factor, factor_svd
from tilewise.linalg.products import Batch, Product, Solver, solve_shared, solve_varying
from tilewise.linalg.scaling import magnitude
from tilewise.linalg.square import FACTOR, SquareFactors, referenced

_SINGLE = (torch.float32, torch.complex64)
#: Largest condition at which `auto` applies a product in float32.
SINGLE_CONDITION = 1e-5 * 2**24

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LeastSquaresState:
    """A shared A and its pseudo-inverse.

    Attributes
    ----------
    A
        (1, n, p) in float64 or complex128.
    product
        The pseudo-inverse (1, p, n) in the same dtype, with rank and status.
    single
        Whether the product may be applied in float32 to a b that arrives in it.
    """

    A: torch.Tensor
    product: Product
    single: bool


@dataclass(frozen=True)
class SquareState:
    """A shared square A (1, n, n) in float64 or complex128, as it is assumed to be, and its factors."""

    A: torch.Tensor
    factors: SquareFactors


def least_squares_state(A: torch.Tensor, dim: str, *, rcond: float | None, precision: str) -> LeastSquaresState:
    """Factor a shared A (n, p) once.

    The pseudo-inverse is the product of the SVD's factors: rounding that product costs gamma_k |left||basis^H|, of the
    order of u ||P||, so P b keeps the bound of the factors (see `factors`).

    Raises
    ------
    ParameterError
        A has a value that is not finite; or float32 is asked for and cannot hold the pseudo-inverse.
    """
    double = _finite(A, dim).to(_double(A)).contiguous()
    factors, cond = factor_svd(double.unsqueeze(-1), rcond)
    P = factors.pseudoinverse()
    double = double.unsqueeze(0)
    held = _held_by_float32(P) and _held_by_float32(double)
    if precision == "float32" and not held:
        raise ParameterError(
            "kernel.precision float32 cannot hold A and its pseudo-inverse",
            got=f"largest entries {float(magnitude(double).max()):.3g} and {float(magnitude(P).max()):.3g}",
            expected="entries within the range of float32",
            do="set kernel.precision to auto",
        )
    well = float(cond) <= SINGLE_CONDITION
    return LeastSquaresState(double, Product(P, factors.rank, factors.status), A.dtype in _SINGLE and well and held)


def solve_least_squares(
    state: LeastSquaresState | None,
    fields: Tensors,
    out: Tensors,
    *,
    rcond: float | None,
    precision: str,
    keep_deficient: bool,
    panel: int,
) -> None:
    """Least-squares solutions of a tile, by the shared A of `state` or by the A of `fields`."""
    if state is None:

        def factored(A: torch.Tensor) -> tuple[Solver, torch.Tensor]:
            factors = factor(A, rcond)
            return factors, _lost(factors.rank, A.shape[1], keep_deficient)

        solve_varying(factored, {**fields, **out}, _double(*fields.values()), panel=panel)
        return
    product = state.product
    single = precision == "float32" or (precision == "auto" and state.single and fields["b"].dtype in _SINGLE)
    dtype = _common(single, state.A, fields["b"])
    ready = Product(product.pseudoinverse.to(dtype), product.rank, product.status)
    lost = _lost(product.rank, state.A.shape[-1], keep_deficient)
    solve_shared(Batch(ready, lost, state.A.to(dtype)), {**fields, **out}, dtype, panel=panel)


def square_state(A: torch.Tensor, dim: str, *, assume_a: str, want_rank: bool) -> SquareState:
    """Factor a shared square A (n, n) once; `assume_a` is a key of `FACTOR`.

    Raises
    ------
    ParameterError
        A has a value that is not finite.
    """
    used = _finite(A if assume_a == "general" else A.tril(), dim)
    double = referenced(used.to(_double(A), copy=True).contiguous(), assume_a)
    return SquareState(double.unsqueeze(0), FACTOR[assume_a](double.unsqueeze(-1), want_rank=want_rank))


def solve_square(
    state: SquareState | None, fields: Tensors, out: Tensors, *, assume_a: str, want_rank: bool, panel: int
) -> None:
    """Solutions of a tile of square systems, by the shared A of `state` or by the A of `fields`."""
    if state is None:

        def factored(A: torch.Tensor) -> tuple[Solver, torch.Tensor]:
            factors = FACTOR[assume_a](A, want_rank=want_rank)
            return factors, factors.lost

        views, dtype = {**fields, **out}, _double(*fields.values())
        solve_varying(factored, views, dtype, panel=panel, referenced=lambda A: referenced(A, assume_a))
        return
    dtype = _double(state.A, fields["b"])
    batch = Batch(state.factors.to(dtype), state.factors.lost, state.A.to(dtype))
    solve_shared(batch, {**fields, **out}, dtype, panel=panel)


def _lost(rank: torch.Tensor, unknowns: int, keep_deficient: bool) -> torch.Tensor:
    return torch.zeros_like(rank, dtype=torch.bool) if keep_deficient else rank < unknowns


def _double(*tensors: torch.Tensor) -> torch.dtype:
    return _common(False, *tensors)


def _common(single: bool, *tensors: torch.Tensor) -> torch.dtype:
    """The dtype that is computed in: single or double, complex where any tensor is."""
    if any(tensor.is_complex() for tensor in tensors):
        return torch.complex64 if single else torch.complex128
    return torch.float32 if single else torch.float64


def _finite(A: torch.Tensor, dim: str) -> torch.Tensor:
    bad = (~A.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise ParameterError(
            "A, which all pixels share, has a value that is not finite",
            got=f"{A[row, column].item()} at {dim} {row}, unknown {column}, and {len(bad) - 1} more",
            expected="finite values",
            do=f"mend A, or leave that part of {dim!r} out of A and b",
        )
    return A


def _held_by_float32(x: torch.Tensor) -> bool:
    """Whether float32 keeps the digits of x (1, r, c) that matter: each row's largest entry well within its range."""
    limits = torch.finfo(torch.float32)
    largest = magnitude(x).amax(-1)
    return bool((largest < limits.max / 2).all()) and bool(
        ((largest == 0) | (largest > limits.tiny / limits.eps)).all()
    )
