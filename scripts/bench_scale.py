"""What grows with the number of tiles: memory of workers, client and scheduler, planning, and time beside the work.

- memory: the same job on a grid of one, four and sixteen times the rows, with one budget: the peak of a worker above
  what it begins with, and the plan's. The largest input has more than ten times the bytes of the budget.
- client: peaks of the process that runs a job, and of its scheduler, for tiny tiles: from so many to ten times as many.
- planning: a grid of 10^8 tiles, with its ledger made and its first blocks handed out.
- overhead: tiles of 32 x 32 pixels by ours and by the bare loop, both in as many processes as cores, in turns: the
  difference in seconds of one core a tile.

    python scripts/bench_scale.py [--tiles 100000] [--runs 5] [--parts memory client planning overhead]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

import _stream
import tilewise
from tilewise import machine
from tilewise.folders import Folder
from tilewise.ledger import Ledger
from tilewise.memory import Memory

PARTS = ("memory", "client", "planning", "overhead")
SIDE, COLUMNS, BANDS = 32, 100, 3
LIMIT = "500 MiB"
TIMES = (1, 4, 16)


# --- memory of workers


def memory(options: argparse.Namespace) -> list[str]:
    """Peaks of workers on grids of three sizes, in turns: which arenas of an allocator fill is a matter of chance."""
    lines = []
    for kind in ("processes", "local"):
        rounds = [[grid_peak(options.rows * times, kind) for times in TIMES] for _ in range(options.runs)]
        rises = [[peak - plan.baseline for peak, plan, _ in runs] for runs in zip(*rounds, strict=True)]
        for times, runs, risen in zip(TIMES, zip(*rounds, strict=True), rises, strict=True):
            _, plan, limit = runs[0]
            budgets = _stream.BANDS * options.rows * times * 2000 * 4 / limit
            peaks = _stream.spread([r / 2**20 for r in risen], "{:.0f}".format)
            kept = "kept" if all(peak <= plan.peak for peak, plan, _ in runs) else "NOT KEPT"
            lines.append(
                f"memory, {kind}, {times}x ({budgets:.1f} budgets): {peaks} MiB above "
                f"{plan.baseline / 2**20:.0f}, {plan.peak / 2**20:.0f} planned, {kept}"
            )
        middle = [statistics.median(risen) for risen in rises]
        lines.append(f"memory, {kind}: their medians differ by {100 * (max(middle) / min(middle) - 1):.1f} %")
    return lines


def grid_peak(rows: int, kind: Any) -> tuple[int, Memory, int]:
    """The largest peak of a worker, what was planned for it, and the budget."""
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": tilewise.Input(store=_stream.cube(rows), variable="b")},
        output=str(_stream.folder() / "scale.zarr"),
        tile={"y": 250, "x": 500},
        memory_limit="600 MiB" if kind == "local" else LIMIT,
        cluster=tilewise.Cluster(kind=kind),
    )
    report = tilewise.run(job, overwrite=True)
    return report.peak, report.plan.memory, report.plan.memory_limit


# --- memory of client and scheduler


def tiny(rows: int, codec: str = "none") -> str:
    """A field x (c, y, x) of chunks as small as tiles, `rows` of `COLUMNS` of them; rows are links of the first."""
    path = _stream.folder() / f"tiny-{rows}-{codec}.zarr"
    if not (path.parent / f"{path.name}.done").exists():
        shutil.rmtree(path, ignore_errors=True)
        array = zarr.create_group(path).create_array(
            "x",
            shape=(BANDS, rows * SIDE, COLUMNS * SIDE),
            chunks=(BANDS, SIDE, SIDE),
            dtype="float32",
            compressors=None,
            dimension_names=("c", "y", "x"),
        )
        array[:, :SIDE, :] = np.random.default_rng(0).standard_normal((BANDS, SIDE, COLUMNS * SIDE), dtype="float32")
        first = path / "x" / "c" / "0" / "0"
        for row in range(1, rows):
            (first.parent / str(row)).mkdir()
            for column in range(COLUMNS):
                os.link(first / str(column), first.parent / str(row) / str(column))
        (path.parent / f"{path.name}.done").touch()
    return str(path)


def tiny_job(rows: int, kind: Any) -> tilewise.Job:
    return tilewise.Job(
        kernel=tilewise.Norm(dim="c"),
        inputs={"x": tiny(rows)},
        output=tilewise.Output(
            store=str(_stream.folder() / f"tiny-out-{kind}.zarr"), chunks={"y": SIDE, "x": SIDE}, codec="none"
        ),
        tile={"y": SIDE, "x": SIDE},
        cluster=tilewise.Cluster(kind=kind),
    )


def client_peak(rows: int, kind: str) -> dict[str, float]:
    """What a process of its own needs for a run of tiny tiles: peak bytes, and seconds; the scheduler is within it."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(rows), kind], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(rows: int, kind: str) -> None:
    """The process of `client_peak`: its peak counts from a tenth of the run on, when everything is loaded."""
    peaks: list[int] = []

    def watch(event: tilewise.Event) -> None:
        if not peaks and event.done >= event.total // 100:
            machine.reset_peak()
            peaks.append(machine.resident())

    report = tilewise.run(tiny_job(rows, kind), overwrite=True, progress=watch)
    print(json.dumps({"begin": peaks[0], "peak": machine.peak(), "seconds": report.seconds, "tiles": report.tiles}))


