"""A stream from store to store: ours, the bare loop, xarray with dask, and cubed, in one run, one after the other.

Same store, codec of the output, chunks and cores for all; each in a program of its own, at the best of a few tiles and
ways that are tried first on a smaller cube. Printed for each are medians and ranges of: seconds from the first input
read to the last output written; seconds before that, from the start of the program on; wall time of the program;
processor time of all its processes; and their memory. What was read is in the page cache, so that nobody waits for a
disk; before each run the last output is removed and what was written is synced.

    python scripts/bench_stream.py [--rows 5000] [--runs 5] [--kernels lstsq norm] [--codecs zstd none] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _stream
import _tree
from _stream import Setup, spread

MIB = 1 << 20
#: What each contender is tried with, in rows and columns, before the runs that count.
TILES = ((250, 250), (250, 1000), (500, 1000))
WAYS: dict[str, tuple[str, ...]] = {
    "tilewise": ("auto", "processes", "local"),
    "bare": ("kernel", "hand"),
    "dask": ("threads", "processes"),
    "cubed": ("threads", "processes"),
}
#: Whose ways all count, rather than the best of them.
ALL_WAYS = ("tilewise", "dask")
#: Libraries of the peers compute on one thread a worker, as a careful user would tell them.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
KERNELS = {"lstsq": "Lstsq 50 -> 20", "norm": "Norm of 50"}


@dataclass(frozen=True)
class Run:
    """One run of one contender: seconds of the stream, before it, and in all, processor seconds, and bytes."""

    seconds: float
    startup: float
    total: float
    cpu: float
    largest: int
    together: int
    phases: Mapping[str, float]


def measured(setup: Setup) -> Run:
    """Run one contender, check what it wrote, and remove it."""
    _remove(setup.output)
    os.sync()
    arguments = json.dumps({name: getattr(setup, name) for name in setup.__dataclass_fields__})
    own = {} if setup.peer == "tilewise" else ONE_THREAD
    ended = _tree.run([sys.executable, str(Path(__file__).with_name("_peers.py")), arguments], own)
    times = json.loads(ended.text.splitlines()[-1])
    _stream.check(setup)
    _remove(setup.output)
    return Run(
        seconds=times["end"] - times["begin"],
        startup=times["begin"] - ended.started,
        total=ended.seconds,
        cpu=ended.cpu,
        largest=ended.largest,
        together=ended.together,
        phases=times.get("phases", {}),
    )


def _remove(output: str) -> None:
    for path in (output, output + ".tilewise"):
        shutil.rmtree(path, ignore_errors=True)


def choices(setup: Setup) -> dict[str, list[Setup]]:
    """What there is to choose from for a peer, by what it is measured as."""
    if setup.peer == "tilewise":
        return {way: [replace(setup, way=way)] for way in WAYS["tilewise"]}
    every = [replace(setup, way=way, tile=tile) for way in WAYS[setup.peer] for tile in TILES]
    if setup.peer in ALL_WAYS:
        return {way: [one for one in every if one.way == way] for way in WAYS[setup.peer]}
    return {"best": every}


def contenders(setup: Setup, peers: Sequence[str], smaller: str) -> list[Setup]:
    """The contenders that count, each at the best of what was tried on the smaller cube."""
    found = []
    for peer in peers:
        for options in choices(replace(setup, peer=peer)).values():
            found.append(_best(options, smaller) if len(options) > 1 else options[0])
            if peer == "bare":
                found += [replace(found[-1], peer=same) for same in ("settled", "floor")]
    return found


def _best(options: Sequence[Setup], smaller: str) -> Setup:
    trials = {option: measured(replace(option, source=smaller)).seconds for option in options}
    for option, seconds in trials.items():
        _stream.log(f"tried {option.title}, tile {option.tile}: {seconds:.2f} s")
    return min(trials, key=trials.__getitem__)


def alternated(setups: Sequence[Setup], rounds: int) -> dict[Setup, list[Run]]:
    """Runs of each contender; they take turns."""
    runs: dict[Setup, list[Run]] = {setup: [] for setup in setups}
    for number in range(rounds):
        for setup in setups:
            runs[setup].append(measured(setup))
            last = runs[setup][-1]
            _stream.log(f"run {number}, {setup.title}: {last.seconds:.2f} s, {last.cpu:.1f} s of processors")
    return runs


def table(runs: Mapping[Setup, Sequence[Run]], size: float) -> list[str]:
    """A line for each contender."""
    head = f"{'':<38} {'seconds':<22} {'GB/s':>5}  {'start-up':<22} {'in all':<22} {'cpu s':>6} {'MiB':>6} {'sum':>6}"
    lines = [head]
    for setup, own in runs.items():
        name = setup.title if setup.peer == "tilewise" else f"{setup.title}, {setup.tile[0]} x {setup.tile[1]}"
        seconds, startup, total = ([getattr(run, key) for run in own] for key in ("seconds", "startup", "total"))
        lines.append(
            f"{name:<38} {spread(seconds):<22} {size / statistics.median(seconds):>5.2f}  {spread(startup):<22} "
            f"{spread(total):<22} {statistics.median(run.cpu for run in own):>6.1f} "
            f"{max(run.largest for run in own) / MIB:>6.0f} {max(run.together for run in own) / MIB:>6.0f}"
        )
    return lines


def figures(runs: Mapping[Setup, Sequence[Run]]) -> dict[str, list[float]]:
    """Ratios of times, run by run, by what they say."""
    by_name = {(setup.peer, setup.way): own for setup, own in runs.items()}
    first = {setup.peer: own for setup, own in reversed(runs.items())}
    ours = by_name.get(("tilewise", "auto"), [])
    found = {
        "tilewise / bare loop (at most 1.10)": _ratios(ours, first.get("bare", [])),
        "tilewise, local / bare loop (at most 1.20)": _ratios(by_name.get(("tilewise", "local"), []), first.get("bare", [])),
        "bare loop / decode, then encode (at most 1.10)": _ratios(first.get("bare", []), first.get("floor", [])),
    }
    for setup, own in runs.items():
        if setup.peer in ("dask", "cubed"):
            found[f"{setup.title} / tilewise (at least 1.5)"] = _ratios(own, ours)
    return {name: ratios for name, ratios in found.items() if ratios}


def _ratios(above: Sequence[Run], below: Sequence[Run]) -> list[float]:
    return [a.seconds / b.seconds for a, b in zip(above, below, strict=False)]
