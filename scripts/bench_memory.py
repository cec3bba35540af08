"""Measured against predicted peak memory of every process, out of core.

Grids of 8 and 32 times the budget, chunked and sharded output, tiles whose working set is at least the baseline.

    python scripts/bench_memory.py [--kind processes] [--factors 8 32]
"""

from __future__ import annotations

import argparse
from typing import Any

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="processes")
    parser.add_argument("--factors", type=int, nargs="+", default=[8, 32])
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
    print(f"kind {options.kind}, budget {megabytes(BUDGET)} a process, Lstsq 50 -> 20 with residual_norm")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
