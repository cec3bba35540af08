"""Processes that take one lock from each other while some are killed: never two at once, and never nobody.

python scripts/check_locks.py [--seconds 30] [--processes 6] [--seed 0]

Each process tries to hold the lock again and again, and looks within whether another one that lives is there. The
parent kills one with SIGKILL every few milliseconds and starts another. At the end the lock has to be had at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from tilewise.errors import LockedError
from tilewise.folders import Folder, remove_partials
from tilewise.locking import hold, read_claim
from tilewise.owners import Owner, this_process

#: What the process that holds the lock leaves behind: which one it is.
INSIDE = "inside.json"


def take(sidecar: Folder, work: Path, number: int) -> None:
    """Hold the lock again and again until killed; each time a line says how it went."""
    outcome = os.open(work / "outcomes", os.O_WRONLY | os.O_APPEND)
    dice = random.Random(number)
    run = f"r{number}"
    while True:
        try:
            with hold(sidecar, run) as lock:
                os.write(outcome, f"{enter(work)}\n".encode())
                time.sleep(dice.random() * 0.004)
                lock.check()
                (work / INSIDE).unlink()
        except LockedError:
            os.write(outcome, b"refused\n")
        time.sleep(dice.random() * 0.002)


def enter(work: Path) -> str:
    """Say that this process is within; whether another one is that lives."""
    file = work / INSIDE
    found = "held"
    if file.exists():
        other = Owner.from_dict(json.loads(file.read_text()))
        found = "TWO AT ONCE" if other.is_alive else "taken over"
    part = work / f"part-{os.getpid()}"
    part.write_text(json.dumps(this_process().to_dict()))
    part.replace(file)
    return found


def start(sidecar: Folder, work: Path, number: int) -> int:
    """A process of that number; it never returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        take(sidecar, work, number)
    except BaseException as error:  # noqa: BLE001 - whatever ends it is an outcome, and must not run the parent's code
        with (work / "outcomes").open("a") as file:
            file.write(f"FAILED {type(error).__name__}: {error}\n")
    finally:
        os._exit(1)


def choose(living: list[int], sidecar: Folder, dice: random.Random) -> int:
    """Whom to kill: as often the one that holds the lock as any other."""
    try:
        claim = read_claim(sidecar)
    except LockedError as error:
        print(f"DAMAGED LOCK: {error}")
        claim = None
    if claim and claim.owner.pid in living and dice.random() < 0.5:
        return living.index(claim.owner.pid)
    return dice.randrange(len(living))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    work = Path(tempfile.mkdtemp())
    sidecar = Folder(str(work / "o.tilewise"))
    sidecar.write_text("run.json", "{}")
    (work / "outcomes").touch()
    living = [start(sidecar, work, number) for number in range(options.processes)]
    kills, end = 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        time.sleep(dice.random() * 0.02)
        victim = living.pop(choose(living, sidecar, dice))
        os.kill(victim, signal.SIGKILL)
        if dice.random() < 0.5:  # else it stays in the table of processes until the next one is waited for
            os.waitpid(victim, 0)
        kills += 1
        living.append(start(sidecar, work, options.processes + kills))
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    counts = Counter((work / "outcomes").read_text().splitlines())
    with hold(sidecar, "last") as lock:
        lock.check()
        left = [name for name in sidecar.names() if name.startswith("lock-")]
        parts = remove_partials(sidecar)
    print(f"seed {options.seed}, {options.processes} processes, {options.seconds:g} s, {kills} killed")
    print(f"{parts} part files of killed ones were left, {len(left)} markers")
    for outcome, count in sorted(counts.items()):
        print(f"{outcome}: {count}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