def client(options: argparse.Namespace) -> list[str]:
    """Bytes a tile by which a client, with the scheduler of a LocalCluster in it, grows."""
    lines = []
    for kind in ("processes", "local"):
        few, many = (client_peak(rows, kind) for rows in (options.tiles // 10 // COLUMNS, options.tiles // COLUMNS))
        growth = (many["peak"] - few["peak"]) / (many["tiles"] - few["tiles"])
        each = ", ".join(
            f"{e['tiles']:,.0f} tiles: {e['peak'] / 2**20:.1f} MiB, {(e['peak'] - e['begin']) / 2**20:.1f} of it grown"
            for e in (few, many)
        )
        lines.append(f"client, {kind}: {growth:.0f} bytes a tile; peaks {each}")
    return lines


# --- planning


def planning(options: argparse.Namespace) -> list[str]:
    """A grid of 10^8 tiles."""
    path = _stream.folder() / "huge.zarr"
    zarr.create_group(path, overwrite=True).create_array(
        "x",
        shape=(BANDS, 10_000 * SIDE, 10_000 * SIDE),
        chunks=(BANDS, SIDE, SIDE),
        dtype="float32",
        dimension_names=("c", "y", "x"),
    )
    output = tilewise.Output(store=str(_stream.folder() / "huge-out.zarr"), chunks={"y": SIDE, "x": SIDE})
    tile = {"y": SIDE, "x": SIDE}
    job = tilewise.Job(kernel=tilewise.Norm(dim="c"), inputs={"x": str(path)}, output=output, tile=tile)
    tilewise.plan(job)  # the baseline is measured once
    seconds = []
    for _ in range(options.runs):
        begin = time.perf_counter()
        plan = tilewise.plan(job)
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    sidecar = Folder(str(_stream.folder() / "huge-ledger"))
    ledger = Ledger.create(sidecar, plan.grid, {})
    blocks = ledger.blocks(plan.block)
    first = [next(blocks) for _ in range(1000)]
    took = time.perf_counter() - begin
    sidecar.remove()
    return [
        f"planning {plan.tiles:,} tiles: {_stream.spread(seconds, '{:.3f}'.format)} s",
        f"their ledger, and the first {len(first):,} blocks of it: {took:.3f} s",
    ]


# --- overhead


def bare_worker(number: int, count: int, rows: int, pipe: Any) -> None:
    """One process of the bare loop, which computes with the same kernel."""
    import torch

    from tilewise.fields import FieldSpec
    from tilewise.session import compute_tile

    torch.set_num_threads(1)
    x = zarr.open_array(tiny(rows), path="x", mode="r")
    out = zarr.open_array(_stream.folder() / "tiny-bare.zarr", path="norm", mode="r+")
    kernel = tilewise.Norm(dim="c")
    signature = kernel.declare({"x": FieldSpec("x", ("c", "y", "x"), x.shape, "float32")})
    state, panel = kernel.prepare({}), kernel.panel(signature)
    pipe.send("ready")
    pipe.recv()
    begin = time.process_time()
    for n in range(number, rows * COLUMNS, count):
        y, c = divmod(n, COLUMNS)
        box = (slice(y * SIDE, (y + 1) * SIDE), slice(c * SIDE, (c + 1) * SIDE))
        values = {"norm": np.empty((SIDE, SIDE), "float32")}
        compute_tile(kernel, signature, state, {"x": x[(slice(None), *box)]}, values, panel=panel)
        out[box] = values["norm"]
    pipe.send(time.process_time() - begin)


def bare(rows: int) -> tuple[float, float]:
    """Wall seconds, and seconds of cores, of the bare loop."""
    shape = (rows * SIDE, COLUMNS * SIDE)
    group = zarr.create_group(_stream.folder() / "tiny-bare.zarr", overwrite=True)
    group.create_array("norm", shape=shape, chunks=(SIDE, SIDE), dtype="float32", compressors=None)
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    count = machine.cores()
    for number in range(count):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=bare_worker, args=(number, count, rows, theirs)))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    begin = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    busy = sum(pipe.recv() for pipe in pipes)
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    return seconds, busy


