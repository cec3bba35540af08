"""A kernel called on xarray: lazy where an input is a Dask array, else computed at once.

The graph is what `map_blocks` makes, by `da.blockwise` since `map_blocks` joins the one block along a core dimension,
which copies all of it. A block is one task that returns every output; each output of several is taken out of it by
one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
import torch
import xarray as xr
from dask.base import tokenize
from dask.delayed import delayed

from tilewise.arguments import named_inputs
from tilewise.coordinates import Array
from tilewise.errors import DimensionError, DTypeError
from tilewise.fields import FieldSpec, OutputSpec
from tilewise.kernels.base import Kernel, Signature
from tilewise.kernels.declaration import checked_signature
from tilewise.labelled import dtype_name
from tilewise.labels import check_labels, check_names, grid_mapping, kept_labels
from tilewise.linalg.layout import arrange, one_thread
from tilewise.session import compute_tile

Outputs = dict[str, Array]


def call(
    kernel: Kernel,
    fields: Sequence[Any],
    named: Mapping[str, Any],
    *,
    variables: Iterable[str] | None = None,
    stack: str | None = None,
) -> xr.DataArray | xr.Dataset:
    """What `Kernel.__call__` returns; arguments and errors are described there."""
    inputs = named_inputs(kernel, fields, named, variables=variables, stack=stack)
    signature = checked_signature(kernel, {name: _spec(name, array) for name, array in inputs.items()})
    check_labels(inputs)
    ordered = {name: inputs[name] for name in signature.fields}
    labels = kept_labels(ordered.values(), signature.outputs)
    check_names(labels, signature.outputs)
    work = Work(kernel, signature, kernel.panel(signature))
    data = {name: _plain(name, array) for name, array in ordered.items()}
    lazy = any(isinstance(array, da.Array) for array in data.values())
    outputs = _graph(work, data) if lazy else work.whole(data)
    grid = grid_mapping(ordered.values(), labels)
    found = xr.Dataset(
        {out.name: xr.Variable(out.dims, outputs[out.name], {**out.attrs, **grid}) for out in signature.outputs}, labels
    )
    return found if len(signature.outputs) > 1 else found[signature.outputs[0].name]


def _spec(name: str, array: xr.DataArray) -> FieldSpec:
    if any(size != size for size in array.shape):
        raise DimensionError(
            f"input {name!r} has chunks of unknown size",
            got=f"shape {array.shape}",
            do="call compute_chunk_sizes() on its Dask array first",
        )
    dims = tuple(str(dim) for dim in array.dims)
    return FieldSpec(name, dims, tuple(array.shape), dtype_name(name, array.dtype))


def _plain(name: str, array: xr.DataArray) -> Any:
    """The numpy or Dask array behind an input."""
    data = array.data
    kind = type(data._meta if isinstance(data, da.Array) else data)
    if kind not in (np.ndarray, np.memmap):
        raise DTypeError(
            f"input {name!r} holds {kind.__module__}.{kind.__name__}, which is no plain array",
            expected="a numpy array, or a Dask array of them",
            do="convert it first, for example with .as_numpy()",
        )
    return data


@dataclass(frozen=True)
class Work:
    """What the tasks of one call have in common: a kernel that is bound to what it is called on."""

    kernel: Kernel
    signature: Signature
    panel: int

    def prepare(self, *shared: Array) -> Any:
        """State of the kernel, from the shared inputs in the order of the signature."""
        signature = self.signature
        tensors = {}
        for name, array in zip(self.shared, shared, strict=True):
            tensor = torch.from_numpy(readable(array, signature.reads[name]))
            tensors[name] = arrange(tensor, signature.fields[name].dims, signature.core[name], ())
        with torch.inference_mode(), one_thread():
            return self.kernel.prepare(tensors)

    def compute(self, state: Any, *blocks: Any) -> Outputs:
        """All outputs of one block, from the streamed inputs in the order of the signature.

        What the kernel leaves out has the fill value that it declared.
        """
        signature = self.signature
        boxes = {
            name: readable(_declared(name, _only(block), signature.fields[name].dtype), signature.reads[name])
            for name, block in zip(signature.streamed, blocks, strict=True)
        }
        sizes: dict[str, int] = {}
        for name, box in boxes.items():
            sizes |= zip(signature.fields[name].dims, box.shape, strict=True)
        outputs = {}
        for out in signature.outputs:
            own = signature.own_dims(out)
            shape = [out.sizes[dim] if dim in own else sizes[dim] for dim in out.dims]
            outputs[out.name] = np.full(shape, out.fill, dtype=out.dtype)
        if all(sizes[dim] for dim in signature.tile_dims):
            compute_tile(self.kernel, signature, state, boxes, outputs, panel=self.panel)
        return outputs

    def compute_one(self, state: Any, *blocks: Any) -> Array:
        """The output of one block, of a kernel that has just one."""
        (found,) = self.compute(state, *blocks).values()
        return found

    def whole(self, data: Mapping[str, Array]) -> Outputs:
        """All outputs as one tile."""
        state = self.prepare(*(data[name] for name in self.shared))
        return self.compute(state, *(data[name] for name in self.signature.streamed))

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the shared inputs, in the order of the signature."""
        return tuple(name for name in self.signature.fields if name in self.signature.shared)

    def index(self, name: str) -> tuple[str, ...]:
        """Axes of an input as `da.blockwise` is to tell them apart: a core dimension is never one of blocks."""
        core = self.signature.core[name]
        return tuple(f"core {dim}" if dim in core else dim for dim in self.signature.fields[name].dims)


def _only(block: Any) -> Any:
    """The one block of a core dimension: `da.blockwise` gives it in a list for each such dimension."""
    while isinstance(block, list):
        (block,) = block
    return block


