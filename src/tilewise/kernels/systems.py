"""What kernels of linear systems declare alike: A and b, the unknown, the status and the diagnostics."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec, OutputSpec, Status, is_complex, real_dtype, result_dtype
from tilewise.kernels.base import Kernel, Signature
from tilewise.linalg.batching import batch_shape, right_hand_side_bytes, shared_panel

#: Value of a rank that was not computed, or that a matrix that is not finite does not have.
NO_RANK = -1

Diagnostic = Literal["rank", "condition", "residual_norm"]
DIAGNOSTICS: tuple[Diagnostic, ...] = get_args(Diagnostic)


@dataclass(frozen=True)
class Equations:
    """The system A x = b by its dimensions: `dim` equations in `unknown`, over the tile dimensions."""

    A: FieldSpec
    b: FieldSpec
    dim: str
    unknown: str

    @property
    def shape(self) -> tuple[int, int]:
        """Equations and unknowns, (n, p)."""
        return self.A.sizes[self.dim], self.A.sizes[self.unknown]

    @property
    def itemsize(self) -> int:
        """Bytes of a number in double precision, complex where an input is."""
        return 16 if is_complex(self.A.dtype) or is_complex(self.b.dtype) else 8

    @property
    def shared(self) -> bool:
        """Whether one A serves every pixel."""
        return set(self.A.dims) == {self.dim, self.unknown}

    def signature(self, diagnostics: Iterable[Diagnostic]) -> Signature:
        """The declaration: tile dimensions in the order of b, then those of A that b lacks."""
        dtype = result_dtype([self.A.dtype, self.b.dtype])
        return Signature.of(
            {"b": self.b, "A": self.A},
            core={"A": (self.dim, self.unknown), "b": (self.dim,)},
            outputs=[
                OutputSpec(
                    "solution", (self.unknown,), (self.shape[1],), dtype, attrs={"long_name": "solution of A x = b"}
                ),
                status_output(),
                *(_DIAGNOSTICS[name](dtype) for name in diagnostics),
            ],
            shared=["A"] if self.shared else [],
        )


def equations(kernel: Kernel, fields: Mapping[str, FieldSpec], dim: str, unknown: str | None) -> Equations:
    """The system that a kernel is given.

    Raises
    ------
    DimensionError
        An input is missing, lacks `dim`, or has no values along it; or the unknown cannot be told.
    """
    fields = kernel.check_inputs(fields)
    A, b = fields["A"], fields["b"]
    for spec in (A, b):
        kernel.check_dim(spec, dim, "dim")
    found = Equations(A, b, dim, _unknown(A, b, dim, unknown))
    for name, size in zip((dim, found.unknown), found.shape, strict=True):
        if size == 0:
            raise DimensionError(f"A has no values along {name!r}", got="size 0", expected="at least 1")
    return found


def declared_equations(signature: Signature) -> Equations:
    """The system that a signature was declared for."""
    dim, unknown = signature.core["A"]
    return Equations(signature.fields["A"], signature.fields["b"], dim, unknown)


def solving_bytes(
    signature: Signature, sizes: Mapping[str, int], panel: int, factor_bytes: Callable[[int, int, int, int], int]
) -> int:
    """Upper bound of the bytes of temporaries that solving a tile takes.

    `factor_bytes` bounds what factoring takes, from a count of matrices, their rows and columns, and an itemsize.
    """
    system = declared_equations(signature)
    (n, p), itemsize = system.shape, system.itemsize
    residual = any(out.name == "residual_norm" for out in signature.outputs)
    if system.shared:
        factors = 2 * n * p * itemsize  # A and its factors in the dtype computed in
        return factors + right_hand_side_bytes(1, panel, n, p, itemsize, residual=residual)
    matrices = math.prod(sizes[dim] for dim in system.A.dims if dim in signature.tile_dims)
    pixels = math.prod(sizes[dim] for dim in signature.tile_dims)
    count, width = batch_shape(panel, matrices, pixels // matrices, n, p)
    rhs = right_hand_side_bytes(count, width, n, p, itemsize, residual=residual)
    return factor_bytes(count, n, p, itemsize) + rhs


def panel_of(signature: Signature) -> int:
    """Pixels worked on at a time: what stays in cache beside a shared A, or 4096 with matrices of their own."""
    system = declared_equations(signature)
    return shared_panel(*system.shape) if system.shared else 4096


def _unknown(A: FieldSpec, b: FieldSpec, dim: str, unknown: str | None) -> str:
    candidates = [name for name in A.dims if name not in b.dims]
    if unknown is None and len(candidates) == 1:
        return candidates[0]
    if unknown in candidates:
        return str(unknown)
    what = "the dimension of the unknowns is not clear" if unknown is None else f"{unknown!r} cannot be the unknown"
    if not candidates:
        do = "give A a dimension that b lacks: the one over the unknowns"
    else:
        do = "set kernel.unknown to " + " or ".join(map(repr, candidates))
    raise DimensionError(
        what,
        got=f"A with dims {A.dims}, b with dims {b.dims}",
        expected=f"a dimension of A, other than {dim!r}, that b lacks: " + (", ".join(candidates) or "there is none"),
        do=do,
    )


def status_output() -> OutputSpec:
    """The status of each pixel as CF flags; 255, the fill value, is a pixel that was not computed."""
    return OutputSpec(
        "status",
        (),
        (),
        "uint8",
        fill=int(Status.NOT_COMPUTED),
        attrs={
            "long_name": "status of the solution",
            "flag_values": [int(status) for status in Status],
            "flag_meanings": " ".join(status.meaning for status in Status),
        },
    )


def _rank_output(dtype: str) -> OutputSpec:
    return OutputSpec("rank", (), (), "int32", fill=NO_RANK, attrs={"long_name": "numerical rank of A"})


def _condition_output(dtype: str) -> OutputSpec:
    return OutputSpec("condition", (), (), real_dtype(dtype), attrs={"long_name": "condition number of the scaled A"})


def _residual_norm_output(dtype: str) -> OutputSpec:
    return OutputSpec("residual_norm", (), (), real_dtype(dtype), attrs={"long_name": "2-norm of b - A x"})


_DIAGNOSTICS: Mapping[Diagnostic, Callable[[str], OutputSpec]] = {
    "rank": _rank_output,
    "condition": _condition_output,
    "residual_norm": _residual_norm_output,
}


def checked_diagnostics(names: str | Iterable[str]) -> tuple[str, ...]:
    """Diagnostics as a tuple without repetition.

    Raises
    ------
    ParameterError
        There is no diagnostic of that name.

    >>> checked_diagnostics(["rank", "rank"])
    ('rank',)
    """
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        checked_choice(name, DIAGNOSTICS, "diagnostics")
    return tuple(dict.fromkeys(listed))


def checked_choice(value: object, allowed: Iterable[str], parameter: str) -> None:
    """Refuse a value that is not one of the words allowed, and name the nearest of them.

    >>> checked_choice("ranks", DIAGNOSTICS, "diagnostics")
    Traceback (most recent call last):
    tilewise.errors.ParameterError: kernel.diagnostics does not know 'ranks'; expected: rank, condition,
    residual_norm. To mend it: write 'rank' instead.
    """
    words = list(allowed)
    if value in words:
        return
    near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.5)
    raise ParameterError(
        f"kernel.{parameter} does not know {value!r}",
        expected=", ".join(words),
        do=f"write {near[0]!r} instead" if near else "use one of these words",
    )
