"""Workers of dask.distributed that run windows of blocks: those of any client, and a LocalCluster of ours.

What a run leaves on workers is taken away by its plugin (`plugin.py`); what it has asked for and not got is cancelled.
"""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tilewise import inspection, machine
from tilewise.cluster import Layout
from tilewise.errors import ClusterError, TilewiseError
from tilewise.plugin import Terms, abandoned, name_of, plugin
from tilewise.workers import (
    WORKER_ENVIRONMENT,
    OnResult,
    Workers,
    deaf_to_sigint,
    environment,
    hidden_main,
    lost,
)

if TYPE_CHECKING:
    import dask.array as da

log = logging.getLogger("tilewise")

#: Seconds between two looks at whether the workers are still there.
WATCH = 2.0


@contextmanager
def open_remote(client: Any, terms: Terms, patience: float, run: str) -> Iterator[Workers]:
    """Workers of a client, set up for a run by a plugin on these terms, and left as they were."""
    name = name_of(run, client.id)
    try:
        with told(client):
            for left in client.run_on_scheduler(abandoned):
                _forget_plugin(client, left)
            client.register_plugin(plugin(run, terms), name=name)
        yield DistributedWorkers(client, run, terms.only, patience)
    finally:
        _forget_plugin(client, name)


def _forget_plugin(client: Any, name: str) -> None:
    """Take the plugin from scheduler and workers: where they are gone, it is gone with them."""
    if client.status == "running":
        try:
            client.unregister_worker_plugin(name)
        except (OSError, ValueError, KeyError) as error:  # KeyError: a worker that has been restarted meanwhile
            log.warning("what the run set on the workers may not be restored everywhere: %s", error)


@contextmanager
def told(client: Any) -> Iterator[None]:
    """What dask.distributed raises when workers or scheduler are lost, as an error that says so."""
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise lost(f"{error.last_worker.address}, and others before it: {error}") from error
    except CancelledError as error:
        if client.status == "running" and "connection-lost" not in str(error):
            raise ClusterError("tasks of the run were cancelled by somebody else", got=error, do="run again") from error
        raise _no_scheduler(error) from error
    except (CommClosedError, TimeoutError, ConnectionError) as error:
        raise _no_scheduler(error) from error
    except (ImportError, AttributeError, RuntimeError) as error:
        if isinstance(error, TilewiseError) or not _is_of_loading(error):
            raise
        raise ClusterError(
            "a worker or the scheduler cannot load what the run needs",
            got=f"{type(error).__name__}: {error}",
            do="install tilewise, and the module of the kernel, where they run",
        ) from error


def _is_of_loading(error: Exception) -> bool:
    """Whether a function could not be unpickled where it was to run."""
    return isinstance(error, ImportError) or "Can't get attribute" in str(error) or "deserializ" in str(error)


def _no_scheduler(error: BaseException) -> ClusterError:
    return ClusterError(
        "the scheduler or one of its workers cannot be reached any more",
        got=f"{type(error).__name__}: {error}",
        do="look into its log, start it again, and run again with --overwrite",
    )


