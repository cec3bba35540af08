"""Workers that run windows of blocks: the interface, and the pools of this machine.

Dask's threaded scheduler, and a spawn pool through Dask's processes scheduler; those of dask.distributed are in
`clients.py`. Workers that are started here never import the user's script, so that a plain script without a
`__main__` guard works.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from tilewise import hosting, machine
from tilewise.cluster import Layout
from tilewise.errors import ClusterError

if TYPE_CHECKING:
    import dask.array as da

#: Of a block, as Dask names it: the name of its window, and its number therein.
Key = tuple[str, int]
OnResult = Callable[[Key, Any], None]


class WorkerDied(Exception):  # noqa: N818 - what is lost can be done again: no error of its own
    """Workers have died; all other blocks that were in work have ended since.

    Attributes
    ----------
    keys
        Blocks that may have been in work on them.
    reason
        What to raise where it cannot go on.
    """

    def __init__(self, keys: Iterable[Key], reason: ClusterError) -> None:
        super().__init__(reason)
        self.keys = tuple(keys)
        self.reason = reason


def _set_up_pool_process(counter: Any, device: str, run: str) -> None:
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    machine.die_with_parent()
    hosting.settle()
    hosting.arrive(run, slots=1, number=number % _cuda_count() if device == "cuda" else 0)


def _cuda_count() -> int:
    import torch

    return max(1, int(torch.cuda.device_count()))


class Workers(ABC):
    """Workers that run blocks."""

    def everywhere(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Results of one call on every worker that somebody else has started, by address."""
        return {}

    @abstractmethod
    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of one call on one worker."""

    @abstractmethod
    def stream(self, windows: Iterable[da.Array], on_result: OnResult, go_on: Callable[[], bool]) -> None:
        """Run windows in their order and hand over the result of every block as it finishes.

        `go_on` is asked before anything is submitted, and at least every second; once it says no, nothing more is
        submitted, and the call returns when what is in work has ended.

        Raises
        ------
        WorkerDied
            Some have; what can be done with the others is done, or has not been begun.
        ClusterError
            There are no workers any more.
        """


class _PoolWorkers(Workers):
    """A pool of this machine behind one of Dask's local schedulers: one window after the other."""

    def __init__(self, pool: Executor, get: Callable[..., Any]) -> None:
        self._pool = pool
        self._get = get

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool as error:
            raise lost(error) from error

    def stream(self, windows: Iterable[da.Array], on_result: OnResult, go_on: Callable[[], bool]) -> None:
        from dask.callbacks import Callback

        class Enough(Exception):  # noqa: N818 - nothing is wrong
            pass

        def finished(key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
            on_result(key, value[0])
            if not go_on():
                raise Enough

        for window in windows:
            try:
                with Callback(posttask=finished):
                    self._get(window.__dask_graph__(), window.__dask_keys__(), pool=self._pool)
            except Enough:
                return
            except BrokenProcessPool as error:
                raise lost(error) from error


def lost(error: object) -> ClusterError:
    """What to say of a worker that died while it was at work."""
    return ClusterError(
        "a worker process died",
        got=error,
        do="look for the kernel's out-of-memory message in the system log; give workers more memory, or use fewer",
    )


@contextmanager
def open_threads(layout: Layout, run: str) -> Iterator[Workers]:
    """Threads of this process, whose settings are restored at the end."""
    import dask.threaded

    pool = ThreadPoolExecutor(layout.slots, thread_name_prefix="tilewise")
    try:
        with hosting.hosted(run, slots=layout.slots):
            yield _PoolWorkers(pool, dask.threaded.get)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def open_processes(layout: Layout, run: str) -> Iterator[Workers]:
    """A pool of spawned processes, closed at the end."""
    import dask.multiprocessing

    def get(dsk: Any, keys: Any, pool: Executor) -> Any:
        return dask.multiprocessing.get(dsk, keys, pool=pool, chunksize=1, optimize_graph=False)

    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        layout.processes,
        mp_context=context,
        initializer=_set_up_pool_process,
        initargs=(context.Value("i", 0), layout.device, run),
    )
    try:
        with hidden_main(), deaf_to_sigint(), environment(WORKER_ENVIRONMENT):
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


#: Of processes that are started here: one thread each for the libraries that read it when they are loaded.
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def deaf_to_sigint() -> Iterator[None]:
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
def environment(values: Mapping[str, str], also: Sequence[str] = ()) -> Iterator[None]:
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
