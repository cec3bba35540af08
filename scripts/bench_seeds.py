"""Seed problems, each against the form in which it was published: time, error and memory, on one thread.

Problem 1: the distance of every point from every primitive under the primitive's scale and offset. points (2, 8000, 3),
primitives (2, 4000, 7), float32 and standard normal; output (2, 8000, 4000), 256 MB. The published form broadcasts
to an array with the extra axis.

Problem 2 is in bench_seeds_lstsq.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import bench_seeds_lstsq
from _bench import MIB, alternated, peak_in_child, peak_rise, ratios
from tilewise.fields import FieldSpec
from tilewise.kernels.affine_norm import AffineNorm
from tilewise.kernels.declaration import checked_signature
from tilewise.kernels.norm import Norm
from tilewise.linalg.layout import one_thread
from tilewise.session import compute_tile

Array = np.ndarray[Any, Any]

BATCH, POINTS, PRIMITIVES = 2, 8000, 4000
KERNEL = AffineNorm(dim="xyz", parameter_dim="parameter")
#: Points and primitives that the Python loop is given; its time is multiplied up, and the report says so.
LOOP_POINTS, LOOP_PRIMITIVES = 40, 500
#: Points at a time when a result is compared in float64.
CHECKED = 250


def inputs() -> tuple[Array, Array]:
    """Points and primitives, the same in every process."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((BATCH, POINTS, 3), dtype=np.float32)
    return points, rng.standard_normal((BATCH, PRIMITIVES, 7), dtype=np.float32)


def touched_output() -> Array:
    """An output whose pages are all there."""
    return np.full((BATCH, POINTS, PRIMITIVES), 1, np.float32)


def call_tile(points: Array, primitives: Array, norm: Array) -> None:
    """One tile through the kernel's contract: everything that a call costs but reading and writing."""
    specs = {
        "points": FieldSpec("points", ("scan", "point", "xyz"), points.shape, str(points.dtype)),
        "primitives": FieldSpec("primitives", ("scan", "box", "parameter"), primitives.shape, str(primitives.dtype)),
    }
    signature = checked_signature(KERNEL, specs)
    boxes = {"points": points, "primitives": primitives}
    compute_tile(KERNEL, signature, KERNEL.prepare({}), boxes, {"norm": norm}, panel=KERNEL.panel(signature))


def broadcast(points: Array, primitives: Array) -> torch.Tensor:
    """The published form: an array with the extra axis, then its norm."""
    p, q = torch.from_numpy(points), torch.from_numpy(primitives)
    return torch.linalg.vector_norm(p[:, :, None, :] * q[:, None, :, 0:3] + q[:, None, :, 3:6], dim=-1)


def python_loop(points: Array, primitives: Array) -> list[float]:
    """The same as three loops over batch, point and primitive."""
    return [
        sum((float(p) * float(s) + float(o)) ** 2 for p, s, o in zip(point, box[:3], box[3:6], strict=True)) ** 0.5
        for scan, boxes in zip(points, primitives, strict=True)
        for point in scan
        for box in boxes
    ]


def relative_error(points: Array, primitives: Array, norm: Array) -> float:
    """Largest relative error of any pixel, against float64, in which the products of float32 are exact."""
    p, q = points.astype(np.float64), primitives.astype(np.float64)
    worst = 0.0
    for start in range(0, POINTS, CHECKED):
        part = slice(start, start + CHECKED)
        squares = sum((p[:, part, None, k] * q[:, None, :, k] + q[:, None, :, 3 + k]) ** 2 for k in range(3))
        exact = np.sqrt(squares)
        worst = max(worst, float((np.abs(norm[:, part] - exact) / exact).max()))
    return worst


def loop_seconds(points: Array, primitives: Array) -> float:
    """Seconds of the Python loop over everything, from a slice of it."""
    begin = time.perf_counter()
    python_loop(points[:1, :LOOP_POINTS], primitives[:1, :LOOP_PRIMITIVES])
    share = LOOP_POINTS * LOOP_PRIMITIVES / (BATCH * POINTS * PRIMITIVES)
    return (time.perf_counter() - begin) / share


