"""Time and memory of one job by the lazy door (open_zarr, kernel, to_zarr) and streamed, alternated.

Each run is a process of its own with as many threads as cores: Dask's threaded scheduler for the one, workers of the
kind "threads" for the other. Seconds are those of the whole job, graph or plan included, after a small one has loaded
what is imported late; the peak is that of the process' resident memory. Both read and write the same chunks, with zstd.

    python scripts/bench_lazy.py [--rows 2000] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask
import xarray as xr

import _bench
import _stream
import tilewise

DOORS = ("lazy", "streamed")
WARM_UP = 250
JOBS: dict[str, tilewise.Kernel] = {
    "Lstsq 50 -> 20": tilewise.Lstsq(dim="band"),
    "Norm of 50": tilewise.Norm(dim="band"),
}


def opened(rows: int) -> xr.DataArray:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Object at done is not recognized")  # the mark of a cube that is complete
        return xr.open_zarr(_stream.cube(rows), consolidated=False).b


def lazy_result(job: str, rows: int) -> xr.Dataset:
    """The outputs of a job as lazy arrays."""
    b = opened(rows)
    if job.startswith("Norm"):
        return JOBS[job](b).to_dataset()
    return b.pipe(JOBS[job], A=xr.open_zarr(_stream.library(), consolidated=False, chunks=None).A)


def lazy(job: str, rows: int) -> None:
    result = lazy_result(job, rows)
    with dask.config.set(scheduler="threads", num_workers=len(os.sched_getaffinity(0))):
        result.to_zarr(_stream.folder() / "lazy.zarr", mode="w", consolidated=False)


def streamed(job: str, rows: int) -> None:
    source = tilewise.Input(store=_stream.cube(rows), variable="b")
    inputs = {"x": source} if job.startswith("Norm") else {"A": tilewise.Input(store=_stream.library()), "b": source}
    todo = tilewise.Job(
        kernel=JOBS[job],
        inputs=inputs,
        output=str(_stream.folder() / "streamed.zarr"),
        cluster=tilewise.Cluster(kind="threads", workers=len(os.sched_getaffinity(0))),
        memory_limit="4 GiB",
    )
    tilewise.run(todo, overwrite=True)


def tasks_per_block(job: str, rows: int) -> float:
    """Tasks of the graph as it is run, reading included, for each block of the input."""
    result = lazy_result(job, rows)
    (found,) = dask.optimize(result)
    names = [type(node).__name__ for node in dict(found.__dask_graph__()).values()]
    blocks = opened(rows).data.npartitions
    return sum(name not in ("Alias", "DataNode") for name in names) / blocks


def one(door: str, job: str, rows: int) -> None:
    """One run in this process: seconds and bytes as JSON on standard output."""
    call: Callable[[str, int], None] = {"lazy": lazy, "streamed": streamed}[door]
    call(job, WARM_UP)
    begin = time.perf_counter()
    call(job, rows)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def child(door: str, job: str, rows: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--rows", str(rows), "--one", door, job]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="rows of 2000 pixels and 50 bands: 2000 are 0.8 GB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("DOOR", "JOB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one, options.rows)
        return
    for rows in (WARM_UP, options.rows):
        _stream.cube(rows)
    _stream.library()
    lines = []
    for job in JOBS:
        runs: dict[str, list[dict[str, Any]]] = {door: [] for door in DOORS}
        for number in range(options.runs):
            for door in DOORS:
                runs[door].append(child(door, job, options.rows))
                _stream.log(f"{job}, run {number}, {door}: {runs[door][-1]['seconds']:.2f} s")
        seconds = {door: [run["seconds"] for run in found] for door, found in runs.items()}
        peaks = {door: statistics.median(run["peak"] for run in found) / _bench.MIB for door, found in runs.items()}
        ratio, least, most = _bench.ratios(seconds["lazy"], seconds["streamed"])
        lines += [
            f"{job}: {tasks_per_block(job, options.rows):.2f} tasks a block",
            *(f"  {door}: {_stream.spread(seconds[door])} s, peak {peaks[door]:.0f} MiB" for door in DOORS),
            f"  lazy / streamed, by pairs: {ratio:.2f} ({least:.2f} to {most:.2f})",
        ]
    gigabytes = _stream.BANDS * options.rows * 2000 * 4 / 1e9
    print("\n".join(lines))
    print(f"{gigabytes:.1f} GB in (zstd), store to store, {len(os.sched_getaffinity(0))} threads, a process each run;")
    print(f"median of {options.runs} alternated runs (range); peak is that of resident memory")


if __name__ == "__main__":
    main()
