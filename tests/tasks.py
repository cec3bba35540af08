"""Small functions for workers: in a module of their own, since workers import them by name."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import tilewise
from tilewise.errors import ParameterError


def square(first: int, *, block_id: tuple[int, ...]) -> np.ndarray[Any, Any]:
    result = np.empty(1, dtype=object)
    result[0] = (first + block_id[0]) ** 2
    return result


def refuse() -> None:
    raise ParameterError("no", got=1)


def facts() -> tuple[int, int, str]:
    main = sys.modules.get("__mp_main__")
    return os.getpid(), zarr.config.get("async.concurrency"), getattr(main, "__file__", "")


def dask_configuration() -> dict[str, Any]:
    """What a cluster may be told by it; a scheduler itself adds pages to what it shows."""
    import dask.config
    import distributed  # noqa: F401 - which brings its defaults

    found = copy.deepcopy(dask.config.get("distributed"))
    del found["scheduler"]["http"]
    return found


def die(first: int, *, block_id: tuple[int, ...]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def settings() -> dict[str, Any]:
    """What a run may change in a process, as it is now: all of this has to be as it was when the run has ended."""
    import concurrent.futures

    import torch
    from threadpoolctl import threadpool_info

    from tilewise import hosting, opened

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        usual = pool.submit(torch.get_num_threads).result()
    return {
        "zarr": zarr.config.get("async.concurrency"),
        "zarr threads": zarr.config.get("threading.max_workers"),
        "blas": {i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"},
        "torch": (torch.get_num_threads(), usual),
        "sessions": list(opened._OPEN),
        "guests": list(hosting._GUESTS),
        "environment": dict(os.environ),
    }


def lives_with_its_parent() -> None:
    """In a process of its own: says which one it is, and waits without the help of the system."""
    from tilewise.lanes import end_with_parent

    print(os.getpid(), flush=True)
    end_with_parent()


def torch_threads() -> int:
    """As a task of somebody else finds them, in a thread that has done tiles before."""
    import torch

    return torch.get_num_threads()


def guests() -> list[str]:
    """Runs that are in this process."""
    from tilewise import hosting

    return list(hosting._GUESTS)


def of_runs(dask_scheduler: Any) -> list[str]:
    """Tasks of runs that the scheduler still knows."""
    return [str(key) for key in dask_scheduler.tasks if "tilewise-" in str(key)]


def run(job: tilewise.Job) -> None:
    """In a process that is killed meanwhile."""
    tilewise.run(job)


def number(*, block_id: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The number of the block, after a moment."""
    time.sleep(0.02)
    result = np.empty(1, dtype=object)
    result[0] = block_id[0]
    return result


def die_in_third(*, block_id: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """As `number`, but one of them kills its process."""
    if block_id[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number(block_id=block_id)


def long(began: str, seconds: float, *, block_id: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """As `number`, but it says in a file that it has begun, and takes its time."""
    Path(began).touch()
    time.sleep(seconds)
    return number(block_id=block_id)