def _declared(name: str, block: Any, dtype: str) -> Array:
    """A block as an array, once it is what Dask was told: a mask or an imaginary part would go without a word."""
    masked = isinstance(block, np.ma.MaskedArray) and np.ma.is_masked(block)
    if masked or not np.can_cast(block.dtype, dtype, "same_kind"):
        raise DTypeError(
            f"a block of input {name!r} is not what its Dask array declares",
            got=f"{type(block).__name__} of {block.dtype}",
            expected=f"ndarray of {dtype}",
            do="declare dtype and meta where the Dask array is made, or fill masked values with NaN",
        )
    found: Array = np.asarray(block)
    return found


def readable(block: Array, dtype: str) -> Array:
    """An array as torch takes it, in a native dtype; the same memory where that is possible.

    >>> readable(np.array([1, 2, 3], dtype=">i2")[::-1], "float64")
    array([3., 2., 1.])
    """
    array = block.astype(dtype, copy=False)
    if not array.flags.aligned or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy(order="K")
    return array if array.flags.writeable else np.asarray(_Memory(array))


class _Memory:
    """Memory that is marked as not to be written, without the mark: torch warns of it, and no kernel writes to it.

    Blocks that come from another process are so marked; a copy of each would cost as much as the kernel.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _graph(work: Work, data: Mapping[str, Any]) -> dict[str, da.Array]:
    """Lazy outputs: one task that prepares, one a block, and one more for each output of several."""
    signature = work.signature
    _refuse_split(work, data)
    streamed = _blocks(work, {name: data[name] for name in signature.streamed})
    shared = [data[name] for name in work.shared]
    names = [part.name if isinstance(part, da.Array) else part for part in (*shared, *streamed.values())]
    token = tokenize(work.kernel, [(name, spec.dims) for name, spec in signature.fields.items()], names)
    prefix = type(work.kernel).__name__.lower()
    state = _state(work, shared, f"{prefix}-prepare-{token}")
    pairs = [part for name, array in streamed.items() for part in (array, work.index(name))]
    if len(signature.outputs) == 1:
        (out,) = signature.outputs
        name = f"{prefix}-{token}"
        return {out.name: _blockwise(work.compute_one, work, out, name, state, None, *pairs)}
    records = da.blockwise(
        work.compute,
        signature.tile_dims,
        state,
        None,
        *pairs,
        name=f"{prefix}-{token}",
        meta=np.empty((0,) * len(signature.tile_dims), dtype=object),
        concatenate=False,
        align_arrays=False,
    )
    return {
        out.name: _blockwise(
            itemgetter(out.name), work, out, f"{prefix}-{out.name}-{token}", records, signature.tile_dims
        )
        for out in signature.outputs
    }


def _blockwise(function: Any, work: Work, out: OutputSpec, name: str, *pairs: Any) -> da.Array:
    """An output, block by block; its own dimensions are whole.

    `concatenate=False` gives a core dimension's one block in a list, where True would copy it. And Dask does not fuse
    such a layer into one with `concatenate=None`, as those of arithmetic have it: where a result is broadcast against
    something larger, the kernel would run again for every block of that.
    """
    own = work.signature.own_dims(out)
    index = tuple(f"own {dim}" if dim in own else dim for dim in out.dims)
    return da.blockwise(
        function,
        index,
        *pairs,
        name=name,
        new_axes={f"own {dim}": out.sizes[dim] for dim in own},
        meta=np.empty((0,) * len(out.dims), dtype=out.dtype),
        dtype=np.dtype(out.dtype),
        concatenate=False,
        align_arrays=False,
    )


def _refuse_split(work: Work, data: Mapping[str, Any]) -> None:
    for name, array in data.items():
        if not isinstance(array, da.Array):
            continue
        core = work.signature.core[name]
        axes = dict(zip(work.signature.fields[name].dims, array.chunks, strict=True))
        split = [dim for dim in core if len(axes[dim]) > 1]
        if split:
            mend = ", ".join(f'"{dim}": -1' for dim in split)
            raise DimensionError(
                f"input {name!r} is split into chunks along {split[0]!r}, which the kernel needs whole at every pixel",
                got=f"{len(axes[split[0]])} chunks",
                expected="one chunk",
                do=f"give {name}.chunk({{{mend}}}) instead",
            )


def _blocks(work: Work, data: Mapping[str, Any]) -> dict[str, da.Array]:
    """Streamed inputs with equal chunks along the tile dimensions that they share; what is in memory is cut alike."""
    lazy = [name for name, array in data.items() if isinstance(array, da.Array)]
    pairs = [part for name in lazy for part in (data[name], work.index(name))]
    chunks, arrays = da.core.unify_chunks(*pairs, warn=False)  # more blocks are what broadcasting means
    unified = dict(zip(lazy, arrays, strict=True))
    found = {}
    for name, array in data.items():
        if name not in unified:
            cut = tuple(chunks.get(dim, (n,)) for dim, n in zip(work.index(name), array.shape, strict=True))
            unified[name] = da.from_array(array, chunks=cut)
        found[name] = unified[name]
    return found


def _state(work: Work, shared: Sequence[Any], name: str) -> Any:
    """The kernel's state as one task, whose result every block gets; None where the kernel keeps none.

    A block depends on it and does not hold it: it is computed once, and travels to each worker.
    """
    if not shared and type(work.kernel).prepare is Kernel.prepare:
        return None
    whole = [a.to_delayed(optimize_graph=False).ravel()[0] if isinstance(a, da.Array) else a for a in shared]
    return delayed(partial(Work.prepare, work), pure=True)(*whole, dask_key_name=name)
