"""A stream from and to an S3 server that answers late, with and without read-ahead, in turns.

The server is moto's on the loopback, with some milliseconds added to every request. Compared are the seconds of the
tiles of the same job with `read_ahead` 0, with a fixed number, and chosen by itself.

    python scripts/bench_read_ahead.py [--runs 5] [--latency 20] [--kind threads]
"""

from __future__ import annotations

import argparse
import socket
from typing import Any

import numpy as np
import zarr

import _slow_s3
import _stream
import tilewise
from tilewise import access

SHAPE, CHUNK = (8, 512, 1024), (8, 64, 64)
WAYS: tuple[Any, ...] = (0, 4, "auto")


def fill(url: str) -> None:
    """Write the input."""
    group = zarr.create_group(access.zarr_store(url, read_only=False))
    array = group.create_array("x", shape=SHAPE, chunks=CHUNK, dtype="float32", dimension_names=("band", "y", "x"))
    with zarr.config.set({"async.concurrency": 32}):
        array[...] = np.random.default_rng(0).standard_normal(SHAPE, dtype="float32")


def run(url: str, output: str, read_ahead: Any, kind: Any, side: int = CHUNK[1]) -> tilewise.Report:
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": url},
        output=output,
        tile={"y": side, "x": side},
        cluster=tilewise.Cluster(kind=kind),
        read_ahead=read_ahead,
    )
    return tilewise.run(job, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds that are added to a request")
    parser.add_argument("--kind", default="threads")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seconds: dict[Any, list[float]] = {way: [] for way in WAYS}
    chosen: list[int] = []
    with _slow_s3.serve(port, options.latency, "bench"):
        fill("s3://bench/in.zarr")
        for number in range(options.runs):
            for way in WAYS:
                report = run("s3://bench/in.zarr", f"s3://bench/out-{number}-{way}.zarr", way, options.kind)
                seconds[way].append(report.seconds)
                chosen += [report.plan.read_ahead] * (way == "auto")
                _stream.log(f"run {number}, read_ahead {way}: {report.seconds:.2f} s")
        tiles = report.plan.tiles
    local = run(_stream.cube(500), str(_stream.folder() / "ahead.zarr"), "auto", options.kind, side=250)
    print(f"{tiles} tiles from and to S3 (moto), {options.latency:g} ms added to a request, {options.kind}")
    for way, found in seconds.items():
        ratios = [a / b for a, b in zip(seconds[0], found, strict=True)]
        text = f" ({', '.join(map(str, chosen))} was chosen)" if way == "auto" else ""
        print(f"read_ahead {way}{text}: {_stream.spread(found)} s, {_stream.spread(ratios)} times as fast as without")
    print(f"of a local store: read_ahead {local.plan.read_ahead} was chosen by itself")


if __name__ == "__main__":
    main()