class DistributedWorkers(Workers):
    """Workers of a client: the next window is submitted while the last one is still at work.

    `only` are the addresses of the workers that are used; all of them unless given.
    """

    def __init__(self, client: Any, run: str, only: frozenset[str] | None = None, patience: float = 60.0) -> None:
        self._client = client
        self._run = run
        self._only = sorted(only) if only else None
        self._patience = patience
        self._nthreads: dict[str, int] = {}
        self._seen = self._looked = time.monotonic()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:  # noqa: D102 - as the interface says
        key = f"tilewise-{self._run}-call-{uuid.uuid4().hex[:12]}"
        with told(self._client):
            self._look()
            future = self._client.submit(function, *args, key=key, pure=False, workers=self._only)
            try:
                return self._result(self._next(self._watched([future])))
            finally:
                self._cancel([] if future.done() else [future])

    def everywhere(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:  # noqa: D102
        with told(self._client):
            found: Mapping[str, Any] = self._client.run(inspection.aside, function, args, workers=self._only)
        return found

    def stream(  # noqa: D102
        self, windows: Iterable[da.Array], on_result: OnResult, go_on: Callable[[], bool]
    ) -> None:
        source = iter(windows)
        pending: dict[Any, Any] = {}
        done = self._watched(self._submit(source, pending))
        more = bool(pending)
        try:
            while pending:
                with told(self._client):
                    future = self._next(done)
                    del pending[future.key]
                    result = self._result(future)
                future.release()
                on_result(future.key, result[0])
                if more and len(pending) <= 2 * sum(self._nthreads.values()):
                    added = self._submit(source, pending)
                    more = bool(added)
                    self._watched(added, done)
        finally:
            self._cancel(list(pending.values()))

    def _submit(self, source: Iterator[da.Array], pending: dict[Any, Any]) -> list[Any]:
        from distributed import futures_of

        window = next(source, None)
        if window is None:
            return []
        with told(self._client):
            self._look()
            futures: list[Any] = futures_of(self._client.persist(window, workers=self._only))
        pending.update({future.key: future for future in futures})
        return futures

    def _watched(self, futures: Iterable[Any], done: queue.SimpleQueue[Any] | None = None) -> queue.SimpleQueue[Any]:
        """A queue into which futures come as they finish."""
        done = queue.SimpleQueue() if done is None else done
        for future in futures:
            future.add_done_callback(done.put)
        return done

    def _next(self, done: queue.SimpleQueue[Any]) -> Any:
        """The next future that has finished; meanwhile the workers are watched."""
        while True:
            if time.monotonic() - self._looked > WATCH:
                self._look()
            with suppress(queue.Empty):
                return done.get(timeout=WATCH)

    def _result(self, future: Any) -> Any:
        """The result of a future that has finished; its worker may die before it is fetched."""
        while True:
            try:
                return future.result(timeout=WATCH)
            except TimeoutError:
                if future.status == "error":
                    raise
                self._look()

    def _look(self) -> None:
        """Refuse to go on when a worker has died with blocks of this run: Dask would only give them to the next one."""
        there = self._client.nthreads()
        if self._only is not None:
            there = {worker: there[worker] for worker in self._only if worker in there}
        for worker in self._nthreads.keys() - there.keys():
            for _, event in self._client.get_events(worker) or ():
                if event.get("action") == "remove-worker" and not event.get("expected"):
                    keys = [key for key in event["processing-tasks"] if f"tilewise-{self._run}-" in str(key)]
                    if keys:
                        raise lost(f"{worker}, with {len(keys)} blocks of this run")
        self._nthreads, self._looked = there, time.monotonic()
        self._seen = self._looked if there else self._seen
        if self._looked - self._seen > self._patience:
            raise ClusterError(
                "every worker has left the scheduler",
                got=f"none for {self._patience:g} s",
                do="start workers, and run again with --overwrite",
            )

    def _cancel(self, futures: list[Any]) -> None:
        """Take back what has not been done, so that nothing of the run is left on the cluster."""
        if futures and self._client.status == "running":
            with suppress(OSError, CancelledError):
                self._client.cancel(futures)


# --- a cluster of ours


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
        stack.enter_context(dask.config.set({**off, **spawn, "distributed.scheduler.allowed-failures": 0}))
        with hidden_main(), deaf_to_sigint():
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=layout.processes,
                    threads_per_worker=layout.slots,
                    processes=True,
                    memory_limit=None,
                    dashboard_address=":0",
                    silence_logs=logging.ERROR,
                )
            )
            client = stack.enter_context(Client(cluster, set_as_default=False))
            numbers = {worker: number for number, worker in enumerate(sorted(client.nthreads()))}
            terms = Terms(threads=layout.slots, numbers=numbers if layout.device == "cuda" else None, ours=True)
            client.register_plugin(plugin(run, terms), name=f"tilewise-{run}")
        yield DistributedWorkers(client, run)
