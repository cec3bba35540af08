"""In which dtype things are computed.

Precision of a shared product. In float64, P b is within gamma_n |P||b| of the exact product, u = 2^-53; in float32
the same with u = 2^-24, and one u more for rounding P. `auto` takes float32 where A and b arrive in it and
cond 2^-24 <= 1e-5, which bounds the relative error of a consistent solution by about n 1e-5 and is far below it in
practice; and where float32 can hold P.
"""

from __future__ import annotations

import torch

from tilewise.linalg.scaling import magnitude

#: Dtypes of single precision.
SINGLE = (torch.float32, torch.complex64)
#: Largest condition at which `auto` applies a product in float32.
SINGLE_CONDITION = 1e-5 * 2**24


def double_dtype(*tensors: torch.Tensor | None) -> torch.dtype:
    """float64, or complex128 where any tensor is complex."""
    return common_dtype(False, *tensors)


def common_dtype(single: bool, *tensors: torch.Tensor | None) -> torch.dtype:
    """The dtype that is computed in: single or double, complex where any tensor is."""
    if any(tensor is not None and tensor.is_complex() for tensor in tensors):
        return torch.complex64 if single else torch.complex128
    return torch.float32 if single else torch.float64


def held_by_float32(x: torch.Tensor) -> bool:
    """Whether float32 keeps the digits of x (..., r, c) that matter: each row's largest entry well within its range."""
    limits = torch.finfo(torch.float32)
    largest = magnitude(x).amax(-1)
    return bool((largest < limits.max / 2).all()) and bool(
        ((largest == 0) | (largest > limits.tiny / limits.eps)).all()
    )
