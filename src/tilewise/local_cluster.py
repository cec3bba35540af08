"""A LocalCluster of ours: its workers are processes of this machine, which their nannies start anew when they die."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tilewise import machine
from tilewise.cluster import Layout
from tilewise.dask_workers import DistributedWorkers
from tilewise.plugin import Terms, plugin
from tilewise.workers import WORKER_ENVIRONMENT, Workers, deaf_to_sigint, environment, hidden_main

#: What Dask's processes do for those who watch them. With two workers that had nothing to do it took 9 % of a core: 2 %
#: for samples of every stack, a hundred a second; the rest for ticks of every event loop, fifty a second, and monitors.
SELDOM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}


#: Dask's configuration is process-wide, and given back as it was found: one cluster at a time may change it.
_CONFIGURING = threading.Lock()


@contextmanager
def open_local(layout: Layout, run: str) -> Iterator[Workers]:
    """A LocalCluster of ours, closed at the end."""
    import dask.config
    from distributed import Client, LocalCluster

    off = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause", "terminate")}
    environ = {**WORKER_ENVIRONMENT, "MALLOC_TRIM_THRESHOLD_": str(machine.TRIM_THRESHOLD)}
    spawn = {f"distributed.nanny.pre-spawn-environ.{key}": value for key, value in environ.items()}
    with ExitStack() as stack:
        # The nanny writes these into its own process, which is this one, and leaves them there.
        stack.enter_context(environment(environ, also=("PYTHONHASHSEED", "__DASK_PARENT_PID")))
        settings = {**off, **SELDOM, **spawn, "distributed.scheduler.allowed-failures": 0}
        # A cluster keeps the configuration that it begins with, and its processes are started by a thread that is
        # started here.
        with _CONFIGURING, dask.config.set(settings), deaf_to_sigint():
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=layout.processes,
                    threads_per_worker=layout.slots,
                    processes=True,
                    worker_class=_nanny(),
                    memory_limit=None,
                    dashboard_address=":0",
                    silence_logs=logging.ERROR,
                )
            )
            client = stack.enter_context(Client(cluster, set_as_default=False))
            terms = Terms(threads=layout.slots, numbers={} if layout.device == "cuda" else None, ours=True)
            client.register_plugin(plugin(run, terms), name=f"tilewise-{run}")
        yield DistributedWorkers(client, run)


def _nanny() -> type[Any]:
    """Nannies that hide the user's script from the processes that they start, later ones too."""
    from distributed import Nanny

    class Hides(Nanny):  # type: ignore[misc]
        async def instantiate(self) -> Any:
            with hidden_main():
                return await super().instantiate()

    return Hides
