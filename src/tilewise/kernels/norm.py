"""Norm of a vector at every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewise.fields import FieldSpec
from tilewise.kernels.base import Kernel, Signature
from tilewise.kernels.vectors import check_components, checked_order, norm_output, panel_pixels, workspace_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors


@dataclass(frozen=True, kw_only=True)
class Norm(Kernel, name="norm"):
    """Norm of the vector along `dim`: x (dim, ...) -> norm (...).

    Output
    ------
    norm (*tile)
        In the dtype of x, its real counterpart where x is complex, float64 where x is an integer or bool; in
        units of x (of none for order 0). NaN and infinities travel as in `numpy.linalg.norm`, and never into
        another pixel; neither large nor small values overflow or vanish on the way. 0 where `dim` is empty.

    Parameters
    ----------
    dim
        Dimension of x over the components of a vector.
    ord
        Order p of (sum |x|^p)^(1/p): any real number; inf and -inf are the largest and the smallest magnitude, 0
        counts the components that are not zero. As `numpy.linalg.norm` has it, orders below 1 included.

    Raises
    ------
    DimensionError
        x lacks `dim`, or `dim` is empty and `ord` negative.
    ParameterError
        `ord` is not a real number.

    The error is bounded in `tilewise.linalg.norms`; scaling by the largest component is the method of
    J. L. Blue, A portable Fortran program to find the Euclidean norm of a vector, ACM TOMS 4 (1978).

    >>> from tilewise.fields import FieldSpec
    >>> wind = FieldSpec("x", ("component", "lat", "lon"), (2, 180, 360), "float32")
    >>> norm = Norm(dim="component").declare({"x": wind}).outputs[0]
    >>> norm.dims, norm.dtype
    (('lat', 'lon'), 'float32')
    """

    dim: str
    ord: float = 2.0

    input_sets = (("x",),)

    def __post_init__(self) -> None:
        """Keep the order as a float."""
        object.__setattr__(self, "ord", checked_order(self.ord))

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """One real value a pixel."""
        x = self.check_inputs(fields)["x"]
        self.check_dim(x, self.dim, "dim")
        check_components(x, self.dim, self.ord)
        return Signature.of({"x": x}, core={"x": (self.dim,)}, outputs=[norm_output([x], self.dim, self.ord)])

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Norm of every pixel of a tile."""
        from tilewise.linalg.norms import norm

        norm(fields["x"], out["norm"], self.ord, panel)

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """A few panels, whatever the tile."""
        return workspace_bytes(signature, sizes[self.dim], panel)

    def panel(self, signature: Signature) -> int:
        """Half a mebibyte of values."""
        return panel_pixels(signature)
