"""Runs that are killed between their first and last write, then resumed; runs that start beside orphans."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import numpy as np

from _chaos import KINDS, References, Trial, clusters, new_folder, unless
from chaos_scenes import TILES, Command, Done, Scene, kill, wait_for_units

#: Seconds of a tile: a run takes many times as long as two flushes of the ledger are apart.
SECONDS = 0.1
#: Seconds within which the ledger is flushed, at most.
FLUSH = 5.0
#: Seconds that processes of a dead run may take to notice that they are alone.
ORPHANS = 60.0


def kill_once(folder: Path, references: References, rng: np.random.Generator, whom: str, number: int) -> Trial:
    """One run killed and resumed: `whom` is coordinator, worker, all, or term, which is SIGTERM to the coordinator."""
    kinds = KINDS if whom == "worker" else ("processes", "local", "threads")
    sharded, kind = bool(number % 2), kinds[number // 2 % len(kinds)]
    scene = Scene(new_folder(folder), kind=kind, sharded=sharded, seconds=SECONDS)
    part = {"term": "SIGTERM"}.get(whom, f"SIGKILL {whom}")
    command = scene.start()
    wait_for_units(scene, command, int(rng.integers(1, int(0.9 * TILES))))
    noted, when = scene.noted(), time.monotonic()
    if command.process.poll() is not None or not noted:
        done = command.wait()
        return Trial(part, (f"ended before it was killed, code {done.code}: {done.text[-300:]}",))
    _kill(command, whom, noted, rng)
    done = command.wait()
    at = scene.written()
    wrong = _exit_codes(whom, done)
    bound = scene.workers * scene.block() + sum(t > when - FLUSH for _, _, t in noted)
    again = scene.start("--resume").wait()
    wrong += unless(again.code == 0, f"--resume ended with {again.code}: {again.text[-300:]}")
    left = command.outlived(ORPHANS)
    wrong += unless(not left, f"{left} orphans still there {ORPHANS:.0f} s later")
    wrong += references.compare(scene)
    redone = scene.redone()
    wrong += unless(redone <= bound, f"{redone} tiles redone, {bound} at most")
    wrong += unless(bool(0 < at < TILES) or whom == "worker", f"not killed between first and last write: {at} units")
    wrong += _at_once(scene)
    note = (
        f"({kind}, {'sharded' if sharded else 'chunked'}, at {at} of {TILES} units, resumed in {again.seconds:.1f} s)"
    )
    shutil.rmtree(scene.folder)
    return Trial(part, tuple(wrong), redone, bound, note)


def _kill(command: Command, whom: str, noted: list[tuple[int, str, float]], rng: np.random.Generator) -> None:
    if whom == "worker":
        at_work = sorted({pid for pid, _, _ in noted} & set(command.others()))
        kill(int(rng.choice(at_work)))
    elif whom == "all":
        command.kill_all()
    else:
        command.kill(signal.SIGTERM if whom == "term" else signal.SIGKILL)


def _exit_codes(whom: str, done: Done) -> list[str]:
    """A worker's death is the run's own to mend."""
    expected = {"worker": 0, "term": 143}.get(whom, -signal.SIGKILL)
    return unless(done.code == expected, f"ended with {done.code}, not {expected}: {done.text[-300:]}")


def _at_once(scene: Scene) -> list[str]:
    """A run that has finished is finished: resumed once more, it computes nothing."""
    before = len(scene.noted())
    done = scene.start("--resume").wait()
    return unless(done.code == 0 and len(scene.noted()) == before, f"resumed when finished: code {done.code}")


def orphans(folder: Path, number: int) -> Trial:
    """A second run of another job to the same output, while tasks of the first, killed one are still at work.

    Processes that a run has started die with it; workers that somebody else has started do not. What one of them writes
    after the second run has begun would be seen: the first job multiplies by 3.
    """
    place = new_folder(folder)
    with clusters.cluster(place, 2, before=()) as file:
        workers = {"cluster": {"kind": "scheduler-file", "scheduler_file": str(file), "wait_for": 2}}
        slow = {"seconds": 1.0, "parameters": {"factor": 3.0}, "keys": workers}
        first = Scene(place / "first", sharded=bool(number % 2), place=place, **slow)
        second = Scene(place / "second", sharded=bool(number % 2), kind="threads", place=place)
        command = first.start()
        wait_for_units(first, command, 5)
        command.kill()
        killed = command.wait().code
        begin = time.monotonic()
        done = second.start("--overwrite").wait()
        _until_quiet(first)
        late = sum(when > begin for _, _, when in first.noted())
    wrong = unless(killed == -signal.SIGKILL, f"the first run ended with {killed}")
    wrong += unless(late > 0, "no orphans were at work")
    wrong += unless(done.code == 0, f"the second run ended with {done.code}: {done.text[-300:]}")
    wrong += [f"{cells} cells differ" for cells in [second.wrong() if not done.code else 0] if cells]
    shutil.rmtree(place)
    return Trial("second run beside orphans", tuple(wrong), note=f"({late} tiles of orphans after it had begun)")


def _until_quiet(scene: Scene, seconds: float = 5.0) -> None:
    """Until no tile has been noted for some seconds: a tile takes less."""
    end = time.monotonic() + ORPHANS
    while time.monotonic() < end and time.monotonic() - scene.noted()[-1][2] < seconds:
        time.sleep(0.2)


def two_at_once(folder: Path) -> Trial:
    """A second run while the first one lives: refused, and the first one ends as if nothing had been."""
    scene = Scene(new_folder(folder), kind="threads", seconds=0.05)
    command = scene.start()
    wait_for_units(scene, command, 5)
    second = scene.start("--resume").wait()
    done = command.wait()
    wrong = unless(second.code == 1, f"the second run ended with {second.code}: {second.text[-300:]}")
    wrong += unless("--force-unlock" in second.text, f"the refusal does not name --force-unlock: {second.text[-300:]}")
    wrong += unless(done.code == 0, f"the first run ended with {done.code}: {done.text[-300:]}")
    wrong += [f"{cells} cells differ" for cells in [scene.wrong() if not done.code else 0] if cells]
    wrong += unless(scene.redone() == 0, "tiles were done twice")
    shutil.rmtree(scene.folder)
    return Trial("second run beside a living one", tuple(wrong))
