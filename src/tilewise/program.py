"""What a task carries: names and integers, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cloudpickle

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
    #: Whether the tiles after one that has failed are done all the same.
    skip: bool = False
    #: What says whether the output is still this run's to write; None where nobody else can be at work on it.
    lease: Lease | None = None

    def ticket(self) -> Ticket:
        """The program as a task carries it: pickled once, kernels of the user's script by value."""
        return Ticket(self.run, cloudpickle.dumps(self), self.hosted)


@dataclass(frozen=True)
class Ticket:
    """A program by name, with its bytes for a process that does not know it yet."""

    run: str
    payload: bytes
    hosted: bool = False
