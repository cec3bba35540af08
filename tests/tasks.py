"""Small functions for workers: in a module of their own, since workers import them by name."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import zarr

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


def die(first: int, *, block_id: tuple[int, ...]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
