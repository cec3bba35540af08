"""The executors of a pool of this machine, lane by lane: a pool of threads, or one process that is started anew.

Each process is a pool of its own: one that dies takes its own block with it, and not those of its neighbours.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any, TypeAlias

from tilewise import hosting, machine
from tilewise.errors import ClusterError
from tilewise.exits import SureExit
from tilewise.workers import WIND_DOWN, WORKER_ENVIRONMENT, Key, deaf_to_sigint, environment, hidden_main

#: Tasks for each slot that are handed out: one in work, and one that follows it while its result is dealt with.
AHEAD = 2
#: Starts of one process in a row that fail, after which no more are tried.
MOST_STARTS = 3

#: A block, to be called without arguments.
Task: TypeAlias = Callable[[], Any]
#: A task and its name.
Item: TypeAlias = tuple[Key, Task]

#: What a pool tells those at work in it, by a number in memory that they share: all goes on; what has not begun is not
#: to begin; and what has begun is to stop where it can.
GOES_ON, TURNS_AWAY, IS_OVER = 0, 1, 2


class Lane:
    """An executor, and what it was given and has not brought back, in that order."""

    def __init__(self, pool: Executor, width: int, run: Callable[..., Any]) -> None:
        self.pool = pool
        self.width = width
        self.run = run
        self.handed: dict[Future[Any], Item | None] = {}

    @property
    def room(self) -> float:
        """Tasks that it can be given, for each of its slots."""
        return AHEAD - len(self.handed) / self.width

    def submit(self, item: Item | None, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Hand out a call."""
        future = self.pool.submit(function, *args)
        self.handed[future] = item
        return future

    def died(self) -> str:
        """Take note that the executor broke; who died with a task in work, or "" where none had begun."""
        raise NotImplementedError("a thread does not die")

    def kill(self) -> None:
        """Give up what is in work, where that can be done."""

    def close(self) -> None:
        """End the executor, once what is in work has ended."""
        self.pool.shutdown(cancel_futures=True)


class Process(Lane):
    """A process, which is started anew for the next task when it has died."""

    def __init__(self, start: Callable[[], Executor]) -> None:
        super().__init__(start(), 1, do_here)
        self._start = start
        self._failed = 0
        self.started = self.pool.submit(os.getpid)

    def submit(self, item: Item | None, function: Callable[..., Any], *args: Any) -> Future[Any]:  # noqa: D102
        try:
            return super().submit(item, function, *args)
        except BrokenExecutor:  # with nothing in work, or it is known already
            self._start_anew()
            return super().submit(item, function, *args)

    def _start_anew(self) -> None:
        self.pool.shutdown()
        with hidden_main(), deaf_to_sigint(), environment(WORKER_ENVIRONMENT):
            self.pool = self._start()
            self.started = self.pool.submit(os.getpid)  # by which the process is started

    def died(self) -> str:  # noqa: D102
        error = self.started.exception()
        if error is None:
            self._failed = 0
            return f"process {self.started.result()}"
        self._failed += 1
        if self._failed == MOST_STARTS:
            raise not_started(error) from error
        return ""

    def kill(self) -> None:  # noqa: D102
        if self.started.done() and self.started.exception() is None:
            # The process is a child of this one, and as long as its pool has not noticed its end the number is its own.
            os.kill(self.started.result(), signal.SIGKILL)


def not_started(error: object) -> ClusterError:
    """What to say of processes that die before they are set up."""
    return ClusterError("the worker processes could not be started", got=error, do="try cluster.kind threads")


def do(word: ctypes.c_int, task: Task) -> Any:
    """What a task returns; None where it came when nothing more was to begin."""
    return task() if word.value == GOES_ON else None


def carried(function: Callable[..., Any], *args: Any) -> Any:
    """What a call returns; an exception that cannot travel is told as one that can.

    To the executor it would look as if its process had died.
    """
    try:
        return function(*args)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - whatever an exception's own code raises
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def is_over(word: ctypes.c_int) -> bool:
    """Whether what has begun is to stop where it can."""
    return word.value == IS_OVER


#: In a worker process: the number by which its pool tells it to stop.
_WORD: list[ctypes.c_int] = []


def set_up(word: ctypes.c_int, number: int, device: str, run: str) -> None:
    """Begin a worker process, which ends with the one that starts it."""
    atexit.register(SureExit(code=0))
    machine.die_with_parent()
    threading.Thread(target=end_with_parent, name="tilewise-parent", daemon=True).start()
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGTERM, _outlast)
    _WORD.append(word)
    hosting.settle()
    _load()
    number = number % _cuda_count() if device == "cuda" else 0
    hosting.arrive(run, slots=1, number=number, over=partial(is_over, word))


def end_with_parent() -> None:
    """End this process when the one that started it has ended, on systems that do not see to it, or did too late."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _outlast(signum: int, frame: object) -> None:
    """Give the process that runs the job time to end this one, whose tile would be lost.

    Batch systems send SIGTERM to all processes at once; that one hears it too, and waits for what is in work.
    """
    signal.alarm(int(2 * WIND_DOWN))


def _load() -> None:
    """Load what a tile needs, while the other processes do so too: the first block would wait for it."""
    from tilewise.preflight import warm_up

    warm_up()


def _cuda_count() -> int:
    import torch

    return max(1, int(torch.cuda.device_count()))


def do_here(task: Task) -> Any:
    """A task in a worker process."""
    return carried(do, _WORD[0], task)
