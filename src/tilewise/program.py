"""What a task carries, and what it brings back: names, integers and seconds, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import cloudpickle

from tilewise.fields import TileGrid
from tilewise.kernels.base import Kernel, Signature
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
    block: int
    panel: int
    device: str = "cpu"
    #: Bytes that one process needs on its device, 0 where the device is the host.
    device_bytes: int = 0
    #: Whether processes take part in the run by arriving at it (`hosting.py`), and turn away blocks that come too late.
    hosted: bool = False

    def ticket(self) -> Ticket:
        """The program as a task carries it: pickled once, kernels of the user's script by value."""
        return Ticket(self.run, cloudpickle.dumps(self), self.hosted)


@dataclass(frozen=True)
class Ticket:
    """A program by name, with its bytes for a process that does not know it yet."""

    run: str
    payload: bytes
    hosted: bool = False


@dataclass(frozen=True)
class TileRecord:
    """What became of one tile: seconds by phase, pixels by status code, values that did not fit; or the error."""

    number: int
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    statuses: Mapping[int, int] = field(default_factory=dict)
    misfits: int = 0
    error: str = ""
    details: str = ""


@dataclass(frozen=True)
class BlockRecord:
    """What became of one block, and how much memory its process has needed so far."""

    tiles: tuple[TileRecord, ...]
    process: str
    peak: int
