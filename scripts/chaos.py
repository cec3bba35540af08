"""Runs that are killed, starved and damaged, and whether their outputs end as if nothing had been.

Each trial is a job of 240 tiles in a folder of its own, run by the command line, killed or spoilt at a random moment,
resumed or repaired, and compared bit by bit with an undisturbed run. Bounded in count and in time; the last lines are a
table. A trial that is not as it should be says why on standard error, and the exit code is 1.

    python scripts/chaos.py [--parts kill,term,orphans,guilty,oom,full,audit] [--runs 10] [--seed 1] [--minutes 45]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import _chaos_faults as faults
import _chaos_kills as kills
from _chaos import KINDS, References, Trial, said, table

Trials = Iterator[Callable[[], Trial]]


def kill(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """SIGKILL to the coordinator, a worker, and all, `runs` times each."""
    for number in range(runs):
        for whom in ("coordinator", "worker", "all"):
            yield partial(kills.kill_once, folder, references, rng, whom, number)


def term(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """SIGTERM to the coordinator."""
    for number in range(runs):
        yield partial(kills.kill_once, folder, references, rng, "term", number)


def orphans(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """A second run beside orphans of the first, and beside a first one that lives."""
    for number in range(-(-runs // 2)):
        yield partial(kills.orphans, folder, number)
    yield partial(kills.two_at_once, folder)


def guilty(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """A tile that eats memory until its worker is killed."""
    for _ in range(-(-runs // 5)):
        for kind in KINDS:
            yield partial(faults.guilty, folder, rng, kind)


def oom(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """Torch out of memory, once and for large panels."""
    for form in ("once", "large panels"):
        for kind in ("threads", *KINDS):
            yield partial(faults.out_of_memory, folder, references, rng, kind, form)


def full(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """A full disk."""
    for sharded in (False, True):
        yield partial(faults.disk_full, folder, references, sharded)


def audit(folder: Path, references: References, rng: np.random.Generator, runs: int) -> Trials:
    """Damaged outputs."""
    for sharded in (False, True):
        for damage in faults.DAMAGES:
            for _ in range(-(-runs // 5)):
                yield partial(faults.damaged, folder, references, rng, damage, sharded)
        yield partial(faults.all_fill, folder, references, sharded)


PARTS = {f.__name__: f for f in (kill, term, orphans, guilty, oom, full, audit)}


def _attempt(trial: Callable[[], Trial], part: str) -> Trial:
    """One trial; what a spoilt output makes this script raise is that trial's fault, and ends no other."""
    try:
        return said(trial())
    except Exception as error:  # noqa: BLE001 - every trial is judged, whatever the one before did
        return said(Trial(f"{part}: trial failed", (f"{type(error).__name__}: {error}",)))


def main() -> int:
    """Run the parts that were asked for; 1 where a trial was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--runs", type=int, default=10, help="kills of each sort; other parts scale with it")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="drawn and printed unless given")
    parser.add_argument("--minutes", type=float, default=45, help="after which no further trial is begun")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    print(f"seed {options.seed}", flush=True)
    begin, trials, left_out = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(prefix="tilewise-chaos-", dir=os.environ.get("TILEWISE_BENCH")) as place:
        folder = Path(place)
        references = References(folder)
        for number, name in enumerate(names):
            rng = np.random.default_rng([options.seed, number])
            for trial in PARTS[name](folder, references, rng, options.runs):
                if time.monotonic() - begin > 60 * options.minutes:
                    left_out += 1
                    continue
                trials.append(_attempt(trial, name))
    minutes = (time.monotonic() - begin) / 60
    print(f"chaos: {len(trials)} trials in {minutes:.1f} min, {left_out} left out for time, seed {options.seed}")
    print("\n".join(table(trials)))
    return int(any(trial.wrong for trial in trials) or not trials)


if __name__ == "__main__":
    sys.exit(main())
