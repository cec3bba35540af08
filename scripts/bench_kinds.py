"""Time of one job by every local kind, alternated: what the default of `cluster.kind` is chosen from.

python scripts/bench_kinds.py [--rows 2000] [--runs 5]
"""

from __future__ import annotations

import argparse
from typing import Any

import _stream
import tilewise

KINDS = ("threads", "processes", "local")


def run(kernel: tilewise.Kernel, inputs: dict[str, Any], kind: Any) -> tilewise.Report:
    job = tilewise.Job(
        kernel=kernel,
        inputs=inputs,
        output=str(_stream.folder() / "kinds.zarr"),
        cluster=tilewise.Cluster(kind=kind),
        memory_limit="4 GiB",
    )
    return tilewise.run(job, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="rows of 2000 pixels and 50 bands: 5000 are 2 GB")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    source, library = _stream.cube(options.rows), _stream.library()
    jobs: dict[str, tuple[tilewise.Kernel, dict[str, Any]]] = {
        "Lstsq 50 -> 20": (tilewise.Lstsq(dim="band"), {"A": library, "b": source}),
        "Norm of 50": (tilewise.Norm(dim="band"), {"x": tilewise.Input(store=source, variable="b")}),
    }
    lines = []
    for name, (kernel, inputs) in jobs.items():
        reports: dict[str, list[tilewise.Report]] = {kind: [] for kind in KINDS}
        for number in range(options.runs):
            for kind in KINDS:
                reports[kind].append(run(kernel, inputs, kind))
                _stream.log(f"{name}, run {number}, {kind}: {reports[kind][-1].seconds:.2f} s")
        for kind, found in reports.items():
            seconds = _stream.spread([r.seconds for r in found])
            total = _stream.spread([r.seconds + r.startup for r in found])
            lines.append(f"{name}, {kind}: {seconds} s of tiles, {total} s in all")
    gigabytes = _stream.BANDS * options.rows * 2000 * 4 / 1e9
    print(f"{gigabytes:.1f} GB in (zstd), median of {options.runs} alternated runs (range)")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
