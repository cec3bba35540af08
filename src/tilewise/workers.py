"""Workers that run windows of blocks: the interface, and how processes are started so that they leave others alone.

The pools of this machine are in `pools.py`, workers of dask.distributed in `dask_workers.py`. Workers that are started
here never import the user's script, so that a plain script without a `__main__` guard works.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from tilewise.errors import ClusterError

if TYPE_CHECKING:
    import dask.array as da

#: Of a block, as Dask names it: the name of its window, and its number therein.
Key = tuple[str, int]
OnResult = Callable[[Key, Any], None]
#: Seconds within which what is in work has to end when a run stops.
WIND_DOWN = 30.0


@dataclass(frozen=True)
class Window:
    """Blocks that are handed out together, under a name of their own.

    Attributes
    ----------
    name
        Dask takes two submissions of one name for the same.
    function
        Called with `block_id=(n,)` for block n; its result is an array of one element.
    count
        Number of blocks.

    >>> [key for key, task in Window("w", print, 2).tasks()]
    [('w', 0), ('w', 1)]
    """

    name: str
    function: Callable[..., Any]
    count: int

    def tasks(self) -> Iterator[tuple[Key, Callable[[], Any]]]:
        """Each block by its key and a call, for who hands them out by himself: Dask would cost its import."""
        return (((self.name, n), partial(self.function, block_id=(n,))) for n in range(self.count))

    def array(self) -> da.Array:
        """The same blocks as an array-less `map_blocks`, for a client of Dask."""
        import dask.array as da
        import numpy as np

        meta = np.empty((0,), dtype=object)
        return da.map_blocks(self.function, chunks=((1,) * self.count,), dtype=object, meta=meta, name=self.name)


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


class Workers(ABC):
    """Workers that run blocks."""

    def everywhere(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Results of one call on every worker that somebody else has started, by address."""
        return {}

    @abstractmethod
    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of one call on one worker."""

    @abstractmethod
    def stream(self, windows: Iterable[Window], on_result: OnResult, go_on: Callable[[], bool]) -> None:
        """Run windows in their order and hand over the result of every block as it finishes.

        `go_on` is asked before anything is submitted, and at least every second; once it says no, nothing more is
        submitted, and the call returns when what is in work has ended. Work that has not ended within `WIND_DOWN`
        seconds is given up where that can be done, which is everywhere but in threads of this process.

        Raises
        ------
        WorkerDied
            Some have; what can be done with the others is done, or has not been begun.
        ClusterError
            There are no workers any more.
        """


def lost(error: object) -> ClusterError:
    """What to say of a worker that died while it was at work."""
    return ClusterError(
        "a worker process died",
        got=error,
        do="look for the kernel's out-of-memory message in the system log; give workers more memory, or use fewer",
    )


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
    """Environment with these values; they, and the names in `also`, are afterwards what they were.

    Where several change a variable at a time, it is what it was once the last of them is done.
    """
    names = (*values, *also)
    with _CHANGING:
        for name in names:
            _CHANGED.setdefault(name, os.environ.get(name))
        _CHANGERS.update(names)
        os.environ.update(values)
    try:
        yield
    finally:
        with _CHANGING:
            _CHANGERS.subtract(names)
            for name in names:
                if not _CHANGERS[name]:
                    _restore(name, _CHANGED.pop(name))


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


#: How many change each variable of the environment now, and what it was: the environment is process-wide.
_CHANGERS: Counter[str] = Counter()
_CHANGED: dict[str, str | None] = {}
_CHANGING = threading.Lock()


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide the user's script from processes that are spawned meanwhile, by as many as do so at a time.

    A spawned process runs the main script again, and a script without a `__main__` guard would start its job anew
    in every worker. Workers need nothing of it: kernels that are defined there travel by value.
    """
    main = sys.modules["__main__"].__dict__
    with _HIDING:
        if not _HIDERS:
            _HIDDEN.update({name: main[name] for name in ("__file__", "__spec__") if name in main})
            main.pop("__file__", None)
            main["__spec__"] = None
        _HIDERS.append(None)
    try:
        yield
    finally:
        with _HIDING:
            _HIDERS.pop()
            if not _HIDERS:
                main.pop("__spec__", None)
                main.update(_HIDDEN)
                _HIDDEN.clear()


#: Those that hide the user's script now, and what they have taken from it: the script is process-wide.
_HIDERS: list[None] = []
_HIDDEN: dict[str, Any] = {}
_HIDING = threading.Lock()
