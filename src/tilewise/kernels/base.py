"""The kernel contract: what a kernel declares before data is read, and the two steps in which it computes.

Nothing here imports torch, so that declaring is quick; kernels import their mathematics inside the two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tilewise.errors import DimensionError, DTypeError
from tilewise.fields import (
    FieldSpec,
    OutputSpec,
    compute_dtype,
    is_complex,
    is_floating,
    merged_sizes,
    real_dtype,
    result_dtype,
    union_dims,
)

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Footprint:
    """Bytes that `prepare` needs: what it keeps as `state`, and its `peak` while it works (state included)."""

    state: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Signature:
    """What one kernel does to given fields: declared, and refused, before any data is read.

    Attributes
    ----------
    fields
        The inputs by name.
    core
        Core dimensions of each input, in the order in which the kernel wants them as leading axes.
    tile_dims
        Every other dimension, in the one order in which the tile axes of all tensors follow.
    shared
        Inputs that have no tile dimension and go to `prepare`, once a worker; the others go to `compute`.
    reads
        Dtype in which each input arrives.
    outputs
        Dims (the kernel's own first, then all tile dimensions), sizes and dtypes of what is written.
    """

    fields: Mapping[str, FieldSpec]
    core: Mapping[str, tuple[str, ...]]
    tile_dims: tuple[str, ...]
    shared: frozenset[str]
    reads: Mapping[str, str]
    outputs: tuple[OutputSpec, ...]

    @classmethod
    def of(
        cls,
        fields: Mapping[str, FieldSpec],
        *,
        core: Mapping[str, tuple[str, ...]],
        outputs: Iterable[OutputSpec],
        shared: Iterable[str] = (),
    ) -> Signature:
        """Signature with what follows from the rest: the tile dimensions and the dtypes that are read.

        `outputs` are given with their own dimensions only; the tile dimensions are added here. The shape of an
        own dimension that no input has is the kernel's to give.
        """
        sizes = merged_sizes(fields.values())
        tile_dims = tile_dimensions(fields, core)
        whole = tuple(sizes[dim] for dim in tile_dims)
        return cls(
            fields=dict(fields),
            core=dict(core),
            tile_dims=tile_dims,
            shared=frozenset(shared),
            reads={name: arrival_dtype(spec.dtype) for name, spec in fields.items()},
            outputs=tuple(replace(out, dims=out.dims + tile_dims, shape=out.shape + whole) for out in outputs),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every dimension of every input."""
        return merged_sizes(self.fields.values())

    @property
    def streamed(self) -> tuple[str, ...]:
        """Inputs that are read tile by tile."""
        return tuple(name for name in self.fields if name not in self.shared)

    def own_dims(self, output: OutputSpec) -> tuple[str, ...]:
        """Dimensions of an output that come before its tile dimensions."""
        return output.dims[: len(output.dims) - len(self.tile_dims)]

    def with_output_dtype(self, dtype: str | None) -> Signature:
        """The same with the floating outputs stored as `dtype`; integer outputs (status, counts) keep theirs.

        A complex dtype stands for its real counterpart where an output is real.
        """
        if dtype is None:
            return self
        return replace(self, outputs=tuple(_stored_as(out, dtype) for out in self.outputs))


def _stored_as(out: OutputSpec, dtype: str) -> OutputSpec:
    if not is_floating(out.dtype):
        return out
    wanted = dtype if is_complex(out.dtype) else real_dtype(dtype)
    if is_complex(wanted) != is_complex(out.dtype) or not is_floating(wanted):
        raise DTypeError(
            f"output {out.name!r} is {out.dtype} and cannot be stored as {dtype}",
            expected="a complex dtype" if is_complex(out.dtype) else "a floating dtype",
            do="change or leave out output.dtype",
        )
    return replace(out, dtype=wanted)


def tile_dimensions(fields: Mapping[str, FieldSpec], core: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Dimensions of the inputs that are not core ones, in order of first appearance."""
    return union_dims([dim for dim in spec.dims if dim not in core[name]] for name, spec in fields.items())


def arrival_dtype(dtype: str) -> str:
    """Dtype in which a field of a stored dtype reaches a kernel: floating, native, halves as float32."""
    return compute_dtype(result_dtype([dtype]))


class Kernel:
    """Base of every kernel: a frozen dataclass whose fields are its parameters.

    A subclass is registered by its name; it then works from Python, YAML and every scheduler without another
    line. It declares with `declare`, and computes with `prepare` (once a worker) and `compute` (per tile).

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mean(Kernel, name="doc_mean"):
    ...     '''Mean of x along `dim`.'''
    ...
    ...     dim: str
    ...     input_sets = (("x",),)
    ...
    ...     def declare(self, fields):
    ...         x = self.check_inputs(fields)["x"]
    ...         mean = OutputSpec("mean", (), (), result_dtype([x.dtype]))
    ...         return Signature.of(fields, core={"x": (self.dim,)}, outputs=[mean])
    ...
    ...     def compute(self, state, fields, out, *, panel):
    ...         out["mean"].copy_(fields["x"].mean(dim=0))
    ...
    ...     def workspace(self, signature, sizes, *, panel):
    ...         return 8 * sizes["y"]
    >>> signature = Mean(dim="t").declare({"x": FieldSpec("x", ("t", "y"), (5, 3), "int16")})
    >>> signature.outputs[0].dims, signature.outputs[0].dtype
    (('y',), 'float64')
    """

    name: ClassVar[str]
    #: The sets of input names that the kernel accepts.
    input_sets: ClassVar[tuple[tuple[str, ...], ...]]

    _registry: ClassVar[dict[str, type[Kernel]]] = {}

    def __init_subclass__(cls, name: str | None = None) -> None:
        """Register the class under `name`."""
        super().__init_subclass__()
        if name is not None:
            cls.name = name
            Kernel._registry[name] = cls

    def __call__(
        self, *fields: Any, variables: Iterable[str] | None = None, stack: str | None = None, **named: Any
    ) -> Any:
        """Apply the kernel to xarray objects: lazily where one of them holds a Dask array, else at once.

        Parameters
        ----------
        fields
            Inputs by position, in the order of the first of `input_sets` that they fill: DataArrays, or
            `tilewise.Input(store=array, dims=...)` for arrays without labels. A single Dataset stands for its
            variables that are named like the inputs, or for its only variable.
        variables, stack
            Variables of a single Dataset, and the new dimension along which they are stacked as one input.
        named
            Inputs by name.

        Returns
        -------
        xarray.DataArray or xarray.Dataset
            The output under its name, or all of several; with the coordinates of the inputs that fit, each from the
            first input that has it, and the attributes that the kernel declares. Where an input is a Dask array,
            nothing is computed yet, outputs have the chunks of the inputs along their shared dimensions, and outputs
            computed together run the kernel once a block.

        Raises
        ------
        DimensionError
            These are not the kernel's inputs, or a dimension that it needs whole is split into chunks.
        CoordinateError
            Two inputs label a shared dimension differently.
        MissingVariableError, DTypeError
            A Dataset lacks an input; an input is no array of numbers.

        >>> import xarray as xr
        >>> import tilewise as tw
        >>> wind = xr.DataArray([[3.0, 0.0], [4.0, 1.0]], dims=("component", "x"), coords={"x": [10, 20]})
        >>> wind.pipe(tw.Norm(dim="component"))
        <xarray.DataArray 'norm' (x: 2)> Size: 16B
        array([5., 1.])
        Coordinates:
          * x        (x) int64 16B 10 20
        Attributes:
            long_name:  norm of order 2 along component
        """
        from tilewise.lazy import call

        return call(self, fields, named, variables=variables, stack=stack)

    @staticmethod
    def registered() -> Mapping[str, type[Kernel]]:
        """Every kernel class that has been imported, by name."""
        return MappingProxyType(Kernel._registry)

    def check_inputs(self, fields: Mapping[str, FieldSpec]) -> Mapping[str, FieldSpec]:
        """The fields, once their names are one of the kernel's input sets.

        Raises
        ------
        DimensionError
            An input is missing or unknown.
        """
        if not any(set(names) == set(fields) for names in self.input_sets):
            nearest = max(self.input_sets, key=lambda names: len(set(names) & set(fields)))
            lacking = [name for name in nearest if name not in fields]
            others = [name for name in fields if name not in nearest]
            steps = [f"add {', '.join(lacking)}"] * bool(lacking) + [f"remove {', '.join(others)}"] * bool(others)
            raise DimensionError(
                f"kernel {self.name!r} does not take these inputs",
                got=", ".join(fields) or "none",
                expected=" or ".join("(" + ", ".join(names) + ")" for names in self.input_sets),
                do=f"{' and '.join(steps)} under inputs",
            )
        return fields

    def check_dim(self, spec: FieldSpec, dim: str, parameter: str) -> str:
        """`dim`, once `spec` has it."""
        if dim not in spec.dims:
            raise DimensionError(
                f"{spec.name} has no dimension {dim!r}",
                got=f"dims {spec.dims}",
                do=f"set kernel.{parameter} to one of them",
            )
        return dim

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        """Outputs, core and tile dimensions for these inputs; refuses what cannot be computed."""
        raise NotImplementedError

    def prepare(self, shared: Tensors) -> Any:
        """State kept by a worker, from the inputs that have no tile dimension: nothing unless overridden.

        Tensors arrive with their core axes first. What it raises on bad data is raised before anything is written.
        """
        return None

    def compute(self, state: Any, fields: Tensors, out: Tensors, *, panel: int) -> None:
        """Fill `out` for one tile.

        Parameters
        ----------
        state
            What `prepare` returned.
        fields
            Inputs with their core axes first, then one axis a tile dimension, of size 1 where the input lacks it:
            strided views, never to be written to.
        out
            Outputs with their own axes first, then one axis a tile dimension: strided views to be filled, by
            `copy_` or in place. Their dtype is the declared one, or what the job stores.
        panel
            Pixels worked on at a time: what `self.panel` said when the job was planned.
        """
        raise NotImplementedError

    def footprint(self, signature: Signature) -> Footprint:
        """Upper bound of the bytes that `prepare` keeps and needs."""
        return Footprint()

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        """Upper bound of the bytes of temporaries of `compute` on a tile of these sizes (core ones included)."""
        raise NotImplementedError

    def panel(self, signature: Signature) -> int:
        """Pixels that `compute` works on at a time, a multiple of 64; it belongs to the plan."""
        return 4096
