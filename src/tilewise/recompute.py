"""Tiles computed once more in this process: nothing is written, and what is stored is compared with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise import hosting
from tilewise.coordinates import Array
from tilewise.fields import Tile
from tilewise.outputs import Target
from tilewise.program import Program
from tilewise.session import Session, compute_tile
from tilewise.store import concrete, packed, view, write_units
from tilewise.units import Units


@dataclass(frozen=True)
class Recomputed:
    """A tile computed once more: its outputs, as values, and what it took.

    Attributes
    ----------
    outputs
        Values by output name, in buffers that the next tile takes over.
    seconds
        Of reading and computing.
    misfits
        Values that a packed output cannot hold.
    """

    tile: Tile
    outputs: Mapping[str, Array]
    seconds: tuple[float, float]
    misfits: int


@dataclass(frozen=True)
class Difference:
    """Cells of one output that are stored with other bits than those of a recomputed tile.

    Attributes
    ----------
    cells, of
        Cells that differ, and cells of the tile.
    largest
        Largest difference of two finite values, relative to the largest value of the tile; infinite where one of
        the two is not finite, or where the output is whole numbers.
    dtype
        Of the stored numbers.
    """

    array: str
    cells: int
    of: int
    largest: float
    dtype: str = "float64"

    @property
    def is_rounding(self) -> bool:
        """Whether other libraries or another CPU may have rounded so: by less than half of the digits of the dtype."""
        kind = np.dtype(self.dtype).kind
        return kind in "fc" and self.largest <= float(np.sqrt(np.finfo(self.dtype).eps))

    def __str__(self) -> str:
        """As a person reads it."""
        size = f", by up to {self.largest:.1e} of the largest value" if np.isfinite(self.largest) else ""
        return f"{self.cells:,} of {self.of:,} cells differ from the recomputed ones{size}"


@contextmanager
def opened(program: Program) -> Iterator[Session]:
    """What tiles of a program need, in this process, under the settings that a run has."""
    with hosting.hosted(program.run, slots=1):
        session = Session(program)
        try:
            yield session
        finally:
            session.close()


def recompute(session: Session, tile: Tile, *, panel: int = 0) -> Recomputed:
    """Compute one tile from the inputs; whatever it raises is raised here.

    `panel` is in pixels; the plan's, unless the tile had to be done in smaller ones.
    """
    program = session.program
    begin = time.perf_counter()
    found = session.read(tile, session.tries())
    outputs = session.outputs(tile)
    read = time.perf_counter()
    compute_tile(
        program.kernel,
        program.signature,
        session.state,
        found,
        outputs,
        panel=panel or program.panel,
        device=session.device,
    )
    misfits = session.flag_misfits(outputs)
    return Recomputed(tile, outputs, (read - begin, time.perf_counter() - read), misfits)


def differences(program: Program, units: Mapping[str, Units], again: Recomputed) -> Iterator[Difference]:
    """Where stored outputs have other bits than a tile that has been recomputed; any two NaN are equal.

    Stored numbers are compared: of a packed output what was packed. An output that has no units here is passed over.
    """
    for target in program.targets:
        if target.spec.name not in units:
            continue
        found = _difference(target, units[target.spec.name], again)
        if found.cells:
            yield found


def _difference(target: Target, units: Units, again: Recomputed) -> Difference:
    values = again.outputs[target.spec.name]
    box = concrete(again.tile.slices(target.spec.dims), target.spec.shape)
    cells, apart, scale = 0, 0.0, 0.0
    for part in write_units(box, target.unit):
        local = tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))
        given = view(values, local)
        expected = (packed(given, target.packing) if target.packing else given).reshape(-1)
        found = units.read(part).reshape(-1)
        unequal = unequal_bits(found, expected)
        cells += int(np.count_nonzero(unequal))
        scale = max(scale, _largest(expected))
        if unequal.any():
            apart = max(apart, _apart(found[unequal], expected[unequal]))
    return Difference(target.spec.name, cells, values.size, apart / scale if scale else apart, target.dtype)


def unequal_bits(one: Array, other: Array) -> Array:
    """Where two arrays of one dtype differ in their bits; any two NaN are equal, and 0 is not -0.

    >>> unequal_bits(np.array([0.0, np.nan, 1.0]), np.array([-0.0, -np.nan, 1.0])).tolist()
    [True, False, False]
    """
    if one.dtype.kind == "c":
        part = one.real.dtype
        pairs = [np.ascontiguousarray(a).view(part).reshape(*a.shape, 2) for a in (one, other)]
        return np.asarray(unequal_bits(*pairs).any(axis=-1))
    whole = f"u{one.dtype.itemsize}"
    unequal = np.ascontiguousarray(one).view(whole) != np.ascontiguousarray(other).view(whole)
    if one.dtype.kind == "f":
        unequal &= ~(np.isnan(one) & np.isnan(other))
    return np.asarray(unequal)


def _largest(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _apart(one: Array, other: Array) -> float:
    """Largest difference of values that differ; infinite where it says nothing."""
    if one.dtype.kind not in "fc" or not (np.isfinite(one) & np.isfinite(other)).all():
        return float("inf")
    wide: Any = "complex128" if one.dtype.kind == "c" else "float64"
    return float(np.abs(one.astype(wide) - other.astype(wide)).max())
