"""The plugin by which a worker of dask.distributed takes part in a run, also one that joins later."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewise import hosting
from tilewise.opened import forget

#: Seconds that a worker waits, at the end of a run, for the tiles that it has in work.
PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which workers take part in a run.

    Attributes
    ----------
    threads
        Tiles in work at a time within a worker, at most.
    only
        Addresses of the workers that take part; all unless given.
    numbers
        CUDA devices by address of the worker; None where there is nothing to share out. Workers of ours have them by
        name, which the next process of a nanny has too.
    ours
        Whether the workers are ours, so that their allocator may be set.
    """

    threads: int
    only: frozenset[str] | None = None
    numbers: Mapping[str, int] | None = None
    ours: bool = False


def plugin(run: str, terms: Terms) -> Any:
    """A `WorkerPlugin` that sets a worker up for a run, and at the end leaves nothing behind.

    It travels by value: a worker without tilewise that joins during the run can start all the same.
    """
    plain = (run, terms.threads, terms.only, terms.numbers, terms.ours)
    from distributed import WorkerPlugin

    class TakesPart(WorkerPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            self.terms = plain

        async def setup(self, worker: Any) -> None:
            try:
                from tilewise.plugin import take_part
            except ImportError:
                return
            await take_part(worker, *self.terms)

        async def teardown(self, worker: Any) -> None:
            try:
                from tilewise.plugin import take_leave
            except ImportError:
                return
            await take_leave(worker, *self.terms[:3])

    return TakesPart()


def name_of(run: str, client: str) -> str:
    """The name under which the plugin of a run of a client is registered."""
    return f"{_PREFIX}{run}@{client}"


_PREFIX = "tilewise-"


def abandoned(dask_scheduler: Any) -> list[str]:
    """Plugins of runs whose client has gone without taking them away: killed, or cut off."""
    names = [name for name in dask_scheduler.worker_plugins if name.startswith(_PREFIX)]
    return [name for name in names if name.partition("@")[2] not in dask_scheduler.clients]


def unforgiven(keys: Iterable[Any], dask_scheduler: Any) -> None:
    """Have the first death of a worker be the last of these tasks, whatever others may be allowed.

    A scheduler hands the tasks of a worker that has died to the next, and one that kills its worker to some more.
    """
    for key in keys:
        task = dask_scheduler.tasks.get(key)
        if task is not None:
            task.suspicious = max(task.suspicious, dask_scheduler.allowed_failures)


def _slots(worker: Any, threads: int, only: frozenset[str] | None) -> int:
    """Tiles that a worker may have in work; 0 where it does not take part."""
    return min(threads, worker.state.nthreads) if only is None or worker.contact_address in only else 0


async def take_part(
    worker: Any, run: str, threads: int, only: frozenset[str] | None, numbers: Mapping[str, int] | None, ours: bool
) -> None:
    """Set a worker up for a run."""
    slots = _slots(worker, threads, only)
    if not slots:
        return
    # Importing takes seconds, and must not hold up what else the worker does; what is loaded later is not set.
    for module in ("tilewise.tiles", "dask.array"):  # the blocks of a Dask graph come by functions of the latter
        await asyncio.to_thread(importlib.import_module, module)
    number = 0
    if numbers is not None:
        number = numbers.get(worker.contact_address, worker.name if ours else os.getpid())
        number %= max(1, importlib.import_module("torch").cuda.device_count())
    if ours:
        hosting.settle()
        # What a first tile loads, all workers load now: else only the one that tries the kernel would be ready.
        await asyncio.to_thread(importlib.import_module("tilewise.preflight").warm_up)
    hosting.arrive(run, slots=slots, number=number)


async def take_leave(worker: Any, run: str, threads: int, only: frozenset[str] | None) -> None:
    """Wait for the tiles that a run still has in work in this process, and forget it."""
    slots = _slots(worker, threads, only)
    if not slots or not hosting.leave(run, slots=slots):
        return
    for _ in range(int(PATIENCE / 0.02)):
        if not hosting.working(run):
            break
        await asyncio.sleep(0.02)
    hosting.end(run)
    await asyncio.to_thread(forget, run)
