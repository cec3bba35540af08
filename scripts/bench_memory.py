"""Measured against predicted peak memory of every process, out of core.

Grids of 8 and 32 times the budget, chunked and sharded output, tiles whose working set is at least the baseline; then
the same small job many times over, whose chunks are just small enough for the heaps of the allocator.

    python scripts/bench_memory.py [--kind processes] [--factors 8 32] [--runs 16]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import zarr

import _stream
import tilewise
from tilewise.memory import megabytes

BUDGET = 1 << 30
#: Shards are whole numbers of chunks and tiles whole numbers of shards.
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunked": {"chunks": {"y": 250, "x": 250}},
    "sharded": {"chunks": {"y": 125, "x": 125}, "shards": {"y": 250, "x": 500}},
}
TILE = {"y": 750, "x": 2000}


def run(rows: int, layout: str, kind: Any) -> tilewise.Report:
    job = tilewise.Job(
        kernel=tilewise.Lstsq(dim="band", diagnostics=("residual_norm",)),
        inputs={"A": _stream.library(), "b": _stream.cube(rows)},
        output=tilewise.Output(store=str(_stream.folder() / "memory.zarr"), **LAYOUTS[layout]),
        cluster=tilewise.Cluster(kind=kind, workers=2),
        memory_limit=BUDGET,
        tile=TILE,
    )
    return tilewise.run(job, overwrite=True)


def large_chunks() -> str:
    """A cube x (c, y, x) in chunks of 28 MiB of one band each: allocations of 32 MiB would be mapped."""
    path = _stream.folder() / "large-chunks.zarr"
    if not (path / "done").exists():
        group = zarr.create_group(path, overwrite=True)
        shape, chunks = (6, 4, 8 << 20), (1, 1, 7 << 20)
        array = group.create_array("x", shape=shape, chunks=chunks, dtype="float32", dimension_names=("c", "y", "x"))
        rng = np.random.default_rng(0)
        for row in range(shape[1]):
            array[:, row] = rng.random((shape[0], shape[2]), dtype="float32")
        (path / "done").touch()
    return str(path)


def repeated(kind: Any, runs: int) -> str:
    """How near the peaks of many runs come to what was planned: which arenas fill is a matter of chance."""
    room = []
    for number in range(runs):
        job = tilewise.Job(
            kernel=tilewise.Norm(dim="c", ord=2 + number % 2),
            inputs={"x": large_chunks()},
            output=str(_stream.folder() / "memory.zarr"),
            cluster=tilewise.Cluster(kind=kind, workers=2),
        )
        report = tilewise.run(job, overwrite=True)
        room += [report.plan.memory.peak - peak for peak in report.peaks.values()]
    over = f"{sum(r < 0 for r in room)} of {len(room)} peaks above what was planned"
    return f"chunks of 28 MiB, {runs} runs: {over}, the least room left {min(room) / 2**20:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="processes")
    parser.add_argument("--factors", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--runs", type=int, default=16)
    options = parser.parse_args()
    lines = []
    for layout in LAYOUTS:
        peaks = {}
        for factor in options.factors:
            rows = -(-factor * BUDGET // (_stream.BANDS * 2000 * 4 * TILE["y"])) * TILE["y"]
            report = run(rows, layout, options.kind)
            memory = report.plan.memory
            peaks[factor] = report.peak
            working = memory.per_slot * memory.slots + memory.shared
            ratio = (memory.peak - memory.baseline) / (report.peak - memory.baseline)
            lines.append(
                f"{layout}, {factor} x budget: baseline {megabytes(memory.baseline)}, "
                f"working set {megabytes(working)}, "
                f"predicted {megabytes(memory.peak)}, measured {megabytes(report.peak)} "
                f"(each: {', '.join(megabytes(p) for p in report.peaks.values())}), above baseline {ratio:.2f} x, "
                f"{report.seconds:.0f} s"
            )
            _stream.log(lines[-1])
        first, last = peaks[options.factors[0]], peaks[options.factors[-1]]
        lines.append(f"{layout}: the peak moves by {abs(last - first) / first:.1%} with the grid")
    lines.append(repeated(options.kind, options.runs))
    print(f"kind {options.kind}, budget {megabytes(BUDGET)} a process, Lstsq 50 -> 20 with residual_norm")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
