"""Norm of an affine image of every point under every primitive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec
from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.vectors import check_components, checked_order, norm_output, panel_pixels, workspace_bytes

if TYPE_CHECKING:
    from tilewise.kernels.base import Tensors


@dataclass(frozen=True, kw_only=True)
class AffineNorm(Kernel, name="affine_norm"):
    """Norm of points * scale + offset along `dim`, for every point and every primitive.

    Inputs are points (..., dim) and either primitives (..., parameter_dim), whose first parameters are the scales
    of the n components, the next n their offsets, and the rest ignored; or scale (..., dim) and offset (..., dim).
    They broadcast by the names of their other dimensions, which are all tile dimensions.

    Output
    ------
    norm (*tile)
        Tile dimensions in order of appearance in points, then primitives (or scale, offset): batch, point,
        primitive. In the result type of the inputs, real; float64 where all are integers; in units of offset.
        Components are computed as they are written, each in one rounding where the processor fuses: never from
        an expanded square, which cancels, and never as an array with the axis `dim`. NaN, infinities, large and
        small components are treated as in `Norm`.

    Parameters
    ----------
    dim
        Dimension of points (and of scale and offset) over the components.
    parameter_dim
        Dimension of primitives over their parameters, at least twice as many as components.
    ord
        Order of the norm, as in `Norm`.

    Raises
    ------
    DimensionError
        An input lacks its dimension, has the other's, or there are fewer than two parameters a component.
    ParameterError
        `ord` is not a real number; or `parameter_dim` is missing for primitives, or given without them.

    >>> from tilewise.fields import FieldSpec
    >>> points = FieldSpec("points", ("scan", "point", "xyz"), (2, 8000, 3), "float32")
    >>> primitives = FieldSpec("primitives", ("scan", "box", "parameter"), (2, 4000, 7), "float32")
    >>> kernel = AffineNorm(dim="xyz", parameter_dim="parameter")
    >>> kernel.declare({"points": points, "primitives": primitives}).outputs[0].dims
    ('scan', 'point', 'box')
    """

    dim: str
    parameter_dim: str | None = None
    ord: float = 2.0

    input_sets = (("points", "primitives"), ("points", "scale", "offset"))

    def __post_init__(self) -> None:
        """Keep the order as a float; the two dimensions differ."""
        object.__setattr__(self, "ord", checked_order(self.ord))
        if self.parameter_dim == self.dim:
            raise ParameterError(
                "kernel.parameter_dim is the dimension of the components",
                got=repr(self.dim),
                expected="the dimension of primitives over their parameters",
                do="give the parameters a dimension of their own name",
            )

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """One real value for every point and primitive."""
        self.check_inputs(fields)
        self._check_parameter_dim(fields)
        core = {
            name: (str(self.parameter_dim) if name == "primitives" else self.dim,)
            for name in ("points", "primitives", "scale", "offset")
            if name in fields
        }
        for name, (own,) in core.items():
            self.check_dim(fields[name], own, "parameter_dim" if name == "primitives" else "dim")
            self._check_other(fields[name], {self.dim, self.parameter_dim} - {own})
        self._check_parameters(fields)
        check_components(fields["points"], self.dim, self.ord)
        ordered = {name: fields[name] for name in core}
        return Signature.of(
            ordered,
            core=core,
            outputs=[norm_output(ordered.values(), self.dim, self.ord)],
            shared=_shared(ordered),
        )

    def _check_parameter_dim(self, fields: Mapping[str, FieldSpec]) -> None:
        if "primitives" in fields and self.parameter_dim is None:
            raise ParameterError(
                "kernel.parameter_dim is missing: primitives hold scales and offsets along it",
                expected=f"one of the dims of primitives, {fields['primitives'].dims}",
                do="set kernel.parameter_dim",
            )
        if "primitives" not in fields and self.parameter_dim is not None:
            raise ParameterError(
                "kernel.parameter_dim belongs to primitives, and the inputs are scale and offset",
                got=repr(self.parameter_dim),
                do="leave it out, or give primitives instead",
            )

    def _check_other(self, spec: FieldSpec, others: set[str | None]) -> None:
        for other in others & set(spec.dims):
            raise DimensionError(
                f"{spec.name} has the dimension {other!r}, which is one over components or parameters elsewhere",
                got=f"dims {spec.dims}",
                do=f"rename it with inputs.{spec.name}.dims",
            )

    def _check_parameters(self, fields: Mapping[str, FieldSpec]) -> None:
        if "primitives" not in fields:
            return
        count = fields["points"].sizes[self.dim]
        parameters = fields["primitives"].sizes[str(self.parameter_dim)]
        if parameters < 2 * count:
            raise DimensionError(
                f"primitives have too few parameters along {self.parameter_dim!r}",
                got=parameters,
                expected=f"at least {2 * count}: a scale and an offset for each of {count} components",
                do="check kernel.dim and kernel.parameter_dim",
            )

    def prepare(self, shared: Tensors) -> Any:
        """Keep what has no tile dimension."""
        return dict(shared)

    def footprint(self, signature: Signature) -> Footprint:
        """What has no tile dimension is kept as it is."""
        nbytes = sum(replace(signature.fields[n], dtype=signature.reads[n]).nbytes for n in signature.shared)
        return Footprint(nbytes, nbytes)

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Norm of every point and primitive of a tile."""
        from tilewise.linalg.norms import affine_norm

        norm = out["norm"]
        same = {name: kept.reshape(-1, *[1] * norm.dim()) for name, kept in state.items()}
        every = {**same, **fields}
        points = every["points"]
        n = len(points)
        if "primitives" in every:
            scale, offset = every["primitives"][:n], every["primitives"][n : 2 * n]
        else:
            scale, offset = every["scale"], every["offset"]
        affine_norm(points, scale, offset, norm, self.ord, panel)

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """A few panels, whatever the tile."""
        return workspace_bytes(signature, sizes[self.dim], panel)

    def panel(self, signature: Signature) -> int:
        """Half a mebibyte of values."""
        return panel_pixels(signature)


def _shared(fields: Mapping[str, FieldSpec]) -> list[str]:
    """Inputs that are the same for every pixel, unless that is all of them: a tile has something to read."""
    same = [name for name, spec in fields.items() if len(spec.dims) == 1]
    return same if len(same) < len(fields) else []
