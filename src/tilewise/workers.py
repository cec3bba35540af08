"""Workers that run windows of blocks, and their set-up.

Three kinds, one interface: Dask's threaded scheduler, a spawn pool through Dask's processes scheduler, and a
distributed LocalCluster. Workers that are started here never import the user's script, so that a plain script
without a `__main__` guard works.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from tilewise import machine
from tilewise.cluster import Layout
from tilewise.errors import ClusterError
from tilewise.memory import CONCURRENCY

if TYPE_CHECKING:
    import dask.array as da

OnResult = Callable[[Any], None]


def set_up_process(number: int = 0, device: str = "cpu") -> None:
    """Set up a worker process that is ours: allocator, zarr's concurrency, one thread for BLAS, its own GPU."""
    machine.set_allocator()
    import torch
    import zarr

    zarr.config.set({"async.concurrency": CONCURRENCY, "threading.max_workers": CONCURRENCY})
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())


def _set_up_pool_process(counter: Any, device: str) -> None:
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    machine.die_with_parent()
    set_up_process(number, device)


class Workers(ABC):
    """Workers that run blocks."""

    @abstractmethod
    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of one call on one worker."""

    @abstractmethod
    def stream(self, windows: Iterable[da.Array], on_result: OnResult) -> None:
        """Run windows in their order and hand over the result of every block as it finishes."""


class _PoolWorkers(Workers):
    """A pool of this machine behind one of Dask's local schedulers: one window after the other."""

    def __init__(self, pool: Executor, get: Callable[..., Any]) -> None:
        self._pool = pool
        self._get = get

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool as error:
            raise _lost(error) from error

    def stream(self, windows: Iterable[da.Array], on_result: OnResult) -> None:
        from dask.callbacks import Callback

        def finished(key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
            on_result(value[0])

        for window in windows:
            try:
                with Callback(posttask=finished):
                    self._get(window.__dask_graph__(), window.__dask_keys__(), pool=self._pool)
            except BrokenProcessPool as error:
                raise _lost(error) from error


def _lost(error: BaseException) -> ClusterError:
    return ClusterError(
        "a worker process died",
        got=error,
        do="look for the kernel's out-of-memory message in the system log; give workers more memory, or use fewer",
    )


class _DistributedWorkers(Workers):
    """A distributed client: the next window is submitted while the last one is still at work."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._client.submit(function, *args, pure=False).result()

    def stream(self, windows: Iterable[da.Array], on_result: OnResult) -> None:
        from distributed import KilledWorker, as_completed, futures_of

        source = iter(windows)
        running = as_completed([], loop=self._client.loop)
        left = self._submit(source, running, futures_of)
        more = left > 0
        for future in running:
            try:
                result = future.result()
            except KilledWorker as error:
                raise _lost(error) from error
            on_result(result[0])
            left -= 1
            future.release()
            if more and left <= self._slots():
                added = self._submit(source, running, futures_of)
                more, left = added > 0, left + added

    def _slots(self) -> int:
        return 2 * int(sum(self._client.nthreads().values()))

    def _submit(self, source: Iterator[da.Array], running: Any, futures_of: Callable[[Any], list[Any]]) -> int:
        window = next(source, None)
        if window is None:
            return 0
        futures = futures_of(self._client.persist(window))
        running.update(futures)
        return len(futures)


@contextmanager
def open_workers(layout: Layout) -> Iterator[Workers]:
    """Workers of a layout, set up; closed, and every setting of this process restored, at the end."""
    opener = {"threads": _open_threads, "processes": _open_processes, "local": _open_local}[layout.kind]
    with opener(layout) as workers:
        yield workers


@contextmanager
def _open_threads(layout: Layout) -> Iterator[Workers]:
    import dask.threaded
    import zarr
    from threadpoolctl import threadpool_limits

    pool = ThreadPoolExecutor(layout.slots, thread_name_prefix="tilewise")
    try:
        with zarr.config.set({"async.concurrency": CONCURRENCY}), threadpool_limits(1):
            yield _PoolWorkers(pool, dask.threaded.get)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _open_processes(layout: Layout) -> Iterator[Workers]:
    import dask.multiprocessing

    def get(dsk: Any, keys: Any, pool: Executor) -> Any:
        return dask.multiprocessing.get(dsk, keys, pool=pool, chunksize=1, optimize_graph=False)

    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        layout.processes,
        mp_context=context,
        initializer=_set_up_pool_process,
        initargs=(context.Value("i", 0), layout.device),
    )
    try:
        with hidden_main(), _deaf_to_sigint(), _environment(_WORKER_ENVIRONMENT):
            # A process starts when a task finds no idle one: as many tasks at once start them all while hidden.
            started = [pool.submit(os.getpid) for _ in range(layout.processes)]
            for future in started:
                _started(future.result)
        yield _PoolWorkers(pool, get)
    finally:
        pool.shutdown(cancel_futures=True)


def _started(result: Callable[[], Any]) -> None:
    try:
        result()
    except BrokenProcessPool as error:
        raise ClusterError(
            "the worker processes could not be started", got=error, do="try cluster.kind threads"
        ) from error


@contextmanager
def _open_local(layout: Layout) -> Iterator[Workers]:
    import dask.config
    from distributed import Client, LocalCluster

    off = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause", "terminate")}
    environ = {**_WORKER_ENVIRONMENT, "MALLOC_TRIM_THRESHOLD_": str(machine.TRIM_THRESHOLD)}
    spawn = {f"distributed.nanny.pre-spawn-environ.{key}": value for key, value in environ.items()}
    with ExitStack() as stack:
        # The nanny writes these into its own process, which is this one, and leaves them there.
        stack.enter_context(_environment(environ, also=("PYTHONHASHSEED", "__DASK_PARENT_PID")))
        stack.enter_context(dask.config.set({**off, **spawn}))
        with hidden_main(), _deaf_to_sigint():
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
            for number, address in enumerate(sorted(client.scheduler_info(n_workers=-1)["workers"])):
                client.run(set_up_process, number, layout.device, workers=[address])
        yield _DistributedWorkers(client)


_WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def _deaf_to_sigint() -> Iterator[None]:
    """Processes that are started meanwhile inherit a blocked SIGINT.

    A terminal sends Ctrl-C to all of them: the one that runs the job closes the others, which have nothing to say.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which unblocks SIGINT in the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(values: Mapping[str, str], also: Sequence[str] = ()) -> Iterator[None]:
    """Environment with these values; they, and the names in `also`, are afterwards what they were."""
    before = {key: os.environ.get(key) for key in (*values, *also)}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide the user's script from processes that are spawned meanwhile.

    A spawned process runs the main script again, and a script without a `__main__` guard would start its job anew
    in every worker. Workers need nothing of it: kernels that are defined there travel by value.
    """
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    before: dict[str, Any] = {name: main.__dict__[name] for name in names if name in main.__dict__}
    main.__dict__.pop("__file__", None)
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.pop("__spec__", None)
        main.__dict__.update(before)
