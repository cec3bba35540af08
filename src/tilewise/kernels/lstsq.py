"""Least squares: the x that minimises ||A x - b||."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tilewise.errors import ParameterError
from tilewise.fields import FieldSpec
from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.diagnostics import Diagnostic, checked_choice, checked_diagnostics
from tilewise.kernels.systems import (
    declared_equations,
    equations,
    panel_of,
    solving_bytes,
)
from tilewise.linalg.batching import least_squares_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors

Precision = Literal["auto", "float32", "float64"]
Deficient = Literal["min_norm", "nan"]


@dataclass(frozen=True, kw_only=True)
class Lstsq(Kernel, name="lstsq"):
    """Least-squares solution of A x = b of minimum norm, with its rank decided on the column-scaled A.

    Inputs are A (dim, unknown, ...) and b (dim, ...). A is shared by all pixels, or varies along any of the tile
    dimensions; dimensions of b that A lacks are further right-hand sides.

    Outputs
    -------
    solution (unknown, *tile)
        In the result type of the inputs (float64 for integers); in units of b over units of A.
    status (*tile)
        uint8: ok; ill_conditioned where the condition exceeds 1 / sqrt(eps) of float64; rank_deficient;
        underdetermined where there are fewer equations than unknowns; non_finite where A, b or the solution is not
        finite, with solution NaN. The other solutions are kept, unless `deficient` says otherwise.

    Parameters
    ----------
    dim
        Dimension of A and b over the equations.
    unknown
        Dimension of A over the unknowns; may be left out where A has exactly one dimension that b lacks.
    rcond
        Singular values of the column-scaled A at most this times the largest are zero; from 0 to below 1. Left
        out, it is max(n, p) eps of float64 for n equations in p unknowns.
    precision
        How a shared pseudo-inverse is applied: "float32", "float64", or "auto", which is float32 where A and b are
        no wider and the condition times 2^-24 is at most 1e-5. Under "float32" a b beyond its range is non_finite.
        An A that varies is always factored and applied in float64.
    deficient
        "min_norm" keeps the minimum-norm solution where the rank is less than the number of unknowns; "nan" puts
        NaN there. The status says so in either case.
    diagnostics
        Any of "rank" (int32) and "residual_norm" (2-norm of b - A x, in the precision of the solution).

    Raises
    ------
    DimensionError
        The unknown cannot be told, or the dimensions do not fit.
    ParameterError
        A parameter has a value that it cannot have.

    >>> from tilewise.fields import FieldSpec
    >>> A = FieldSpec("A", ("date", "term"), (50, 3), "float64")
    >>> b = FieldSpec("b", ("date", "y", "x"), (50, 20, 30), "int16")
    >>> [(out.name, out.dims, out.dtype) for out in Lstsq(dim="date").declare({"A": A, "b": b}).outputs]
    [('solution', ('term', 'y', 'x'), 'float64'), ('status', ('y', 'x'), 'uint8')]
    """

    dim: str
    unknown: str | None = None
    rcond: float | None = None
    precision: Precision = "auto"
    deficient: Deficient = "min_norm"
    diagnostics: tuple[Diagnostic, ...] = ()

    input_sets = (("A", "b"),)

    def __post_init__(self) -> None:
        """Refuse values that the parameters cannot have."""
        object.__setattr__(self, "diagnostics", checked_diagnostics(self.diagnostics, ("rank", "residual_norm")))
        checked_choice(self.precision, get_args(Precision), "precision")
        checked_choice(self.deficient, get_args(Deficient), "deficient")
        if self.rcond is not None and not 0 <= self.rcond < 1:
            raise ParameterError(
                "kernel.rcond is out of range",
                got=self.rcond,
                expected="at least 0 and below 1",
                do="leave it out for max(n, p) times the eps of float64",
            )

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """Solution, status and diagnostics of a linear system."""
        return equations(self, fields, self.dim, self.unknown).signature(self.diagnostics)

    def prepare(self, shared: Tensors) -> Any:
        """The pseudo-inverse of an A that all pixels share.

        Raises
        ------
        ParameterError
            A has a value that is not finite; or precision is float32, which cannot hold the pseudo-inverse.
        """
        if "A" not in shared:
            return None
        from tilewise.linalg.tiles import least_squares_state

        return least_squares_state(shared["A"], self.dim, rcond=self.rcond, precision=self.precision)

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Solve every pixel of a tile."""
        from tilewise.linalg.tiles import solve_least_squares

        solve_least_squares(
            state,
            fields,
            out,
            rcond=self.rcond,
            precision=self.precision,
            keep_deficient=self.deficient == "min_norm",
            panel=panel,
        )

    def footprint(self, signature: Signature) -> Footprint:
        """Bytes of a shared A and its pseudo-inverse, and of what the SVD takes."""
        system = declared_equations(signature)
        if not system.shared:
            return Footprint()
        (n, p), itemsize = system.shape, system.itemsize
        state = 2 * n * p * itemsize
        return Footprint(state=state + 1024, peak=state + least_squares_bytes(1, n, p, itemsize))

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """Bytes of panels, and of factors where A varies."""
        return solving_bytes(signature, sizes, panel, least_squares_bytes)

    def panel(self, signature: Signature) -> int:
        """Pixels worked on at a time."""
        return panel_of(signature)
