"""What a task carries: names and integers, no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import cloudpickle

from tilewise.errors import DimensionError
from tilewise.fields import TileGrid
from tilewise.kernels.base import Kernel, Signature
from tilewise.locking import Lease
from tilewise.outputs import Target
from tilewise.sources import Source


@dataclass(frozen=True)
class Program:
    """Everything that a worker needs to do any tile of a run: names and integers, no data."""

    run: str
    kernel: Kernel
    signature: Signature
    sources: Mapping[str, Source]
    targets: tuple[Target, ...]
    grid: TileGrid
    panel: int
    device: str = "cpu"
    #: Bytes that one process needs on its device, 0 where the device is the host.
    device_bytes: int = 0
    #: Whether processes take part in the run by arriving at it (`hosting.py`), and turn away blocks that come too late.
    hosted: bool = False
    #: How often what may pass, such as a store that does not answer, is tried again.
    retries: int = 3
    #: Tiles in work at a time, and those beyond them whose data is being read or written meanwhile, for each of them.
    slots: int = 1
    read_ahead: int = 0
    #: Whether the tiles after one that has failed are done all the same.
    skip: bool = False
    #: What says whether the output is still this run's to write; None where nobody else can be at work on it.
    lease: Lease | None = None

    def __post_init__(self) -> None:
        """Refuse a grid under which cells could be lost, wherever it comes from."""
        refuse_shared_units(self.grid, self.targets)

    def ticket(self) -> Ticket:
        """The program as a task carries it: pickled once, kernels of the user's script by value."""
        return Ticket(self.run, cloudpickle.dumps(self), self.hosted, self.read_ahead)


@dataclass(frozen=True)
class Ticket:
    """A program by name, with its bytes for a process that does not know it yet."""

    run: str
    payload: bytes
    hosted: bool = False
    #: Of the program as it is now: what a process has opened stays as it is.
    read_ahead: int = 0


def refuse_shared_units(grid: TileGrid, targets: Iterable[Target]) -> None:
    """Refuse tiles that are not whole write units of every output.

    Two tiles that share a write unit both read it, change their part and write it back: the later one undoes the
    earlier, and nothing says so. Plans never have such tiles; here every grid is checked that is ever run.

    Raises
    ------
    DimensionError
        The message names output and dimension.
    """
    for target in targets:
        units = dict(zip(target.spec.dims, target.unit, strict=True))
        for dim, size, tile in zip(grid.dims, grid.size, grid.tile_shape, strict=True):
            unit = units.get(dim, size)  # an output that lacks the dimension has one unit for all of it
            if tile < size and tile % unit:
                raise DimensionError(
                    f"tiles along {dim!r} would share write units of output {target.spec.name!r}",
                    got=f"tiles of {tile} for write units of {unit}",
                    expected=f"a multiple of {unit}, or {size}, all of it",
                    do=f"set tile.{dim} to {max(1, tile // unit) * unit}, or leave it out",
                )
