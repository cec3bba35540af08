"""The components of a field over one block of pixels, one padded contiguous panel each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilewise.linalg.blocks import GATHER, PAD, padded

_WHOLE = slice(None)


class Components:
    """Panels of the components of one real field, for one block of pixels after the other.

    Parameters
    ----------
    view
        Components, then the tile axes, of size 1 where the field does not vary.
    block
        Shape of the largest block, its last axis padded.
    dtype
        Dtype of the panels.
    panel
        Pixels of a panel.
    pad
        Value of the pixels that only fill up a panel.
    spread
        Whether panels cover the last axis although the field does not vary along it.

    A field that is contiguous along whole panels is used where it lies; others are gathered into one buffer.
    """

    def __init__(
        self,
        view: torch.Tensor,
        block: Sequence[int],
        dtype: torch.dtype,
        *,
        panel: int,
        pad: float,
        spread: bool,
    ) -> None:
        self._view = view
        last = view.dim() - 2
        self._varying = [axis for axis, size in enumerate(view.shape[1:]) if size != 1]
        self._covered = [*self._varying, last] if spread and last not in self._varying else self._varying
        self._wide = last in self._covered
        self._dtype = dtype
        self._pad = pad
        pixels = math.prod(block[axis] for axis in self._covered)
        self._group = max(1, min(view.shape[0], GATHER * panel // pixels))
        self._pixels = self._group * pixels
        self._buffer: torch.Tensor | None = None
        self._box: list[slice] | None = None
        self._shape: tuple[int, ...] = ()
        self._first = -1
        self._in_place = False
        self._panels: Sequence[torch.Tensor] = ()

    def move(self, box: Sequence[slice]) -> None:
        """Go to a block; what a field that does not vary between the two blocks has gathered stays."""
        own = [box[axis] for axis in self._covered]
        if own == self._box:
            return
        self._box = own
        self._first = -1
        self._width = box[-1].stop - box[-1].start
        index = [_WHOLE] * self._view.dim()
        for axis in self._varying:
            index[1 + axis] = box[axis]
        self._part = self._view[tuple(index)]
        self._in_place = self._dtype == self._view.dtype and self._is_panel(self._part)
        if self._in_place:
            self._panels = self._part.unbind(0)
            self._shape = ()  # a later gather makes its own panels again

    def __getitem__(self, k: int) -> torch.Tensor:
        """Panel of component `k`, not to be written to; it holds until the next one is asked for."""
        if self._in_place:
            return self._panels[k]
        first = k - k % self._group
        if first != self._first:
            self._gather(first)
        return self._panels[k - first]

    def _is_panel(self, part: torch.Tensor) -> bool:
        if not self._wide:
            return True
        return part.shape[-1] == self._width and self._width % PAD == 0 and part.stride(-1) == 1

    def _gather(self, first: int) -> None:
        part = self._part[first : first + self._group]
        shape = (*part.shape[:-1], self._width if self._wide else 1)
        if shape != self._shape:
            self._reshape(shape)
        # Transposed, because torch would copy a transposed plane in tiles made for square ones, far slower here.
        self._inner.transpose(0, -1).copy_(part.transpose(0, -1))
        self._first = first

    def _reshape(self, shape: tuple[int, ...]) -> None:
        if self._buffer is None:
            self._buffer = torch.empty(self._pixels, dtype=self._dtype, device=self._view.device)
        whole = (*shape[:-1], padded(shape[-1]) if self._wide else 1)
        panels = self._buffer[: math.prod(whole)].view(whole)
        panels[..., shape[-1] :] = self._pad
        self._inner = panels[..., : shape[-1]]
        self._panels = panels.unbind(0)
        self._shape = shape


class Field:
    """Panels of the real and, where it is complex, of the imaginary part of a field."""

    def __init__(self, *parts: Components) -> None:
        self._parts = parts
        self.is_complex = len(parts) == 2
        self.real = parts[0].__getitem__
        self.imaginary = parts[-1].__getitem__

    def move(self, box: Sequence[slice]) -> None:
        """Go to a block."""
        for part in self._parts:
            part.move(box)


def fields_of(
    parts: Sequence[torch.Tensor],
    complexes: Sequence[bool],
    block: Sequence[int],
    dtype: torch.dtype,
    *,
    panel: int,
    pads: Sequence[float],
) -> list[Field]:
    """Fields from the views of their parts, in order; `complexes` says which of them have two.

    A vectorised loop takes one operand that does not vary along it; the panels of any other are spread.
    """
    fields: list[Field] = []
    views = iter(parts)
    room = len(complexes) > 1
    for is_complex, pad in zip(complexes, pads, strict=True):
        own = [next(views) for _ in range(1 + is_complex)]
        narrow = own[0].shape[-1] == 1
        spread = narrow and not room
        room = room and not narrow
        fields.append(Field(*(Components(v, block, dtype, panel=panel, pad=pad, spread=spread) for v in own)))
    return fields
