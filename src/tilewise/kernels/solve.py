"""Square systems: A x = b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tilewise.errors import DimensionError
from tilewise.fields import FieldSpec
from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.diagnostics import checked_choice, checked_diagnostics
from tilewise.kernels.systems import (
    declared_equations,
    equations,
    panel_of,
    solving_bytes,
)
from tilewise.linalg.batching import square_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors

AssumeA = Literal["general", "symmetric", "positive definite"]
SquareDiagnostic = Literal["rank", "condition", "residual_norm"]


@dataclass(frozen=True, kw_only=True)
class Solve(Kernel, name="solve"):
    """Solution of A x = b with as many equations as unknowns, by factors of the equilibrated A.

    Inputs are A (dim, unknown, ...) and b (dim, ...). A is shared by all pixels, or varies along any of the tile
    dimensions; dimensions of b that A lacks are further right-hand sides. Everything is computed in float64 or
    complex128, by LU with partial pivoting, or by Cholesky where A is positive definite. Rows and columns are first
    scaled by powers of two, rows and columns alike where A is symmetric or positive definite.

    Outputs
    -------
    solution (unknown, *tile)
        In the result type of the inputs (float64 for integers); in units of b over units of A.
    status (*tile)
        uint8: ok; ill_conditioned where the 1-norm condition of the equilibrated A exceeds 1 / sqrt(eps);
        rank_deficient where it exceeds 1 / (n eps), with solution NaN; infeasible where A was assumed positive
        definite and has a negative eigenvalue that rounding does not explain, with solution NaN; non_finite where A,
        b or the solution is not finite, with solution NaN. eps is that of float64.

    Parameters
    ----------
    dim
        Dimension of A and b over the equations.
    unknown
        Dimension of A over the unknowns; may be left out where A has exactly one dimension that b lacks.
    assume_a
        "general"; "symmetric", A = A^T, also where A is complex; or "positive definite", Hermitian where A is complex.
        Of the latter two only the lower triangle is referenced, where the index along `dim` is at least that along
        the unknown: what stands above, NaN too, is not looked at. Of a complex positive definite A the diagonal is
        taken as real.
    diagnostics
        Any of "rank" (int32, by singular values of the equilibrated A), "condition" (of the equilibrated A in the
        1-norm; infinite where rank_deficient, NaN where infeasible or non_finite) and "residual_norm" (2-norm of
        b - A x).

    Raises
    ------
    DimensionError
        The unknown cannot be told, or A is not square.
    ParameterError
        A parameter has a value that it cannot have, or Solve has no such diagnostic.

    >>> from tilewise.fields import FieldSpec
    >>> A = FieldSpec("A", ("equation", "unknown"), (3, 3), "float32")
    >>> b = FieldSpec("b", ("equation", "y", "x"), (3, 20, 30), "float32")
    >>> [(out.name, out.dims, out.dtype) for out in Solve(dim="equation").declare({"A": A, "b": b}).outputs]
    [('solution', ('unknown', 'y', 'x'), 'float32'), ('status', ('y', 'x'), 'uint8')]
    """

    dim: str
    unknown: str | None = None
    assume_a: AssumeA = "general"
    diagnostics: tuple[SquareDiagnostic, ...] = ()

    input_sets = (("A", "b"),)

    def __post_init__(self) -> None:
        """Refuse values that the parameters cannot have."""
        object.__setattr__(self, "diagnostics", checked_diagnostics(self.diagnostics, get_args(SquareDiagnostic)))
        checked_choice(self.assume_a, get_args(AssumeA), "assume_a")

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """Solution, status and diagnostics of a square system."""
        system = equations(self, fields, self.dim, self.unknown)
        n, p = system.shape
        if n != p:
            raise DimensionError(
                "A is not square",
                got=f"{n} along {self.dim!r}, {p} along {system.unknown!r}",
                expected="as many equations as unknowns",
                do="use the kernel lstsq for other shapes",
            )
        return system.signature(self.diagnostics)

    def prepare(self, shared: Tensors) -> Any:
        """Factors of an A that all pixels share.

        Raises
        ------
        ParameterError
            A has a value that is not finite.
        """
        if "A" not in shared:
            return None
        from tilewise.linalg.tiles import square_state

        return square_state(shared["A"], self.dim, assume_a=self.assume_a, want_rank="rank" in self.diagnostics)

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Solve every pixel of a tile."""
        from tilewise.linalg.tiles import solve_square

        solve_square(state, fields, out, assume_a=self.assume_a, want_rank="rank" in self.diagnostics, panel=panel)

    def footprint(self, signature: Signature) -> Footprint:
        """Bytes of a shared A and its factors, and of what factoring takes."""
        system = declared_equations(signature)
        if not system.shared:
            return Footprint()
        (n, _), itemsize = system.shape, system.itemsize
        state = 2 * n * n * itemsize + 32 * n
        return Footprint(state=state + 1024, peak=state + square_bytes(1, n, itemsize))

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """Bytes of panels, and of factors where A varies."""
        return solving_bytes(signature, sizes, panel, lambda count, n, _, itemsize: square_bytes(count, n, itemsize))

    def panel(self, signature: Signature) -> int:
        """Pixels worked on at a time."""
        return panel_of(signature)
