"""What a probe of a job's tiles says before they are run, and what follows for its plan."""

from __future__ import annotations

from dataclasses import replace

from tilewise import access
from tilewise.folders import Folder
from tilewise.limits import FEWEST, Probe, probe_grid, probe_numbers
from tilewise.memory import Workload
from tilewise.outputs import Output, lay_out
from tilewise.planning import block_of
from tilewise.plans import Plan
from tilewise.program import Program
from tilewise.store import create
from tilewise.task import probe as measure
from tilewise.workers import Workers


def is_worth_it(plan: Plan, done: int = 0) -> bool:
    """Whether a run that has so many tiles behind it is long enough for a probe beforehand."""
    return plan.tiles - done >= FEWEST * plan.in_work


def probed(program: Program, work: Workload, plan: Plan, output: Output, scratch: Folder, workers: Workers) -> Probe:
    """Do a few tiles on one worker, into a store in `scratch` like that of the output, which is removed again.

    Raises
    ------
    TilewiseError
        A tile failed, or the scratch store cannot be written.
    """
    folder = scratch.child("probe.zarr")
    grid = probe_grid(work, plan)
    there = replace(output, store=folder.place)
    sources = list(work.sources.values())
    targets = lay_out(there, work.signature.outputs, sources, work.signature.tile_dims)
    aside = replace(program, targets=targets, grid=grid, lease=None)
    with access.reaching(folder.place):
        try:
            create(there, targets, [], {})
            measured = workers.call(measure, program.ticket(), aside.ticket(), probe_numbers(grid))
        finally:
            folder.remove()
    return Probe.of(measured, work, plan)


def refined(plan: Plan, probe: Probe, *, wait_for_stores: bool, most: int) -> Plan:
    """The plan with what a probe says of its blocks, about two seconds each, and of read-ahead.

    Parameters
    ----------
    wait_for_stores
        Whether read-ahead is to be chosen: that pays where stores are waited for, and else cores are shared.
    most
        Bytes that a process may need: read-ahead takes no more.
    """
    if wait_for_stores:
        plan = plan.with_read_ahead(probe.read_ahead, most)
    block = block_of(plan.tiles, probe.seconds, plan.processes * plan.slots, plan.read_ahead)
    return replace(plan, block=block)
