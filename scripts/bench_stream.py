"""Time of a stream from store to store against a bare loop that calls the same kernel in as many processes.

The bare loop is what somebody would write by hand who knows zarr and this kernel: each process reads its boxes with
zarr, computes with the same tile function, and writes with zarr, with the allocator's and zarr's own defaults. Its
start-up and ours (imports, workers, planning) are left out of the ratio and printed beside it.

    python scripts/bench_stream.py [--rows 5000] [--runs 5] [--kind processes]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np
import zarr

import _stream
import tilewise


def bare_worker(
    number: int, count: int, source: str, library: str, output: str, tile: tuple[int, int], pipe: Any
) -> None:
    """One process of the bare loop."""
    import torch

    from tilewise.fields import FieldSpec
    from tilewise.session import compute_tile

    torch.set_num_threads(1)
    b = zarr.open_array(source, path="b", mode="r")
    out = {n: zarr.open_array(output, path=n, mode="r+") for n in ("solution", "status")}
    design = zarr.open_array(library, path="A", mode="r")[...]
    kernel = tilewise.Lstsq(dim="band")
    specs = {
        "b": FieldSpec("b", ("band", "y", "x"), b.shape, "float32"),
        "A": FieldSpec("A", ("band", "unknown"), design.shape, "float32"),
    }
    signature = kernel.declare(specs)
    state = kernel.prepare({"A": torch.from_numpy(design)})
    pipe.send("ready")
    pipe.recv()
    rows, columns = tile
    boxes = [(y, x) for y in range(0, b.shape[1], rows) for x in range(0, b.shape[2], columns)]
    for y, x in boxes[number::count]:
        box = (slice(None), slice(y, y + rows), slice(x, x + columns))
        field = np.asarray(b[box])
        values = {
            "solution": np.empty((_stream.UNKNOWNS, *field.shape[1:]), "float32"),
            "status": np.empty(field.shape[1:], "uint8"),
        }
        compute_tile(kernel, signature, state, {"b": field}, values, panel=kernel.panel(signature))
        out["solution"][box] = values["solution"]
        out["status"][box[1:]] = values["status"]
    pipe.send("done")


def bare(source: str, library: str, count: int, tile: tuple[int, int], chunk: int) -> float:
    """Seconds of the bare loop."""
    output = str(_stream.folder() / "bare.zarr")
    shape = zarr.open_array(source, path="b", mode="r").shape[1:]
    group = zarr.create_group(output, overwrite=True)
    n = _stream.UNKNOWNS
    group.create_array("solution", shape=(n, *shape), chunks=(n, chunk, chunk), dtype="float32")
    group.create_array("status", shape=shape, chunks=(chunk, chunk), dtype="uint8", fill_value=255)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        args = (number, count, source, library, output, tile, theirs)
        processes.append(context.Process(target=bare_worker, args=args))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    begin = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        pipe.recv()
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    return seconds


def ours(source: str, library: str, kind: Any, workers: int | None) -> tilewise.Report:
    """Report of our run of the same job."""
    job = tilewise.Job(
        kernel=tilewise.Lstsq(dim="band"),
        inputs={"A": library, "b": source},
        output=str(_stream.folder() / "ours.zarr"),
        cluster=tilewise.Cluster(kind=kind, workers=workers),
        memory_limit="2 GiB",
    )
    return tilewise.run(job, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="rows of 2000 pixels and 50 bands: 5000 are 2 GB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kind", default="auto")
    parser.add_argument("--codec", default="zstd")
    options = parser.parse_args()
    source, library = _stream.cube(options.rows, codec=options.codec), _stream.library()
    workers = len(os.sched_getaffinity(0))
    tiles = [(250, 250), (250, 1000), (500, 1000)]
    trial = {tile: bare(source, library, workers, tile, 250) for tile in tiles}
    best = min(trial, key=lambda tile: trial[tile])
    _stream.log("bare loop by tile: " + ", ".join(f"{t}: {s:.2f} s" for t, s in trial.items()))
    peer, mine, startup, ratios = [], [], [], []
    for run in range(options.runs):
        peer.append(bare(source, library, workers, best, 250))
        report = ours(source, library, options.kind, workers)
        mine.append(report.seconds)
        startup.append(report.startup)
        ratios.append(mine[-1] / peer[-1])
        _stream.log(f"run {run}: bare {peer[-1]:.2f} s, ours {mine[-1]:.2f} s")
    gigabytes = _stream.BANDS * options.rows * 2000 * 4 / 1e9
    print(
        f"stream of {gigabytes:.1f} GB in ({options.codec}), Lstsq 50 -> 20, {workers} processes, kind {options.kind}"
    )
    print(f"bare loop, tile {best}: {_stream.spread(peer)} s, {gigabytes / statistics.median(peer):.2f} GB/s in")
    print(f"tilewise: {_stream.spread(mine)} s, start-up {_stream.spread(startup)} s apart")
    print(f"ratio of the pairs, median of {options.runs}: {_stream.spread(ratios)}")


if __name__ == "__main__":
    main()