def ours(rows: int) -> tuple[float, float]:
    """Wall seconds, and seconds of cores, of the tiles of our run: of this process and of its workers."""
    seen: list[float] = []

    def watch(event: tilewise.Event) -> None:
        if event.done in (0, event.total):
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            seen.append(sum(sum(process.cpu_times()[:2]) for process in family))

    report = tilewise.run(tiny_job(rows, "processes"), overwrite=True, progress=watch)
    return report.seconds, seen[-1] - seen[0]


def overhead(options: argparse.Namespace) -> list[str]:
    """Seconds of one core a tile, beyond the bare loop."""
    rows = (options.overhead_tiles or options.tiles) // COLUMNS
    tiles, cores = rows * COLUMNS, machine.cores()
    wall, busy, loop = [], [], []
    for number in range(options.runs):
        (a, c), (b, d) = bare(rows), ours(rows)
        loop.append(1000 * c / tiles)
        wall.append(1000 * (b - a) * cores / tiles)
        busy.append(1000 * (d - c) / tiles)
        _stream.log(f"overhead, run {number}: bare {a:.1f} s ({c:.1f} of cores), ours {b:.1f} s ({d:.1f} of cores)")
    form = "{:.3f}".format
    return [
        f"overhead, {tiles:,} tiles of {SIDE} x {SIDE}: the bare loop takes {_stream.spread(loop, form)} ms",
        f"beyond it, by processor time: {_stream.spread(busy, form)} ms of a core a tile",
        f"beyond it, by wall time times cores: {_stream.spread(wall, form)} ms of a core a tile",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--tiles", type=int, default=10_000, help="tiny tiles, of the larger run of two")
    parser.add_argument("--overhead-tiles", type=int, help="of each run of the overhead; else as many")
    parser.add_argument("--rows", type=int, default=2000, help="rows of the smallest grid, of 2000 pixels and 50 bands")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("ROWS", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(int(options.child[0]), options.child[1])
        return
    measures = {"memory": memory, "client": client, "planning": planning, "overhead": overhead}
    lines = [line for part in options.parts for line in measures[part](options)]
    print(f"medians of {options.runs} runs (range), {machine.cores()} cores; peaks of the client of one run each")
    print("\n".join(lines))
    for path in Path(_stream.folder()).glob("tiny-*"):
        if path.is_dir() and ("out" in path.name or "bare" in path.name):
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
