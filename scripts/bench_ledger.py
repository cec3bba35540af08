"""Time and memory of the ledger at 10^4, 10^5 and 10^6 tiles: what a run pays for being resumable.

For each number of tiles, in a process of its own: all tiles are recorded and flushed every 2 000 of them, which is a
flush every two seconds of a run with a thousand tiles a second; then the ledger is opened, what is pending is listed
and the sums are taken, as a run that is resumed does. Memory is that of Python and numpy (tracemalloc) and the rise of
the resident set, above what an opened, ledger of a hundred tiles takes.

    python scripts/bench_ledger.py [--tiles 10000 100000 1000000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from _bench import MIB, peak_rise
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.ledger import KEPT_ROWS, Ledger
from tilewise.ledger_rows import MOST, columns
from tilewise.records import TileRecord, TileState

#: Tiles between two flushes.
FLUSH = 2000


def grid_of(tiles: int) -> TileGrid:
    """Tiles of 100 cells, 100 of them along the last dimension."""
    return TileGrid(("y", "x"), (tiles // 100 * 10, 1000), (10, 10))


def record(number: int) -> TileRecord:
    """A tile as a kernel with a status records it; one in a thousand was tried again."""
    return TileRecord(number, TileState.DONE, (0.1, 0.2, 0.1), {0: 90, 2: 10}, attempts=1 + (number % 1000 == 0))


def do_all(sidecar: Folder, tiles: int) -> dict[str, float]:
    """Seconds of everything that a run and one that is resumed ask of a ledger."""
    found = {}
    begin = time.perf_counter()
    ledger = Ledger.create(sidecar, grid_of(tiles), {})
    found["create"] = time.perf_counter() - begin
    flushes, adds = [], 0.0
    for first in range(0, tiles, FLUSH):
        begin = time.perf_counter()
        for number in range(first, min(first + FLUSH, tiles)):
            ledger.add(record(number))
        middle = time.perf_counter()
        ledger.flush()
        adds += middle - begin
        flushes.append(time.perf_counter() - middle)
    found |= {"add": adds / tiles, "flush": statistics.median(flushes), "flush_max": max(flushes)}
    begin = time.perf_counter()
    again = Ledger.open(sidecar)
    found["open"] = time.perf_counter() - begin
    begin = time.perf_counter()
    assert not list(again.blocks(1000))
    found["pending"] = time.perf_counter() - begin
    begin = time.perf_counter()
    assert again.totals().states[TileState.DONE] == tiles
    found["totals"] = time.perf_counter() - begin
    return found


def files(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(tiles: int, folder: Path) -> dict[str, float]:
    """Times without, and memory with, the eyes of tracemalloc."""
    do_all(Folder(str(folder / "warm")), 100)
    found: dict[str, float] = {}
    rise = peak_rise(lambda: found.update(do_all(Folder(str(folder / "timed")), tiles)))
    tracemalloc.start()
    do_all(Folder(str(folder / "traced")), tiles)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {**found, "rise": rise, "traced": peak, "stored": sum(files(folder / "timed"))}


def in_child(tiles: int, folder: str | None) -> dict[str, float]:
    place = Path(tempfile.mkdtemp(prefix="bench-ledger-", dir=folder))
    try:
        command = [sys.executable, __file__, "--measure", str(tiles), "--folder", str(place)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    finally:
        shutil.rmtree(place)


def row_bytes() -> int:
    """Bytes of one row, as large as any, with every array that there may be."""
    import numpy as np

    table = columns(grid_of(100))
    return sum(math.prod(size for _, size in c.lead) * np.dtype(c.dtype).itemsize for c in table) * MOST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--folder", help="where the ledgers are written; the system's temporary folder unless given")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, Path(options.folder))))
        return
    found = {tiles: in_child(tiles, options.folder) for tiles in options.tiles}
    print(
        f"a flush each {FLUSH:,} tiles; at most {KEPT_ROWS} rows in memory, of {row_bytes() / MIB:.1f} MiB at most each"
    )
    print("tiles     create   add      flush    flush    open     pending  sums     python   resident stored")
    print("          s        us/tile  ms med   ms max   ms       ms       ms       MiB      MiB      B/tile")
    for tiles, each in found.items():
        values = (
            f"{each['create']:.2f}",
            f"{each['add'] * 1e6:.1f}",
            *(f"{each[key] * 1e3:.0f}" for key in ("flush", "flush_max", "open", "pending", "totals")),
            *(f"{each[key] / MIB:.1f}" for key in ("traced", "rise")),
            f"{each['stored'] / tiles:.2f}",
        )
        print(f"{tiles:<9} " + " ".join(f"{value:<8}" for value in values).rstrip())


if __name__ == "__main__":
    main()
