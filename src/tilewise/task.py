"""What workers are asked to do, by names that a client and a scheduler can hand on without loading torch.

A scheduler unpickles the graph of a window, and with it whatever its functions are made of.
"""

from __future__ import annotations

from tilewise.coordinates import Array
from tilewise.limits import Measured
from tilewise.program import Ticket
from tilewise.records import Ranges


def run_block(ticket: Ticket, window: tuple[Ranges, ...], *, block_id: tuple[int, ...]) -> Array:
    """Do the tiles of one block: see `tilewise.tiles.run_block`."""
    from tilewise import tiles

    return tiles.run_block(ticket, window, block_id=block_id)


def probe(ticket: Ticket, aside: Ticket, numbers: tuple[int, int, int, int]) -> Measured:
    """Do a few tiles beforehand: see `tilewise.trial.probe`."""
    from tilewise import trial

    return trial.probe(ticket, aside, numbers)


def try_kernel(ticket: Ticket) -> None:
    """Try the kernel before anything is written: see `tilewise.preflight.try_kernel`."""
    from tilewise import preflight

    preflight.try_kernel(ticket)
