"""Seed problem 2: the minimum-norm least-squares solution of 250 000 pixels with one wide A, on one thread.

b (50, 500, 500) and A (50, 100), float32 and standard normal. The rank is 50 of 100: A^T A is singular, so the
published form, which solves the normal equations by broadcasting, has no answer to give. Its time is compared all
the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tilewise.fields import FieldSpec, Status
from tilewise.kernels.declaration import checked_signature
from tilewise.kernels.lstsq import Lstsq
from tilewise.linalg.layout import arrange, one_thread
from tilewise.session import compute_tile

Array = np.ndarray[Any, Any]

EQUATIONS, UNKNOWNS, ROWS, COLUMNS = 50, 100, 500, 500
#: Rows of pixels that the loop is given; its time is multiplied up, and the report says so.
LOOP_ROWS = 1


def call_tile(kernel: Lstsq, A: Array, b: Array, outputs: dict[str, Array]) -> None:
    """Factor A and solve every pixel, through the kernel's contract: everything that one call costs."""
    fields = {"A": (("date", "term"), A), "b": (("date", "y", "x"), b)}
    specs = {name: FieldSpec(name, dims, x.shape, str(x.dtype)) for name, (dims, x) in fields.items()}
    signature = checked_signature(kernel, specs)
    shared = {"A": arrange(torch.from_numpy(A), specs["A"].dims, signature.core["A"], ())}
    with torch.inference_mode(), one_thread():
        state = kernel.prepare(shared)
    compute_tile(kernel, signature, state, {"b": b}, outputs, panel=kernel.panel(signature))


def broadcast_solve(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The published form: normal equations, solved pixel by pixel by broadcasting A^T A."""
    normal = A.T @ A
    right = (A.T @ b.reshape(len(b), -1)).reshape(-1, *b.shape[1:]).movedim(0, -1)
    return torch.linalg.solve(normal, right.unsqueeze(-1))


def many_right_hand_sides(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same normal equations, factored once for all pixels."""
    return torch.linalg.solve(A.T @ A, A.T @ b.reshape(len(b), -1))


def pixel_loop(A: Array, b: Array) -> list[Array]:
    """numpy's least squares, one pixel after the other."""
    return [np.linalg.lstsq(A, pixel, rcond=None)[0] for pixel in b.reshape(len(b), -1).T]


def errors(A: Array, b: Array, x: Array) -> tuple[float, float]:
    """Worst excess of the residual over numpy's, in units of ||b||, and worst excess of ||x||, relative."""
    A, b = A.astype(np.float64), b.reshape(len(b), -1).astype(np.float64)
    x = x.reshape(len(x), -1).astype(np.float64)
    exact = np.linalg.lstsq(A, b, rcond=None)[0]
    size = np.linalg.norm(b, axis=0)
    excess = np.linalg.norm(b - A @ x, axis=0) - np.linalg.norm(b - A @ exact, axis=0)
    length = np.linalg.norm(x, axis=0) / np.linalg.norm(exact, axis=0) - 1
    return float((excess / size).max()), float(length.max())


def report(rounds: int = 5) -> dict[str, Any]:
    """Measure in alternated rounds, print, and return what was measured (seconds for the whole of b)."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((EQUATIONS, UNKNOWNS), dtype=np.float32)
    b = rng.standard_normal((EQUATIONS, ROWS, COLUMNS), dtype=np.float32)
    kernel = Lstsq(dim="date")

    def fresh() -> dict[str, Array]:
        return {"solution": np.empty((UNKNOWNS, ROWS, COLUMNS), np.float32), "status": np.empty(b.shape[1:], np.uint8)}

    outputs = {name: np.full_like(array, 1) for name, array in fresh().items()}
    tA, tb = torch.from_numpy(A), torch.from_numpy(b)
    calls: dict[str, tuple[float, Callable[[], Any]]] = {
        "tilewise": (1, lambda: call_tile(kernel, A, b, outputs)),
        "tilewise, fresh output": (1, lambda: call_tile(kernel, A, b, fresh())),
        "many right-hand sides": (1, lambda: many_right_hand_sides(tA, tb)),
        "broadcast": (1, lambda: broadcast_solve(tA, tb)),
        "pixel loop": (ROWS / LOOP_ROWS, lambda: pixel_loop(A, b[:, :LOOP_ROWS])),
    }
    with one_thread():
        times = _alternated(calls, rounds)
    call_tile(kernel, A, b, outputs)
    residual, length = errors(A, b, outputs["solution"])
    flagged = bool((outputs["status"] == Status.UNDERDETERMINED).all())
    _print(times, residual, length, flagged)
    return {"seconds": times, "excess_residual": residual, "excess_norm": length, "flagged": flagged}


def _alternated(calls: dict[str, tuple[float, Callable[[], Any]]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 1):
        for name, (factor, call) in calls.items():
            begin = time.perf_counter()
            call()
            if round_number:  # the first round warms up
                times[name].append(factor * (time.perf_counter() - begin))
    return times


def _print(times: dict[str, list[float]], residual: float, length: float, flagged: bool) -> None:
    ours = statistics.median(times["tilewise"])
    print(f"problem 2: b ({EQUATIONS}, {ROWS}, {COLUMNS}), A ({EQUATIONS}, {UNKNOWNS}), float32, one thread")
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"  {name:24s} {median:9.4f} s  [{min(runs):.4f}, {max(runs):.4f}]  {median / ours:8.1f} x tilewise")
    print(f"  on all {ROWS} rows, but the loop on {LOOP_ROWS}, multiplied up; every call factors; outputs are touched")
    print("  before, but where fresh: the difference is the cost of first touch")
    print("  A^T A is singular: neither form of the normal equations has the answer")
    print(f"  ||b - A x|| exceeds numpy's float64 by at most {residual:.2e} ||b||, ||x|| by {length:.2e}")
    print(f"  every pixel flagged underdetermined: {flagged}")


def main() -> None:
    """Print the measurement."""
    report()


if __name__ == "__main__":
    main()
