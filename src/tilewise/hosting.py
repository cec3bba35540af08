"""A process as the host of runs: its settings while they last, and how many of their tiles are in work.

Settings are made when the first run arrives and restored when the last one has ended. A run is counted once for each
worker of the process, since a process may hold several. What runs are here is process-wide, as sessions are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tilewise import machine
from tilewise.errors import ClusterError
from tilewise.memory import CONCURRENCY


@dataclass
class _Guest:
    """A run in this process: the workers that brought it, and the blocks it may have and has in work."""

    workers: int = 0
    slots: int = 0
    working: int = 0
    number: int = 0
    over: Callable[[], bool] = bool


_GUESTS: dict[str, _Guest] = {}
_CHANGED = threading.Condition()
_RESTORED = ExitStack()
_KNOWN = threading.local()
#: Torch's threads as they were when the first run arrived; 0 where there is none.
_USUAL = [0]


def arrive(run: str, *, slots: int, number: int = 0, over: Callable[[], bool] = bool) -> None:
    """A worker of this process takes part in a run, with up to `slots` tiles at a time, on CUDA device `number`.

    `over` tells whether the run has been told to stop meanwhile.
    """
    import torch  # noqa: F401 - what is not loaded cannot be set

    with _CHANGED:
        if not _GUESTS:
            _make_settings()
        guest = _GUESTS.setdefault(run, _Guest())
        guest.workers += 1
        guest.slots += slots
        guest.number = number
        guest.over = over
        _CHANGED.notify_all()


def _make_settings() -> None:
    """One thread makes the settings and restores them: OpenBLAS is left to the thread that has set it last."""
    keeper = ThreadPoolExecutor(1, thread_name_prefix="tilewise-settings")
    _RESTORED.callback(keeper.shutdown)
    inner = ExitStack()
    _RESTORED.callback(lambda: keeper.submit(inner.close).result())
    keeper.submit(_enter_settings, inner).result()


def _enter_settings(stack: ExitStack) -> None:
    import torch
    import zarr
    from threadpoolctl import threadpool_limits

    # A tile sets torch to one thread and back. A thread that first calls torch meanwhile would take the one for what
    # is usual, and keep it: so the usual number is asked of this new thread, and set in it at the end.
    _USUAL[0] = torch.get_num_threads()
    stack.callback(_restore_torch_threads)
    # OpenMP's threads belong to each thread, and are set within the task.
    stack.enter_context(threadpool_limits(1, user_api="blas"))
    # zarr makes its pool of threads once and keeps it: only what it asks for anew each time is set.
    stack.enter_context(zarr.config.set({"async.concurrency": CONCURRENCY}))


def _restore_torch_threads() -> None:
    import torch

    usual, _USUAL[0] = _USUAL[0], 0
    torch.set_num_threads(usual)


def leave(run: str, *, slots: int) -> bool:
    """A worker of this process takes no more part in a run; whether it was the last, so that no block begins."""
    with _CHANGED:
        guest = _GUESTS.get(run)
        if guest is None:
            return False
        guest.workers -= 1
        guest.slots -= slots
        _CHANGED.notify_all()
        return guest.workers == 0


def working(run: str) -> int:
    """Blocks of a run that are in work in this process."""
    with _CHANGED:
        return _GUESTS[run].working if run in _GUESTS else 0


def end(run: str) -> None:
    """Forget a run that every worker has left; with the last one, this process gets its settings back."""
    with _CHANGED:
        _GUESTS.pop(run, None)
        _CHANGED.notify_all()
        if not _GUESTS:
            _RESTORED.close()


def is_host(*, but: str = "") -> bool:
    """Whether any run, but for one, has, or may have, tiles in work in this process."""
    with _CHANGED:
        return any(guest.slots or guest.working for run, guest in _GUESTS.items() if run != but)


def is_over(run: str) -> bool:
    """Whether no worker of this process takes part in a run any more, so that its blocks had better stop."""
    with _CHANGED:
        return run not in _GUESTS or _GUESTS[run].workers == 0 or _GUESTS[run].over()


def device_of(run: str, device: str) -> str:
    """The device of a run in this process, as torch names it."""
    if device == "cpu":
        return device
    with _CHANGED:
        return f"{device}:{_GUESTS[run].number if run in _GUESTS else 0}"


@contextmanager
def place(run: str) -> Iterator[None]:
    """A place for one block of a run, once there is one.

    Raises
    ------
    ClusterError
        The run is not, or no longer, here: a block that comes too late must not open the run's data again.
    """
    with _CHANGED:
        while _is_full(run):
            _CHANGED.wait()
        guest = _GUESTS.get(run)
        if guest is None or guest.workers == 0:
            raise ClusterError(
                "a worker is not set up for the run", got=machine.process_name(), do="look for errors in its log"
            )
        guest.working += 1
    try:
        know_thread()
        yield
    finally:
        with _CHANGED:
            guest.working -= 1
            _CHANGED.notify_all()


def know_thread() -> None:
    """Give this thread the usual number of torch's threads, if it may be about to call torch for the first time."""
    import torch

    if _USUAL[0] and not hasattr(_KNOWN, "torch"):
        torch.set_num_threads(_USUAL[0])
    _KNOWN.torch = True


def _is_full(run: str) -> bool:
    guest = _GUESTS.get(run)
    return guest is not None and guest.workers > 0 and guest.working >= guest.slots


@contextmanager
def hosted(run: str, *, slots: int, over: Callable[[], bool] = bool) -> Iterator[None]:
    """This process takes part in a run meanwhile; `over` tells whether it has been told to stop."""
    arrive(run, slots=slots, over=over)
    try:
        yield
    finally:
        leave(run, slots=slots)
        end(run)


def settle() -> None:
    """Set up a process that is ours for good: allocator, zarr's threads, one thread for torch."""
    machine.set_allocator()
    import torch
    import zarr

    zarr.config.set({"async.concurrency": CONCURRENCY, "threading.max_workers": CONCURRENCY})
    torch.set_num_threads(1)
