"""Least squares: the x that minimises sum w |A x - b|^2, with gaps, weights and a ridge."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec
from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.diagnostics import Diagnostic, checked_choice, checked_diagnostics
from tilewise.kernels.systems import (
    NanPolicy,
    checked_min_valid,
    checked_rcond,
    declared_equations,
    equations,
    panel_of,
    pixel_panel_of,
    pixels_bytes,
    solving_bytes,
)
from tilewise.kernels.values import checked_numbers, checked_whole
from tilewise.linalg.batching import least_squares_bytes, shared_design_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors
    from tilewise.linalg.least_squares import Options

Precision = Literal["auto", "float32", "float64"]
Deficient = Literal["min_norm", "nan"]
WeightsKind = Literal["relative", "absolute"]


@dataclass(frozen=True, kw_only=True)
class Lstsq(Kernel, name="lstsq"):
    """Weighted least-squares solution of A x = b of minimum norm, with its rank decided on the column-scaled A.

    Inputs are A (dim, unknown, ...), b (dim, ...), and if wanted weights (dim, ...) of the squared residuals and a
    Tikhonov matrix L (row, unknown). A and weights are shared by all pixels, or vary along any of the tile
    dimensions; dimensions of b that A lacks are further right-hand sides. What is minimised at each pixel is

        sum of weights |b - A x|^2  +  sum of ridge |x|^2  +  ||L x||^2,

    over the rows that are there: those whose weight is not zero and which, under `nan_policy` omit, have no NaN. With
    a ridge or L, rank and condition are those of A with the ridge and L stacked below.

    A shared A is factored once. Pixels with all rows get its pseudo-inverse as a product; others the corrected
    seminormal equations of its orthonormal factor (Bjorck, Linear Algebra and its Applications 88/89, 1987), or QR or
    the singular value decomposition of their own weighted A where that would not be as accurate. An A that varies is
    factored by QR or the singular value decomposition.

    Outputs
    -------
    solution (unknown, *tile)
        In the result type of the inputs (float64 for integers); in units of b over units of A.
    status (*tile)
        uint8: ok; ill_conditioned where the condition exceeds 1 / sqrt(eps) of float64; rank_deficient;
        underdetermined where there are fewer rows than unknowns, those of a ridge and of L counted; too_few where
        there are fewer than `min_valid`, with solution NaN; non_finite where a row that is there holds an infinity, a
        NaN or a weight that is negative or infinite, or the solution is not finite, with solution NaN; no_data where
        no row is there, with solution NaN. The other solutions are kept, unless `deficient` says otherwise.
    rank, n_valid (*tile)
        int32: numerical rank; rows of A that are there. The rank is -1 where the status is non_finite.
    condition (*tile)
        Condition number in the 2-norm of the weighted A with its columns scaled, by powers of two, to norms from a
        half to one; infinite where the rank is less than the number of unknowns.
    residual_norm (*tile)
        Square root of the sum of weights |b - A x|^2, without ridge and L.
    stderr (unknown, *tile)
        Standard errors of the unknowns, by `weights_kind`; NaN for unknowns that cannot be estimated.
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
        out, it is max(n, p) eps of float64 for n rows in p unknowns.
    ridge
        Factor of |x|^2 in what is minimised, in units of A squared: one number of at least 0, or one for each unknown,
        where 0 leaves an unknown free.
    precision
        How a shared pseudo-inverse is applied where nothing has to be looked at row by row: no weights, ridge or L,
        `nan_policy` "propagate", and no diagnostics but rank and residual_norm. "float32", "float64", or "auto",
        which is float32 where A and b are no wider and the condition times 2^-24 is at most 1e-5. Under float32 a
        product beyond its range is non_finite. Everything else is computed in float64.
    deficient
        "min_norm" keeps the minimum-norm solution where the rank is less than the number of unknowns; "nan" puts
        NaN there. The status says so in either case.
    weights_kind
        What weights say of the errors of b: "relative", inverse variances up to a factor, which is estimated as
        sum of weights |b - A x|^2 / (n_valid - rank), NaN where n_valid = rank; or "absolute", inverse variances.
    diagnostics
        Any of "rank", "n_valid", "condition", "residual_norm", "stderr" and "r2"; standard errors only without a ridge.

    Raises
    ------
    DimensionError
        The unknown cannot be told, or the dimensions do not fit.
    DTypeError
        Weights are complex.
    ParameterError
        A parameter has a value that it cannot have.
    MissingValueError
        `nan_policy` is "raise", and a row that is there has a NaN.

    The residual standard deviation is residual_norm / sqrt(n_valid - rank).

    >>> from tilewise.fields import FieldSpec
    >>> A = FieldSpec("A", ("date", "term"), (50, 3), "float64")
    >>> b = FieldSpec("b", ("date", "y", "x"), (50, 20, 30), "int16")
    >>> [(out.name, out.dims, out.dtype) for out in Lstsq(dim="date").declare({"A": A, "b": b}).outputs]
    [('solution', ('term', 'y', 'x'), 'float64'), ('status', ('y', 'x'), 'uint8')]

    A line through three of four values:

    >>> import numpy as np, xarray as xr
    >>> b = xr.DataArray([1.0, 2.0, np.nan, 4.0], dims="t")
    >>> A = xr.DataArray([[1, 0], [1, 1], [1, 2], [1, 3]], dims=("t", "term"))
    >>> fit = Lstsq(dim="t", nan_policy="omit", diagnostics="n_valid")(A=A, b=b)
    >>> fit["solution"].values.round(12), int(fit["n_valid"])
    (array([1., 1.]), 3)
    """

    dim: str
    unknown: str | None = None
    nan_policy: NanPolicy = "propagate"
    min_valid: int = 1
    rcond: float | None = None
    ridge: float | tuple[float, ...] = 0.0
    precision: Precision = "auto"
    deficient: Deficient = "min_norm"
    weights_kind: WeightsKind = "relative"
    diagnostics: tuple[Diagnostic, ...] = ()

    input_sets = (("A", "b"), ("A", "b", "weights"), ("A", "b", "L"), ("A", "b", "weights", "L"))

    def __post_init__(self) -> None:
        """Refuse values that the parameters cannot have."""
        object.__setattr__(self, "diagnostics", checked_diagnostics(self.diagnostics))
        checked_choice(self.nan_policy, get_args(NanPolicy), "nan_policy")
        checked_choice(self.precision, get_args(Precision), "precision")
        checked_choice(self.deficient, get_args(Deficient), "deficient")
        checked_choice(self.weights_kind, get_args(WeightsKind), "weights_kind")
        checked_rcond(self.rcond)
        ridge = checked_numbers(self.ridge, "ridge", most=sys.float_info.max, do="use 0 for none")
        object.__setattr__(self, "ridge", ridge)
        min_valid = checked_whole(self.min_valid, "min_valid", do="leave it out for 1")
        object.__setattr__(self, "min_valid", min_valid)
        if any(self._ridges) and "stderr" in self.diagnostics:
            _refuse_stderr("kernel.ridge")

    @property
    def _ridges(self) -> tuple[float, ...]:
        return self.ridge if isinstance(self.ridge, tuple) else (self.ridge,)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """Solution, status and diagnostics of a linear system."""
        system = equations(self, fields, self.dim, self.unknown)
        n, p = system.shape
        checked_min_valid(self.min_valid, n)
        if isinstance(self.ridge, tuple) and len(self.ridge) != p:
            raise DimensionError(
                "kernel.ridge does not have one value for each unknown",
                got=f"{len(self.ridge)} values for {p} along {system.unknown!r}",
                do="give one number, or one for each unknown",
            )
        if "L" in fields and "stderr" in self.diagnostics:
            _refuse_stderr("the input L")
        return system.signature(self.diagnostics)

    def prepare(self, shared: Tensors) -> Any:
        """What is factored of the inputs that all pixels share.

        Raises
        ------
        ParameterError
            A shared value is not finite, or is no weight; or precision is float32, which cannot hold the
            pseudo-inverse.
        """
        from tilewise.linalg.least_squares import least_squares_state

        return least_squares_state(shared, self.dim, self._options())

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Solve every pixel of a tile."""
        from tilewise.linalg.least_squares import solve_least_squares

        solve_least_squares(state, fields, out, self._options(), panel=panel)

    def _options(self) -> Options:
        from tilewise.linalg.least_squares import Options

        return Options(
            policy=self.nan_policy,
            min_valid=self.min_valid,
            rcond=self.rcond,
            ridge=self._ridges,
            precision=self.precision,
            keep_deficient=self.deficient == "min_norm",
            absolute=self.weights_kind == "absolute",
        )

    def _penalty_rows(self, signature: Signature) -> int:
        """Rows below those of A: of the ridge, and of L."""
        system = declared_equations(signature)
        ridges = sum(value > 0 for value in self._ridges)
        ridges = ridges * (system.shape[1] if len(self._ridges) == 1 else 1)
        L = signature.fields.get("L")
        return ridges + (0 if L is None else math.prod(L.shape) // system.shape[1])

    def _plain(self, signature: Signature) -> bool:
        """Whether all rows are there and count alike, and nothing is asked for that takes a look at them."""
        named = {out.name for out in signature.outputs}
        plain = self.nan_policy == "propagate" and "weights" not in signature.fields
        return plain and not self._penalty_rows(signature) and named <= {"solution", "status", "rank", "residual_norm"}

    def footprint(self, signature: Signature) -> Footprint:
        """Bytes of a shared A and its factors, and of what the SVD takes."""
        system = declared_equations(signature)
        n, p = system.shape
        extra = self._penalty_rows(signature)
        small = 32 * n + 2 * 16 * (n + extra) * p + 4096
        if not system.shared:
            return Footprint(state=small, peak=2 * small)
        state = shared_design_bytes(n, p, extra, system.itemsize) + small
        return Footprint(state=state, peak=2 * state + least_squares_bytes(1, n + extra, p, system.itemsize))

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """Bytes of panels, and of factors where A or its rows vary."""
        if self._plain(signature):
            return solving_bytes(signature, sizes, panel, least_squares_bytes)
        return pixels_bytes(signature, panel, self._penalty_rows(signature))

    def panel(self, signature: Signature) -> int:
        """Pixels worked on at a time."""
        return panel_of(signature) if self._plain(signature) else pixel_panel_of(signature)


def _refuse_stderr(why: str) -> None:
    raise ParameterError(
        f"kernel.diagnostics has stderr, and {why} biases the solution",
        expected="standard errors of unbiased least squares",
        do=f"leave out stderr, or {why}",
    )