def peak(name: str) -> int:
    """Rise of the resident set during one call, in bytes; the output is there beforehand in the case of "tilewise"."""
    points, primitives = inputs()
    norm = touched_output()
    small = (points[:, :70].copy(), primitives[:, :70].copy())
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "tilewise": (
            lambda: call_tile(*small, np.empty((BATCH, 70, 70), np.float32)),
            lambda: call_tile(points, primitives, norm),
        ),
        "broadcast": (lambda: broadcast(*small), lambda: broadcast(points, primitives)),
    }
    warm, call = calls[name]
    with one_thread():
        warm()
        return peak_rise(call)


def leading_norm(rounds: int) -> dict[str, Any]:
    """Norm along a leading axis of (3, 10 000 000) float32, against a pass that reads and squares the same bytes."""
    x = np.random.default_rng(2).standard_normal((3, 10_000_000), dtype=np.float32)
    kernel = Norm(dim="component")
    signature = checked_signature(kernel, {"x": FieldSpec("x", ("component", "cell"), x.shape, "float32")})
    norm, squares, tensor = np.ones(x.shape[1], np.float32), torch.ones(x.shape), torch.from_numpy(x)
    with one_thread():
        return alternated(
            {
                "norm": lambda: compute_tile(
                    kernel, signature, None, {"x": x}, {"norm": norm}, panel=kernel.panel(signature)
                ),
                "square": lambda: tensor * tensor,
                "square, output kept": lambda: torch.mul(tensor, tensor, out=squares),
                "sum of squares": lambda: tensor.square().sum(),
            },
            rounds,
        )


def report(rounds: int) -> dict[str, Any]:
    """Measure problem 1 in alternated rounds, print, and return what was measured."""
    points, primitives = inputs()
    norm = touched_output()
    with one_thread():
        times = alternated(
            {
                "tilewise": lambda: call_tile(points, primitives, norm),
                "tilewise, fresh output": lambda: call_tile(points, primitives, np.empty_like(norm)),
                "broadcast": lambda: broadcast(points, primitives),
            },
            rounds,
        )
    found = {
        "seconds": times,
        "ratio": ratios(times["broadcast"], times["tilewise"]),
        "loop_seconds": loop_seconds(points, primitives),
        "relative_error": relative_error(points, primitives, norm),
        "output_bytes": norm.nbytes,
        "peaks": {name: peak_in_child(__file__, name) for name in ("tilewise", "broadcast")},
        "leading_norm": leading_norm(rounds),
    }
    _print(found)
    return found


def _print(found: dict[str, Any]) -> None:
    times, output = found["seconds"], found["output_bytes"]
    ours = statistics.median(times["tilewise"])
    print(f"problem 1: points ({BATCH}, {POINTS}, 3), primitives ({BATCH}, {PRIMITIVES}, 7), float32, one thread")
    _print_times(times, ours)
    loop = found["loop_seconds"]
    print(
        f"  {'Python loop':24s} {loop:9.1f} s  multiplied up from {LOOP_POINTS} points by {LOOP_PRIMITIVES} primitives"
    )
    print("Norm along a leading axis of (3, 10 000 000) float32:")
    _print_times(found["leading_norm"], statistics.median(found["leading_norm"]["norm"]))
    median, low, high = found["ratio"]
    peaks = found["peaks"]
    print(
        f"ratio: broadcast takes {median:.1f} [{low:.1f}, {high:.1f}] times as long, the Python loop {loop / ours:.0f}"
    )
    print(f"error: at most {found['relative_error']:.2e} of any pixel, against float64")
    print(
        f"memory: the call rises {peaks['tilewise'] / MIB:.1f} MiB above its {output / MIB:.0f} MiB output"
        f" ({100 * peaks['tilewise'] / output:.1f} %); broadcast {peaks['broadcast'] / MIB:.0f} MiB, output included"
    )


def _print_times(times: dict[str, list[float]], ours: float) -> None:
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"  {name:24s} {median:9.4f} s  [{min(runs):.4f}, {max(runs):.4f}]  {median / ours:8.2f} x tilewise")


def main() -> None:
    """Print the measurements of both problems, or the peak of one call in bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="alternated rounds (default 7)")
    parser.add_argument("--problem", type=int, choices=(1, 2), help="one problem only")
    parser.add_argument("--peak", choices=("tilewise", "broadcast"), help="print one peak of problem 1, in bytes")
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak(options.peak)))
        return
    if options.problem != 2:
        report(options.rounds)
    if options.problem != 1:
        bench_seeds_lstsq.report(options.rounds)


if __name__ == "__main__":
    main()
