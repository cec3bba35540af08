"""Random geometries, run in parallel with a kernel that copies: no cell may differ from what numpy says.

Shapes of one to four dimensions, chunks, shards and tiles are drawn at random, with ragged edges and several outputs.
Every geometry is run by threads, and one in ten by two processes of two threads each. Then a plan whose tiles share
write units is planted: it has to be refused, and past the guard it has to lose cells, or the comparison would be blind.

    python scripts/check_geometries.py [--runs 1000] [--seed 1] [--minutes 40]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import geometries
import tilewise
from geometries import Geometry
from tilewise.errors import DimensionError

THREADS = tilewise.Cluster(kind="threads", workers=4)
#: One in so many geometries is also run by processes.
EVERY = 10


class Tally:
    """What has been run so far."""

    def __init__(self) -> None:
        self.dims: Counter[int] = Counter()
        self.by_processes = self.tiles = self.sharded = self.ragged = self.wrong = 0

    def add(self, geometry: Geometry, tiles: int, grid: Any, wrong: int) -> None:
        self.dims[len(geometry.dims)] += 1
        self.tiles += tiles
        self.sharded += geometry.out_shards is not None
        self.ragged += any(n % t for n, t in zip(grid.size, grid.tile_shape, strict=True))
        self.wrong += wrong


def run_all(options: argparse.Namespace, folder: Path, client: Any) -> Tally:
    """Every geometry of the seed, until time is over."""
    tally, end = Tally(), time.monotonic() + 60 * options.minutes
    for number in range(options.runs):
        if time.monotonic() > end:
            break
        geometry = geometries.random_geometry(np.random.default_rng([options.seed, number]))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            job = geometry.job(Path(place), THREADS)
            wrong = _differs(geometry, job, tally)
            if client is not None and number % EVERY == 0:
                auto = tilewise.Cluster()
                job = geometry.job(Path(tempfile.mkdtemp(dir=place)), auto)
                wrong += _differs(geometry, job, tally, client)
        if wrong:
            print(f"geometry {number} of seed {options.seed}: {wrong} cells differ: {geometry}", flush=True)
        if number % 50 == 49:
            print(f"{number + 1} geometries, {tally.wrong} cells differ", file=sys.stderr, flush=True)
    return tally


def _differs(geometry: Geometry, job: tilewise.Job, tally: Tally, client: Any = None) -> int:
    report = tilewise.run(job, client=client)
    wrong = geometry.wrong(Path(job.output.store).parent)
    tally.add(geometry, report.tiles, report.plan.grid, wrong)
    if client is not None:
        tally.by_processes += 1
    return wrong


def plant(folder: Path) -> tuple[list[str], bool]:
    """Misaligned plans: lines that say what became of them, and whether that is as it should be."""
    lines, good = [], True
    for sharded in (False, True):
        name = "sharded" if sharded else "chunked"
        geometry = geometries.planted(sharded=sharded)
        job = geometry.job(_new(folder, name), THREADS)
        refused = _is_refused(lambda job=job: tilewise.run(_with_tile(job)))
        guarded = _is_refused(lambda job=job, name=name: geometries.misaligned(job, f"guarded-{name}"))
        job = geometry.job(_new(folder, f"{name}-unguarded"), THREADS)
        geometries.stream(geometries.misaligned(job, f"unguarded-{name}", guarded=False), THREADS)
        lost = geometry.wrong(Path(job.output.store).parent)
        total = 3 * geometry.values.size
        lines.append(
            f"planted, {name}: plan {_said(refused)}, program {_said(guarded)}; "
            f"past the guard {lost} of {total} cells lost ({100 * lost / total:.0f} %)"
        )
        good &= refused and guarded and lost > 0
    return lines, good


def _with_tile(job: tilewise.Job) -> tilewise.Job:
    return replace(job, tile=geometries.MISALIGNED)


def _is_refused(call: Any) -> bool:
    try:
        call()
    except DimensionError as error:
        print(f"  refused: {error}")
        return True
    return False


def _said(refused: bool) -> str:
    return "refused" if refused else "NOT REFUSED"


def _new(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def main() -> int:
    """Run, plant, and print the table; 1 where anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="drawn and printed unless given")
    parser.add_argument("--minutes", type=float, default=40, help="after which no further geometry is begun")
    parser.add_argument("--threads-only", action="store_true", help="start no processes")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tilewise-geometries-") as place:
        folder = Path(place)
        if options.threads_only:
            tally = run_all(options, folder, None)
        else:
            from distributed import Client, LocalCluster

            workers = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
            with workers, Client(workers) as client:
                tally = run_all(options, folder, client)
        lines, good = plant(folder)
    runs = sum(tally.dims.values())
    counts = ", ".join(f"{count} of {dims}" for dims, count in sorted(tally.dims.items()))
    print(f"geometries: {runs - tally.by_processes}, seed {options.seed}, in {time.monotonic() - begin:.0f} s")
    print(f"runs: {runs}, of them {tally.by_processes} by processes; by dimensions: {counts}")
    print(f"tiles: {tally.tiles}; sharded outputs {tally.sharded}, ragged tiles {tally.ragged}, three outputs each")
    print(f"cells that differ: {tally.wrong}")
    print("\n".join(lines))
    return int(bool(tally.wrong) or not good or not runs)


if __name__ == "__main__":
    sys.exit(main())
