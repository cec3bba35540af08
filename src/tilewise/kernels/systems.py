"""What kernels of linear systems declare alike: A and b with what belongs to them, the unknown, and the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from tilewise.errors import DimensionError, DTypeError, ParameterError
from tilewise.fields import FieldSpec, OutputSpec, is_complex, result_dtype
from tilewise.kernels.base import Kernel, Signature
from tilewise.kernels.diagnostics import Diagnostic, diagnostic_outputs, status_output
from tilewise.linalg.batching import (
    batch_shape,
    least_squares_bytes,
    pixel_bytes,
    pixel_panel,
    right_hand_side_bytes,
    shared_design_bytes,
    shared_panel,
)

NanPolicy = Literal["propagate", "omit", "raise"]


@dataclass(frozen=True)
class Equations:
    """The system A x = b by its dimensions: `dim` equations in `unknown`, over the tile dimensions.

    `others` are the further inputs by name, each with its core dimensions: weights (dim), L (row, unknown), and
    what else a kernel has.
    """

    A: FieldSpec
    b: FieldSpec
    dim: str
    unknown: str
    others: Mapping[str, tuple[FieldSpec, tuple[str, ...]]]

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
        """The declaration: tile dimensions in the order of b, then those of A that b lacks, then of the others."""
        dtype = result_dtype([self.b.dtype, self.A.dtype, *(spec.dtype for spec, _ in self.others.values())])
        core = {"b": (self.dim,), "A": (self.dim, self.unknown)}
        core |= {name: dims for name, (_, dims) in self.others.items()}
        fields = {"b": self.b, "A": self.A, **{name: spec for name, (spec, _) in self.others.items()}}
        return Signature.of(
            fields,
            core=core,
            outputs=[
                OutputSpec(
                    "solution", (self.unknown,), (self.shape[1],), dtype, attrs={"long_name": "solution of A x = b"}
                ),
                status_output(),
                *diagnostic_outputs(diagnostics, (self.unknown, self.shape[1]), dtype),
            ],
            shared=[name for name, spec in fields.items() if name != "b" and set(spec.dims) == set(core[name])],
        )


def equations(kernel: Kernel, fields: Mapping[str, FieldSpec], dim: str, unknown: str | None) -> Equations:
    """The system that a kernel is given.

    Raises
    ------
    DimensionError
        An input is missing, lacks a dimension that it needs, or has no values along it; or the unknown cannot be
        told.
    DTypeError
        Weights, or what else is real, are complex.
    """
    fields = kernel.check_inputs(fields)
    A, b = fields["A"], fields["b"]
    for spec in (A, b):
        kernel.check_dim(spec, dim, "dim")
    name = _unknown(A, b, dim, unknown)
    others = {}
    for key, spec in fields.items():
        if key not in ("A", "b"):
            others[key] = (spec, _core_dims(kernel, spec, dim, name, fields))
    found = Equations(A, b, dim, name, others)
    for name, size in zip((dim, found.unknown), found.shape, strict=True):
        if size == 0:
            raise DimensionError(f"A has no values along {name!r}", got="size 0", expected="at least 1")
    return found


def _core_dims(
    kernel: Kernel, spec: FieldSpec, dim: str, unknown: str, fields: Mapping[str, FieldSpec]
) -> tuple[str, ...]:
    """Core dimensions of an input other than A and b: over the equations, or over the unknowns."""
    if spec.name == "L":
        return _penalty_dims(spec, unknown, fields)
    if is_complex(spec.dtype):
        raise DTypeError(
            f"{spec.name} is complex", got=spec.dtype, expected="real numbers", do=f"give real {spec.name}"
        )
    if spec.name == "weights":
        if dim not in spec.dims:
            raise DimensionError(
                f"weights have no dimension {dim!r}",
                got=f"dims {spec.dims}",
                expected="one weight for each equation, at each pixel if wanted",
                do=f"name their dimension over the equations {dim!r}",
            )
        if unknown in spec.dims:
            raise DimensionError(
                f"weights have the dimension {unknown!r} of the unknowns",
                got=f"dims {spec.dims}",
                expected="one weight for each equation, at each pixel if wanted",
                do="sum or select them along it first",
            )
        return (dim,)
    if unknown not in spec.dims:
        raise DimensionError(
            f"{spec.name} has no dimension {unknown!r}",
            got=f"dims {spec.dims}",
            expected="one value for each unknown",
            do=f"give it the dimension {unknown!r}",
        )
    return (unknown,)


def _penalty_dims(L: FieldSpec, unknown: str, fields: Mapping[str, FieldSpec]) -> tuple[str, ...]:
    others = [dim for dim in L.dims if dim != unknown]
    taken = {dim for name, spec in fields.items() if name != "L" for dim in spec.dims}
    if unknown in L.dims and len(others) == 1 and others[0] not in taken:
        return (others[0], unknown)
    raise DimensionError(
        "L does not have the dimensions of a Tikhonov matrix",
        got=f"dims {L.dims}",
        expected=f"two dimensions: {unknown!r}, and one over its rows that no other input has; one L serves all pixels",
        do="give it these dimensions; inputs.L.dims, or rename, changes their names",
    )


def declared_equations(signature: Signature) -> Equations:
    """The system that a signature was declared for."""
    dim, unknown = signature.core["A"]
    fields = signature.fields
    others = {name: (spec, signature.core[name]) for name, spec in fields.items() if name not in ("A", "b")}
    return Equations(fields["A"], fields["b"], dim, unknown, others)


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


def pixels_bytes(signature: Signature, panel: int, extra: int) -> int:
    """Upper bound of the bytes of temporaries where pixels have rows of their own, and `extra` ones below those."""
    system = declared_equations(signature)
    n, p = system.shape
    named = {out.name for out in signature.outputs}
    others = sum(spec.sizes[core[0]] for name, (spec, core) in system.others.items() if name not in ("weights", "L"))
    needed = pixel_bytes(
        panel,
        n,
        p,
        system.itemsize,
        extra=extra,
        others=others,
        own=not system.shared,
        inverse=bool(named & {"stderr", "condition"}),
    )
    if system.shared and is_complex(system.b.dtype) and not is_complex(system.A.dtype):
        # A shared A is factored anew in complex numbers.
        needed += 2 * shared_design_bytes(n, p, extra, 16) + least_squares_bytes(1, n + extra, p, 16)
    return needed


def pixel_panel_of(signature: Signature) -> int:
    """Pixels worked on at a time where they have rows of their own."""
    system = declared_equations(signature)
    return pixel_panel(*system.shape, own=not system.shared)


def checked_rcond(rcond: float | None) -> None:
    """Refuse a cut that is none."""
    if rcond is not None and not (isinstance(rcond, Real) and 0 <= float(rcond) < 1):
        raise ParameterError(
            "kernel.rcond is out of range",
            got=rcond,
            expected="at least 0 and below 1",
            do="leave it out for max(n, p) times the eps of float64",
        )


def checked_min_valid(min_valid: int, n: int) -> None:
    """Refuse a number of rows that no pixel can have."""
    if min_valid > n:
        raise ParameterError(
            "kernel.min_valid is out of range",
            got=min_valid,
            expected=f"a whole number from 1 to the {n} equations",
            do="leave it out for 1",
        )


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
