"""Workers of dask.distributed that run windows of blocks: those of any client.

What a run leaves on workers is taken away by its plugin (`plugin.py`); what it has asked for and not got is cancelled.
A block whose worker dies is not handed on by the scheduler: it comes back as a suspect.
"""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

from tilewise import inspection
from tilewise.errors import ClusterError, TilewiseError
from tilewise.plugin import Terms, abandoned, name_of, plugin, unforgiven
from tilewise.workers import WIND_DOWN, Key, OnResult, Window, WorkerDied, Workers, lost

log = logging.getLogger("tilewise")

#: Seconds between two looks at whether the workers are still there.
WATCH = 2.0
#: Seconds between two questions whether to go on while nothing finishes.
TICK = 0.25
#: Instead of a result.
NOT_THERE = object()


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
        raise lost(f"worker {error.last_worker.address}") from error
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
        do="look into its log, start it again, and run again with --resume",
    )


class DistributedWorkers(Workers):
    """Workers of a client: the next window is submitted while the last one is still at work.

    `only` are the addresses of the workers that are used; all of them unless given.
    """

    def __init__(self, client: Any, run: str, only: frozenset[str] | None = None, patience: float = 60.0) -> None:
        import dask.array  # noqa: F401 - windows are made of it: loaded with the first one it would keep workers waiting

        self.client = client
        #: Of the workers that are there.
        self.threads = 0
        self._run = run
        self._only = sorted(only) if only else None
        self._patience = patience
        self._seen = self._looked = time.monotonic()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:  # noqa: D102 - as the interface says
        key = f"tilewise-{self._run}-call-{uuid.uuid4().hex[:12]}"
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with told(self.client):
            self.look()
            future = self.client.submit(function, *args, key=key, pure=False, workers=self._only)
            try:
                self.client.run_on_scheduler(unforgiven, [key])
                result = NOT_THERE
                while result is NOT_THERE:
                    future.add_done_callback(done.put)
                    while self.next(done) is None:
                        pass
                    result = self.fetch(future)
                return result
            finally:
                self.cancel([] if future.done() else [future])

    def everywhere(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:  # noqa: D102
        with told(self.client):
            found: Mapping[str, Any] = self.client.run(inspection.aside, function, args, workers=self._only)
        return found

    def stream(  # noqa: D102
        self, windows: Iterable[Window], on_result: OnResult, go_on: Callable[[], bool]
    ) -> None:
        _Stream(self, windows, on_result, go_on).run()

    def persist(self, window: Window) -> list[Any]:
        """Futures of a window that has been submitted; none of its blocks is handed on when its worker dies."""
        from distributed import futures_of

        with told(self.client):
            self.look()
            futures: list[Any] = futures_of(self.client.persist(window.array(), workers=self._only))
            self.client.run_on_scheduler(unforgiven, [future.key for future in futures])
        return futures

    def begun(self) -> set[Any]:
        """Keys that workers have in work, or at hand as the next."""
        with told(self.client):
            return {key for keys in self.client.processing().values() for key in keys}

    def look(self) -> None:
        """Refuse to wait any longer for workers to come back."""
        there = self.client.nthreads()
        if self._only is not None:
            there = {worker: there[worker] for worker in self._only if worker in there}
        self.threads, self._looked = sum(there.values()), time.monotonic()
        self._seen = self._looked if there else self._seen
        if self._looked - self._seen > self._patience:
            raise ClusterError(
                "every worker has left the scheduler",
                got=f"none for {self._patience:g} s",
                do="start workers, and run again with --resume",
            )

    def next(self, done: queue.SimpleQueue[Any]) -> Any:
        """The next future that has finished, or None after a moment; workers are watched meanwhile."""
        if time.monotonic() - self._looked > WATCH:
            with told(self.client):
                self.look()
        with suppress(queue.Empty):
            return done.get(timeout=TICK)
        return None

    def fetch(self, future: Any) -> Any:
        """The result of a future that has finished; NOT_THERE where its worker has gone since, and it is done again."""
        try:
            return future.result(timeout=WATCH)
        except TimeoutError:
            if future.status == "error":
                raise
            return NOT_THERE

    def cancel(self, futures: list[Any]) -> None:
        """Take back what has not been done, so that nothing of the run is left on the cluster."""
        if futures and self.client.status == "running":
            with suppress(OSError, CancelledError):
                self.client.cancel(futures)


class _Stream:
    """Windows on their way through the workers of a client: the next is submitted while the last is still at work."""

    def __init__(
        self,
        workers: DistributedWorkers,
        windows: Iterable[Window],
        on_result: OnResult,
        go_on: Callable[[], bool],
    ) -> None:
        self._workers = workers
        self._windows = iter(windows)
        self._on_result = on_result
        self._go_on = go_on
        self._pending: dict[Key, Any] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._submits = True
        self._deadline = float("inf")
        self._suspects: list[Key] = []
        self._dead: set[str] = set()

    def run(self) -> None:
        """Submit and receive until nothing is left, or nothing more may begin."""
        try:
            self._submit()
            while self._pending:
                self._receive()
                self._submit()
        finally:
            self._workers.cancel(list(self._pending.values()))
        if self._suspects:
            raise WorkerDied(self._suspects, lost(", ".join(sorted(self._dead))))

    def _submit(self) -> None:
        if self._deadline == float("inf") and not self._go_on():
            self._deadline = time.monotonic() + WIND_DOWN
            self._take_back()
        if not self._submits or len(self._pending) > 2 * self._workers.threads:
            return
        window = next(self._windows, None)
        self._submits = window is not None
        if window is not None:
            futures = self._workers.persist(window)
            self._pending.update({future.key: future for future in futures})
            self._watch(futures)

    def _watch(self, futures: Iterable[Any]) -> None:
        for future in futures:
            future.add_done_callback(self._done.put)

    def _take_back(self) -> None:
        """Let nothing more begin."""
        self._submits = False
        begun = self._workers.begun() if self._pending else ()
        idle = [key for key, future in self._pending.items() if key not in begun and not future.done()]
        self._workers.cancel([self._pending.pop(key) for key in idle])

    def _receive(self) -> None:
        from distributed import KilledWorker

        future = self._workers.next(self._done)
        if future is None and time.monotonic() > self._deadline:
            log.warning("%d blocks did not end within %g s, and are given up", len(self._pending), WIND_DOWN)
            self._workers.cancel(list(self._pending.values()))
            self._pending.clear()
        if future is None or future.key not in self._pending:
            return
        with told(self._workers.client):
            try:
                result = self._workers.fetch(future)
            except KilledWorker as error:
                self._suspect(self._pending.pop(future.key), error.last_worker.address)
                return
        if result is NOT_THERE:
            self._watch([future])
            return
        del self._pending[future.key]
        future.release()
        self._on_result(future.key, result[0])

    def _suspect(self, future: Any, worker: str) -> None:
        self._suspects.append(future.key)
        self._dead.add(f"worker {worker}")
        if len(self._suspects) == 1:
            self._take_back()
