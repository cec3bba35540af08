"""Norms that neither overflow nor vanish, and scalings by powers of two, which round nothing."""

from __future__ import annotations

import torch

#: Exponents of the normal float64 numbers: a power of two outside them is replaced by the nearest inside.
_LOWEST, _HIGHEST, _BIAS, _MANTISSA = -1022, 1023, 1023, 52
#: Halvings that bring any exponent of float64, at most 1074 < 2^11, below one, and one more for rounding.
HALVINGS = 12


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2 to an integer exponent in float64, exactly; exponents beyond the normal numbers become the nearest.

    >>> power_of_two(torch.tensor([-3, 0, 2]))
    tensor([0.1250, 1.0000, 4.0000], dtype=torch.float64)
    """
    return ((exponent.long().clamp(_LOWEST, _HIGHEST) + _BIAS) << _MANTISSA).view(torch.float64)


def scaled_by(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """`x` times 2 to the exponent: exact wherever the result is a normal number."""
    if bool((exponent.abs() <= _HIGHEST - 1).all()):
        return x * power_of_two(exponent)
    half = exponent.div(2, rounding_mode="floor")
    return x * power_of_two(half) * power_of_two(exponent - half)


def exponent_of(size: torch.Tensor) -> torch.Tensor:
    """The exponent e with 2^(e-1) <= size < 2^e; 0 for size 0, so that nothing is scaled by it.

    >>> exponent_of(torch.tensor([0.0, 0.5, 1.0, 1e-150], dtype=torch.float64)).tolist()
    [0, 0, 1, -498]
    """
    return torch.frexp(size).exponent.long()


def even_exponent(size: torch.Tensor) -> torch.Tensor:
    """An even exponent e, whose half is that of the root: size 2^-e is in [1/4, 1), but at the ends of the range."""
    exponent = exponent_of(size)
    return (exponent + exponent % 2).clamp(_LOWEST, -_LOWEST)


def euclidean_norm(x: torch.Tensor, dim: int) -> torch.Tensor:
    """2-norm along `dim`, as of a real dtype, without overflow or underflow of the squares.

    Squares are summed as they are. Where the sum has left the range in which a lost square cannot matter, the
    vector is first scaled by a power of two near the inverse of its largest entry: the choice is made for each
    vector alone, so its norm does not depend on its neighbours.

    >>> huge_and_tiny = torch.tensor([[3e200, 4e200], [3e-200, 4e-200]], dtype=torch.float64)
    >>> [f"{norm:.6g}" for norm in euclidean_norm(huge_and_tiny, dim=1).tolist()]
    ['5e+200', '5e-200']
    """
    squares = _sum_of_squares(x, dim)
    norm = squares.sqrt()
    limits = torch.finfo(norm.dtype)
    # A square that underflows is below `tiny`: beside a sum above tiny / eps^2 it is lost in rounding anyway.
    safe = (squares > limits.tiny / limits.eps**2) & (squares < limits.max)
    if bool(safe.all()):
        return norm
    exponent = exponent_of(magnitude(x).amax(dim))
    near_one = scaled_by(x, -exponent.unsqueeze(dim)).to(x.dtype)
    return torch.where(safe, norm, scaled_by(_sum_of_squares(near_one, dim).sqrt(), exponent).to(norm.dtype))


def _sum_of_squares(x: torch.Tensor, dim: int) -> torch.Tensor:
    if x.is_complex():
        return (x.real * x.real + x.imag * x.imag).sum(dim)
    return (x * x).sum(dim)


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """Largest of the parts of each number: within the root of two of its modulus, exact, and free of overflow."""
    return torch.maximum(x.real.abs(), x.imag.abs()) if x.is_complex() else x.abs()


def column_scaled(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices (n, p, G) with columns of norm in [0.5, 1), and the exponents e (p, G) that undo it: A = scaled 2^e.

    A zero column keeps the scale 1.
    """
    exponent = exponent_of(euclidean_norm(A, dim=0))
    return scaled_by(A, -exponent), exponent


def equilibrated(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Matrices (n, n, G) with rows and then columns of largest entry in [0.5, 1), and both exponents (n, G).

    A = scaled 2^(row + column), as LAPACK's xGEEQUB scales: by powers of two, so without rounding.
    """
    row = exponent_of(magnitude(A).amax(1))
    rows_done = scaled_by(A, -row.unsqueeze(1))
    column = exponent_of(magnitude(rows_done).amax(0))
    return scaled_by(rows_done, -column), row, column


def symmetrically_equilibrated(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric or Hermitian matrices (n, n, G), rows and columns scaled alike, and the exponents (n, G).

    A = scaled 2^(e_i + e_j), and the largest entry of each row is in [0.5, 2) unless the row is zero. Every step
    divides row and column by about the root of the row's largest entry (Ruiz, A scaling algorithm to equilibrate both
    rows and columns norms in matrices, RAL-TR-2001-034), so that it halves the exponents that are left; `HALVINGS`
    steps make any that float64 has less than one. A matrix that is done stays as it is while others go on. A positive
    definite one ends with its diagonal in [0.5, 2): no entry is larger than the root of the product of two of it.
    """
    size = magnitude(A)
    exponent = torch.zeros(size.shape[1:], dtype=torch.int64, device=A.device)
    for _ in range(HALVINGS):
        step = exponent_of(size.amax(1)).div(2, rounding_mode="floor")
        if not bool(step.any()):
            break
        exponent += step
        size = _both_sides(size, -step)
    return _both_sides(A, -exponent), exponent


def _both_sides(A: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Rows and columns of matrices (n, n, G) times 2 to the exponents (n, G)."""
    return scaled_by(scaled_by(A, exponent.unsqueeze(1)), exponent)


def batch_first(x: torch.Tensor) -> torch.Tensor:
    """(..., G) as a contiguous (G, ...): what batched routines take.

    Fields arrive with pixels last, where scaling a batch of small matrices runs along memory; the routines that
    factor them want each matrix in one piece.
    """
    return x.movedim(-1, 0).contiguous()


def batch_last(x: torch.Tensor) -> torch.Tensor:
    """(G, ...) as a contiguous (..., G)."""
    return x.movedim(0, -1).contiguous()
