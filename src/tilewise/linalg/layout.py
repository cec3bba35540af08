"""Views of tiles: axes in the kernel's order, boxes of a bounded number of pixels, one thread.

Everything here is a strided view; nothing copies data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from tilewise.linalg.blocks import PAD, boxes, padded

__all__ = ["PAD", "arrange", "box_of", "box_size", "boxes", "core_of", "merge_tile_axes", "one_thread", "padded"]


#: Leading axes of fields and outputs of linear systems that are not tile axes; all others have none.
_CORE = {"A": 2, "b": 1, "weights": 1, "upper": 1, "solution": 1, "stderr": 1}


def core_of(name: str) -> int:
    """How many leading axes of a field or an output of a linear system are not tile axes.

    >>> core_of("A"), core_of("status")
    (2, 0)
    """
    return _CORE.get(name, 0)


def arrange(tensor: torch.Tensor, dims: Sequence[str], core: Sequence[str], tile_dims: Sequence[str]) -> torch.Tensor:
    """View of a field with its core axes first, then one axis a tile dimension (size 1 where it lacks it).

    >>> x = torch.zeros(4, 3, 5)
    >>> arrange(x, ("y", "band", "x"), ("band",), ("t", "y", "x")).shape
    torch.Size([3, 1, 4, 5])
    """
    present = [dim for dim in tile_dims if dim in dims]
    view = tensor.permute([dims.index(dim) for dim in (*core, *present)])
    for axis, dim in enumerate(tile_dims):
        if dim not in dims:
            view = view.unsqueeze(len(core) + axis)
    return view


def merge_tile_axes(views: Mapping[str, torch.Tensor], core: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The same views with neighbouring tile axes merged wherever that needs no copy in any of them.

    `core` gives the number of leading axes of each view that are not tile axes. A contiguous tile ends with one
    tile axis; axes along which some field is broadcast stay apart from those along which it is not.

    >>> views = {"b": torch.zeros(50, 4, 6), "A": torch.zeros(50, 3, 1, 1)}
    >>> {name: tuple(v.shape) for name, v in merge_tile_axes(views, {"b": 1, "A": 2}).items()}
    {'b': (50, 24), 'A': (50, 3, 1)}
    """
    merged = dict(views)
    name = next(iter(merged))
    axis = merged[name].dim() - core[name] - 1
    while axis > 0:
        if all(_mergeable(view, core[key] + axis - 1) for key, view in merged.items()) and _agree(merged, core, axis):
            merged = {key: view.flatten(core[key] + axis - 1, core[key] + axis) for key, view in merged.items()}
        axis -= 1
    return merged


def _mergeable(view: torch.Tensor, axis: int) -> bool:
    if view.shape[axis] == 1 or view.shape[axis + 1] == 1:
        return True
    return view.stride(axis) == view.stride(axis + 1) * view.shape[axis + 1]


def _agree(views: Mapping[str, torch.Tensor], core: Mapping[str, int], axis: int) -> bool:
    """Whether every view has either the full size along both axes, or is broadcast along both."""
    left = [view.shape[core[key] + axis - 1] for key, view in views.items()]
    right = [view.shape[core[key] + axis] for key, view in views.items()]
    full = (max(left), max(right))
    return all(pair in (full, (1, 1)) for pair in zip(left, right, strict=True))


def box_of(view: torch.Tensor, core: int, box: Sequence[slice]) -> torch.Tensor:
    """The box of a view; axes along which it is broadcast keep their size of 1."""
    index = tuple(s if view.shape[core + i] != 1 else slice(None) for i, s in enumerate(box))
    return view[(slice(None),) * core + index]


def box_size(box: Sequence[slice]) -> int:
    """Elements of a box."""
    return math.prod(s.stop - s.start for s in box)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread in this thread, restored afterwards: workers are the parallelism, and bits stay put."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
