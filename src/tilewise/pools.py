"""The pools of this machine: threads, and processes that are started anew when they die.

Tasks are the blocks of windows, handed out one by one, a few ahead of what is in work.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from tilewise import hosting
from tilewise.cluster import Layout
from tilewise.lanes import (
    GOES_ON,
    IS_OVER,
    TURNS_AWAY,
    Lane,
    Process,
    carried,
    do,
    is_over,
    not_started,
    set_up,
)
from tilewise.opened import forget
from tilewise.workers import (
    WIND_DOWN,
    WORKER_ENVIRONMENT,
    Key,
    OnResult,
    Window,
    WorkerDied,
    Workers,
    deaf_to_sigint,
    environment,
    hidden_main,
    lost,
)

#: Seconds between two questions whether to go on while nothing finishes.
TICK = 0.25


class PoolWorkers(Workers):
    """A pool of this machine, by its lanes, and the number by which those at work in it are told to stop."""

    def __init__(self, lanes: Sequence[Lane], word: ctypes.c_int) -> None:
        self._lanes = lanes
        self._word = word

    def call(self, function: Callable[..., Any], *args: Any) -> Any:  # noqa: D102 - as the interface says
        lane = self._lanes[0]
        future = lane.submit(None, carried, function, *args)
        try:
            return future.result()
        except BrokenExecutor as error:
            raise lost(error) from error
        finally:
            if future.done():
                del lane.handed[future]

    def stream(  # noqa: D102
        self, windows: Iterable[Window], on_result: OnResult, go_on: Callable[[], bool]
    ) -> None:
        self._word.value = GOES_ON
        try:
            _Stream(self._lanes, self._word, windows, on_result, go_on).run()
        except BaseException:
            self._word.value = max(self._word.value, IS_OVER)
            raise

    def close(self) -> None:
        """End the pool; what is still in work after an exception has some time to end by itself."""
        self._word.value = IS_OVER
        try:
            wait([future for lane in self._lanes for future in lane.handed], timeout=WIND_DOWN)
        finally:
            for lane in self._lanes:
                if not all(future.done() for future in lane.handed):
                    lane.kill()
            if self._lanes:  # a process takes tenths of a second to end: all at once
                with ThreadPoolExecutor(len(self._lanes)) as closers:
                    list(closers.map(Lane.close, self._lanes))


class _Stream:
    """Tasks on their way through the lanes of a pool."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        word: ctypes.c_int,
        windows: Iterable[Window],
        on_result: OnResult,
        go_on: Callable[[], bool],
    ) -> None:
        self._lanes = lanes
        self._word = word
        self._items = chain.from_iterable(window.tasks() for window in windows)
        self._on_result = on_result
        self._go_on = go_on
        self._done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._lane_of: dict[Future[Any], Lane] = {}
        self._suspects: list[Key] = []
        self._dead: list[str] = []
        self._deadline = float("inf")

    def run(self) -> None:
        """Hand out and receive until nothing is left, or nothing more may begin."""
        self._fill()
        while self._lane_of:
            self._receive()
            self._fill()
        if self._suspects:
            raise WorkerDied(self._suspects, lost(", ".join(self._dead)))

    def _fill(self) -> None:
        while self._may_go_on():
            lane = max(self._lanes, key=lambda lane: lane.room)
            item = next(self._items, None) if lane.room > 0 else None
            if item is None:
                return
            future = lane.submit(item, lane.run, item[1])
            self._lane_of[future] = lane
            future.add_done_callback(self._done.put)

    def _may_go_on(self) -> bool:
        if self._word.value != IS_OVER and not self._go_on():
            self._word.value = IS_OVER
            self._deadline = time.monotonic() + WIND_DOWN
        return self._word.value == GOES_ON

    def _receive(self) -> None:
        try:
            future = self._done.get(timeout=TICK)
        except queue.Empty:
            if time.monotonic() > self._deadline:
                for late in set(self._lane_of.values()):
                    late.kill()
            return
        lane = self._lane_of.pop(future, None)
        if lane is None:  # it went with its lane
            return
        if isinstance(future.exception(), BrokenExecutor):
            self._bury(lane)
            return
        item = lane.handed.pop(future)
        value = future.result()
        if item is not None and value is not None:
            self._on_result(item[0], value[0])

    def _bury(self, lane: Lane) -> None:
        """Of what a lane had when it broke, the first was in work: results come back in their order."""
        items = [item for item in lane.handed.values() if item is not None]
        self._lane_of = {future: other for future, other in self._lane_of.items() if other is not lane}
        lane.handed.clear()
        who = lane.died()
        if self._word.value == IS_OVER:
            return
        if not who:
            self._items = chain(items, self._items)
            return
        self._word.value = TURNS_AWAY
        self._suspects.append(items[0][0])
        self._dead.append(who)


@contextmanager
def open_threads(layout: Layout, run: str) -> Iterator[Workers]:
    """Threads of this process, whose settings are restored at the end."""
    word = ctypes.c_int(GOES_ON)
    pool = ThreadPoolExecutor(layout.slots, thread_name_prefix="tilewise")
    workers = PoolWorkers([Lane(pool, layout.slots, partial(do, word))], word)
    with hosting.hosted(run, slots=layout.slots, over=partial(is_over, word)):
        try:
            yield workers
        finally:
            workers.close()
            forget(run)  # nobody is at work any more with what is open for it


@contextmanager
def open_processes(layout: Layout, run: str) -> Iterator[Workers]:
    """Spawned processes, closed at the end."""
    context = multiprocessing.get_context("spawn")
    word = context.RawValue(ctypes.c_int, GOES_ON)

    def starter(number: int) -> Callable[[], Executor]:
        arguments = (word, number, layout.device, run)
        return lambda: ProcessPoolExecutor(1, mp_context=context, initializer=set_up, initargs=arguments)

    lanes: list[Process] = []
    workers = PoolWorkers(lanes, word)
    try:
        with hidden_main(), deaf_to_sigint(), environment(WORKER_ENVIRONMENT):
            lanes.extend(Process(starter(number)) for number in range(layout.processes))
            for lane in lanes:
                _started(lane)
        yield workers
    finally:
        workers.close()


def _started(lane: Process) -> None:
    try:
        lane.started.result()
    except BrokenExecutor as error:
        raise not_started(error) from error
