"""Non-negative least squares: the x that minimises sum w |A x - b|^2 within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tilewise.errors import DimensionError, DTypeError, ParameterError
from tilewise.fields import FieldSpec, is_complex
from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.diagnostics import checked_choice, checked_diagnostics
from tilewise.kernels.systems import (
    NanPolicy,
    checked_min_valid,
    checked_rcond,
    declared_equations,
    equations,
    panel_of,
    pixel_panel_of,
)
from tilewise.kernels.values import checked_numbers, checked_whole
from tilewise.linalg.batching import MOST_IN_TABLE, bounded_bytes, bounded_design_bytes, least_squares_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors
    from tilewise.linalg.bounded import Options

NnlsDiagnostic = Literal["rank", "n_valid", "condition", "residual_norm", "r2"]


@dataclass(frozen=True, kw_only=True)
class Nnls(Kernel, name="nnls"):
    """Weighted least-squares solution of A x = b with 0 <= x <= upper and, on request, sum of x = 1.

    Inputs are A (dim, unknown, ...), b (dim, ...), and if wanted weights (dim, ...) of the squared residuals and upper
    bounds (unknown, ...). All but b are shared by all pixels, or vary along any of the tile dimensions; dimensions of b
    that A lacks are further right-hand sides. What is minimised at each pixel is the sum of weights |b - A x|^2 over
    the rows that are there: those whose weight is not zero and which, under `nan_policy` omit, have no NaN.

    A is compressed by QR. Which unknowns are at a bound is found exactly, by exchanging them in blocks and, where that
    does not end, by the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23), with
    upper bounds after Stark and Parker (Computational Statistics 10, 1995). With `sum_to_one` it is the fully
    constrained unmixing of Heinz and Chang (IEEE Transactions on Geoscience and Remote Sensing 39, 2001); but the sum
    is eliminated, where they add a heavy row, so that it is one to rounding: |sum - 1| <= 4 p eps for p unknowns. Of
    unknowns that would serve equally the first enters. The optimality of every solution is checked with its residual.

    Outputs
    -------
    solution (unknown, *tile)
        In the result type of the inputs (float64 for integers); in units of b over units of A.
    status (*tile)
        uint8: ok; ill_conditioned where the condition of A exceeds 1 / sqrt(eps) of float64; rank_deficient where the
        minimiser is not unique, with one of them; underdetermined where there are fewer rows than unknowns, with one
        minimiser; not_converged where `max_iter` did not do or the conditions of optimality do not hold, with the last
        iterate; too_few where there are fewer rows than `min_valid`, with solution NaN; infeasible where an upper bound
        is negative or NaN, or bounds keep the sum below one, with solution NaN; non_finite where a row that is there
        holds an infinity, a NaN or a weight that is negative or infinite, or the solution is not finite, with solution
        NaN; no_data where no row is there, with solution NaN.
    rank, n_valid (*tile)
        int32: numerical rank of A; rows of A that are there. The rank is -1 where the status is non_finite.
    condition (*tile)
        Condition number in the 2-norm of the weighted A with its columns scaled, by powers of two, to norms from a
        half to one; infinite where the rank is less than the number of unknowns.
    residual_norm (*tile)
        Square root of the sum of weights |b - A x|^2.
    r2 (*tile)
        Coefficient of determination: 1 - residual_norm^2 / sum of weights |b - m|^2, where m is the weighted mean of b
        if a constant lies in the column space of A, else 0. NaN where that sum is 0.

    Parameters
    ----------
    dim
        Dimension of A and b over the equations.
    unknown
        Dimension of A over the unknowns; may be left out where A has exactly one dimension that b lacks.
    nan_policy
        What a NaN in b, weights or A means: "propagate" makes its pixel non_finite, "omit" leaves its row out, and
        "raise" fails. A NaN in a shared A or in shared weights is an error unless it is "omit".
    min_valid
        Rows that a pixel needs to have any solution; with fewer it is too_few. From 1 to the number of equations.
    rcond
        Singular values of the column-scaled A at most this times the largest are zero; from 0 to below 1. Left
        out, it is max(n, p) eps of float64 for n rows in p unknowns. Unknowns whose column depends on those that are
        already free stay at their bound.
    sum_to_one
        Whether the unknowns sum to one.
    upper
        Upper bounds, of at least 0: one number, or one for each unknown; inf is none. Bounds that differ by pixel are
        the input `upper` instead.
    max_iter
        Least-squares problems that a pixel may take, one for each set of unknowns that is tried; 10 p if left out.
    diagnostics
        Any of "rank", "n_valid", "condition", "residual_norm" and "r2".

    Raises
    ------
    DimensionError
        The unknown cannot be told, or the dimensions do not fit.
    DTypeError
        An input is complex.
    ParameterError
        A parameter has a value that it cannot have, or the bounds cannot hold.

    >>> import numpy as np, xarray as xr
    >>> A = xr.DataArray([[1, 0], [0, 1], [1, 1]], dims=("band", "material"))
    >>> b = xr.DataArray([1.5, -0.2, 1.2], dims="band")
    >>> Nnls(dim="band")(A=A, b=b)["solution"].values.round(12)
    array([1.35, 0.  ])
    >>> Nnls(dim="band", sum_to_one=True)(A=A, b=b)["solution"].values
    array([1., 0.])
    """

    dim: str
    unknown: str | None = None
    nan_policy: NanPolicy = "propagate"
    min_valid: int = 1
    rcond: float | None = None
    sum_to_one: bool = False
    upper: float | tuple[float, ...] | None = None
    max_iter: int | None = None
    diagnostics: tuple[NnlsDiagnostic, ...] = ()

    input_sets = (("A", "b"), ("A", "b", "weights"), ("A", "b", "upper"), ("A", "b", "weights", "upper"))

    def __post_init__(self) -> None:
        """Refuse values that the parameters cannot have."""
        _refuse_stderr(self.diagnostics)
        diagnostics = checked_diagnostics(self.diagnostics, get_args(NnlsDiagnostic))
        object.__setattr__(self, "diagnostics", diagnostics)
        checked_choice(self.nan_policy, get_args(NanPolicy), "nan_policy")
        checked_rcond(self.rcond)
        checked_choice(self.sum_to_one, (True, False), "sum_to_one")
        if self.upper is not None:
            upper = checked_numbers(self.upper, "upper", do="leave it out, or use inf, for no bound")
            object.__setattr__(self, "upper", upper)
        min_valid = checked_whole(self.min_valid, "min_valid", do="leave it out for 1")
        object.__setattr__(self, "min_valid", min_valid)
        if self.max_iter is not None:
            do = "leave it out for 10 times the number of unknowns"
            object.__setattr__(self, "max_iter", checked_whole(self.max_iter, "max_iter", do=do))

    @property
    def _uppers(self) -> tuple[float, ...]:
        if self.upper is None:
            return ()
        return self.upper if isinstance(self.upper, tuple) else (self.upper,)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """Solution, status and diagnostics of a bounded linear system."""
        for spec in fields.values():
            if is_complex(spec.dtype):
                raise DTypeError(
                    f"{spec.name} is complex, and a complex number is neither negative nor positive",
                    got=spec.dtype,
                    expected="real inputs",
                    do="solve for real and imaginary parts, stacked along the equations",
                )
        system = equations(self, fields, self.dim, self.unknown)
        n, p = system.shape
        checked_min_valid(self.min_valid, n)
        self._check_bounds(p, system.unknown, given="upper" in fields)
        return system.signature(self.diagnostics)

    def _check_bounds(self, p: int, unknown: str, *, given: bool) -> None:
        uppers = self._uppers
        if uppers and given:
            raise ParameterError(
                "upper bounds are given twice",
                got="the input upper and kernel.upper",
                do="leave out one of them",
            )
        if isinstance(self.upper, tuple) and len(uppers) != p:
            raise DimensionError(
                "kernel.upper does not have one value for each unknown",
                got=f"{len(uppers)} values for {p} along {unknown!r}",
                do="give one number, or one for each unknown",
            )
        total = math.fsum(uppers * (p if len(uppers) == 1 else 1))
        if self.sum_to_one and uppers and total < 1 - p * 2.0**-52:
            raise ParameterError(
                "the unknowns cannot sum to one",
                got=f"kernel.upper with a sum of {total:.6g} over {p} unknowns",
                do="raise kernel.upper, or set kernel.sum_to_one to false",
            )

    def prepare(self, shared: Tensors) -> Any:
        """What is compressed of the inputs that all pixels share.

        Raises
        ------
        ParameterError
            A shared value is not finite, or is no weight; or shared bounds cannot hold.
        """
        from tilewise.linalg.bounded import bounded_state

        return bounded_state(shared, self.dim, self._options())

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Solve every pixel of a tile."""
        from tilewise.linalg.bounded import solve_bounded

        solve_bounded(state, fields, out, self._options(), panel=panel)

    def _options(self) -> Options:
        from tilewise.linalg.bounded import Options

        return Options(
            policy=self.nan_policy,
            min_valid=self.min_valid,
            rcond=self.rcond,
            sum_to_one=self.sum_to_one,
            upper=self._uppers,
            max_iter=self.max_iter,
            r2="r2" in self.diagnostics,
        )

    def footprint(self, signature: Signature) -> Footprint:
        """Bytes of a shared A and its factors, and of what factoring takes."""
        system = declared_equations(signature)
        n, p = system.shape
        small = 32 * (n + p) + 4096
        if not system.shared:
            return Footprint(state=small, peak=2 * small)
        state, peak = bounded_design_bytes(n, p, tabled=p <= MOST_IN_TABLE)
        if "r2" in self.diagnostics:
            extra = least_squares_bytes(1, n, p, 8) + 8 * n * (p * (p + 1) // 2 + 12 * p)
            state, peak = state + extra, peak + 2 * extra
        return Footprint(state=state + small, peak=peak + small)

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """Bytes of panels, and of factors where A or its rows vary."""
        system = declared_equations(signature)
        n, p = system.shape
        extra = least_squares_bytes(1, n, p, 8) + 12 * 8 * panel * n if "r2" in self.diagnostics else 0
        return bounded_bytes(panel, n, p, own=not system.shared, tabled=system.shared and p <= MOST_IN_TABLE) + extra

    def panel(self, signature: Signature) -> int:
        """Pixels worked on at a time."""
        return panel_of(signature) if declared_equations(signature).shared else pixel_panel_of(signature)


def _refuse_stderr(diagnostics: object) -> None:
    names = (diagnostics,) if isinstance(diagnostics, str) else diagnostics
    if isinstance(names, (tuple, list)) and "stderr" in names:
        raise ParameterError(
            "kernel.diagnostics has stderr, and bounds bias the solution",
            expected="standard errors of unbiased least squares",
            do="leave out stderr, or use the kernel lstsq",
        )
