"""A stream from store to store: ours, the bare loop, xarray with dask, and cubed, in one run, one after the other.

Same store, codec of the output, chunks and cores for all; each in a program of its own, at the best of a few tiles and
ways that are tried first on a smaller cube. Printed for each are medians and ranges of: seconds from the first input
read to the last output written; seconds before that, from the start of the program on; and wall time of the program.
Then the processor time of all its processes during the stream, and the largest memory of one of them and of all
together. What is read is in the page cache, so that nobody waits for a disk; before each run the last output is removed
and what was written is synced. Every run's output is compared with numpy's.

The bare loop computes by the kernel of tilewise, or by hand in a line of torch or numpy, whichever is faster. "Decode,
then encode" is that loop without computing: it first reads all boxes, and then writes results that are there already.
What xarray and cubed compute for a block is that line too, and they need not write a status. All but tilewise are told
by the environment to compute on one thread a worker. The clock starts when workers are there and have imported what
they need, except for cubed, which starts its processes within a run: there it starts with the first task on data.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

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
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
KERNELS = {"lstsq": "Lstsq 50 -> 20", "norm": "Norm of 50"}


@dataclass(frozen=True)
class Run:
    """One run of one contender: seconds of the stream, before it, and in all; of processors in the stream; bytes."""

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
    arguments = json.dumps(asdict(setup))
    own = {} if setup.peer == "tilewise" else ONE_THREAD
    ended = _tree.run([sys.executable, str(Path(__file__).with_name("_peers.py")), arguments], own)
    times = json.loads(ended.text.splitlines()[-1])
    _stream.check(setup)
    _remove(setup.output)
    return Run(
        seconds=times["end"] - times["begin"],
        startup=times["begin"] - ended.started,
        total=ended.seconds,
        cpu=ended.cpu_between(times["begin"], times["end"]),
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


def contenders(setup: Setup, peers: Sequence[str], smaller: str, trials: int) -> list[Setup]:
    """The contenders that count, each at the best of what was tried on the smaller cube; untried, at the first."""
    found = []
    for peer in peers:
        for options in choices(replace(setup, peer=peer)).values():
            found.append(_best(options, smaller, trials) if trials and len(options) > 1 else options[0])
            if peer == "bare":
                found += [replace(found[-1], peer=same) for same in ("settled", "floor")]
    return found


def _best(options: Sequence[Setup], smaller: str, rounds: int) -> Setup:
    """The one whose quickest trial was the quickest."""
    runs = alternated([replace(option, source=smaller) for option in options], rounds)
    quickest = [min(run.seconds for run in own) for own in runs.values()]
    for option, seconds in zip(options, quickest, strict=True):
        _stream.log(f"tried {option.title}, tile {option.tile}: {seconds:.2f} s")
    return options[quickest.index(min(quickest))]


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
    head = f"{'':<44} {'seconds':<22} {'GB/s':>5}  {'start-up':<22} {'in all':<22} {'cpu s':>6} {'MiB':>6} {'sum':>6}"
    lines = [head]
    for setup, own in runs.items():
        name = setup.title if setup.peer == "tilewise" else f"{setup.title}, {setup.tile[0]} x {setup.tile[1]}"
        seconds, startup, total = ([getattr(run, key) for run in own] for key in ("seconds", "startup", "total"))
        lines.append(
            f"{name:<44} {spread(seconds):<22} {size / statistics.median(seconds):>5.2f}  {spread(startup):<22} "
            f"{spread(total):<22} {statistics.median(run.cpu for run in own):>6.1f} "
            f"{max(run.largest for run in own) / MIB:>6.0f} {max(run.together for run in own) / MIB:>6.0f}"
        )
    return lines


def figures(runs: Mapping[Setup, Sequence[Run]]) -> dict[str, list[float]]:
    """Ratios of times, run by run, by what they say; those whose contenders have run."""
    found = {}
    for above, own in runs.items():
        for below, text in COMPARED.get(above.peer, ()):
            other = next((runs[setup] for setup in runs if setup.peer == below), None)
            if other:
                name = f"{above.title} / {_stream.TITLES[below]}{text.get(above.way, text[''])}"
                found[name] = [a.seconds / b.seconds for a, b in zip(own, other, strict=True)]
    return found


#: Whose time is divided by whose, and what is asked of the ratio, by way. Of tilewise, the first is the default.
COMPARED: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "tilewise": (("bare", {"": "", "auto": " (at most 1.10)", "local": " (at most 1.20)"}),),
    "settled": (("bare", {"": ""}),),
    "bare": (("floor", {"": " (at most 1.10)"}),),
    "dask": (("tilewise", {"": " (at least 1.5)"}),),
    "cubed": (("tilewise", {"": " (at least 1.5)"}),),
}


def available(peers: Sequence[str]) -> list[str]:
    """The peers that can run here; the others are told of."""
    missing = [peer for peer in peers if peer == "cubed" and importlib.util.find_spec("cubed") is None]
    for peer in missing:
        _stream.log(f"{peer} is left out: it is not installed; pip install 'tilewise[bench]' brings it")
    return [peer for peer in peers if peer not in missing]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="rows of 2000 pixels and 50 bands: 5000 are 2 GB")
    parser.add_argument("--trial-rows", type=int, default=2000, help="rows of the cube on which tiles are tried")
    parser.add_argument("--trials", type=int, default=2, help="runs of each trial; 0: nothing is tried")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    parser.add_argument("--codecs", nargs="+", default=["zstd", "none"], choices=["zstd", "none"])
    parser.add_argument("--peers", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--json", type=Path, help="file for every run, beside what is printed")
    options = parser.parse_args()
    peers, cores = available(options.peers), len(os.sched_getaffinity(0))
    size = _stream.gigabytes(options.rows)
    title = f"stream of {size:.1f} GB, {cores} cores, median of {options.runs} alternated runs (range)"
    lines, rows = [title], []
    for kernel in options.kernels:
        for codec in options.codecs:
            setup = Setup(
                peer="",
                kernel=kernel,
                codec=codec,
                source=_stream.cube(options.rows, codec=codec),
                library=_stream.library(),
                output=str(_stream.folder() / "stream.zarr"),
                cores=cores,
            )
            setups = contenders(setup, peers, _stream.cube(options.trial_rows, codec=codec), options.trials)
            runs = alternated(setups, options.runs)
            lines += ["", f"{KERNELS[kernel]}, {codec}", *table(runs, size)]
            lines += [f"{name}: {spread(ratios)}" for name, ratios in figures(runs).items()]
            rows += [{**asdict(own), "runs": [asdict(run) for run in found]} for own, found in runs.items()]
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps({"title": title, "rows": rows, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
