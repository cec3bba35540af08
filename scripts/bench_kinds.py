"""Time of one job by every local kind, alternated: what the default of `cluster.kind` is chosen from.

With `--widths`, by tiles of 250 rows and so many columns too: what the working set is chosen from that tiles grow to.

    python scripts/bench_kinds.py [--rows 2000] [--runs 5] [--codecs zstd none] [--kinds processes] [--widths 250 2000]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import _stream
import tilewise

KINDS = ("threads", "processes", "local")


def run(kernel: tilewise.Kernel, inputs: dict[str, Any], codec: str, kind: Any, width: int) -> tilewise.Report:
    job = tilewise.Job(
        kernel=kernel,
        inputs=inputs,
        output=tilewise.Output(store=str(_stream.folder() / "kinds.zarr"), codec=codec),
        tile={"y": 250, "x": width} if width else "auto",
        cluster=tilewise.Cluster(kind=kind),
        memory_limit="4 GiB",
    )
    return tilewise.run(job, overwrite=True)


def measured(codec: str, options: argparse.Namespace) -> list[str]:
    """A line for each job, kind and width."""
    source, library = _stream.cube(options.rows, codec=codec), _stream.library()
    jobs: dict[str, tuple[tilewise.Kernel, dict[str, Any]]] = {
        "Lstsq 50 -> 20": (tilewise.Lstsq(dim="band"), {"A": library, "b": source}),
        "Norm of 50": (tilewise.Norm(dim="band"), {"x": tilewise.Input(store=source, variable="b")}),
    }
    ways = list(itertools.product(options.kinds, options.widths))
    lines = []
    for name, (kernel, inputs) in jobs.items():
        reports: dict[tuple[str, int], list[tilewise.Report]] = {way: [] for way in ways}
        for number in range(options.runs):
            for way in ways:
                reports[way].append(run(kernel, inputs, codec, *way))
                _stream.log(f"{name}, {codec}, run {number}, {way}: {reports[way][-1].seconds:.2f} s")
        for (kind, _), found in reports.items():
            seconds = _stream.spread([r.seconds for r in found])
            total = _stream.spread([r.seconds + r.startup for r in found])
            tile = " x ".join(map(str, found[0].plan.grid.tile_shape))
            lines.append(f"{name}, {codec}, {kind}, tiles of {tile}: {seconds} s of tiles, {total} s in all")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="rows of 2000 pixels and 50 bands: 5000 are 2 GB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--codecs", nargs="+", choices=("zstd", "none"), default=["zstd", "none"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--widths", nargs="+", type=int, default=[0], help="columns of a tile; 0: as planned")
    options = parser.parse_args()
    lines = [line for codec in options.codecs for line in measured(codec, options)]
    gigabytes = _stream.BANDS * options.rows * 2000 * 4 / 1e9
    print(f"{gigabytes:.1f} GB in, median of {options.runs} alternated runs (range)")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
