"""What became of one trial of scripts/chaos.py, and the table of them all."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import clusters
from chaos_scenes import Scene, differs

__all__ = ["KINDS", "References", "Trial", "clusters", "new_folder", "said", "table", "unless"]

KINDS = ("processes", "local")


@dataclass(frozen=True)
class Trial:
    """One trial: its part, what is wrong, and tiles redone against how many may be; None where that is not asked."""

    part: str
    wrong: tuple[str, ...] = ()
    redone: int | None = None
    bound: int | None = None
    note: str = ""


def said(trial: Trial) -> Trial:
    """Tell of a trial on standard error, and hand it on."""
    redone = "" if trial.redone is None else f", {trial.redone} tiles redone of at most {trial.bound}"
    verdict = "; ".join(trial.wrong).replace("\n", " | ") or "as it should be"
    print(f"{trial.part}{redone}: {verdict} {trial.note}".rstrip(), file=sys.stderr, flush=True)
    return trial


def table(trials: Sequence[Trial]) -> list[str]:
    """A line for each part."""
    lines = []
    for part in dict.fromkeys(trial.part for trial in trials):
        own = [trial for trial in trials if trial.part == part]
        good = sum(not trial.wrong for trial in own)
        line = f"{part:<44} {good:>3} of {len(own)}"
        counts = [trial.redone for trial in own if trial.redone is not None]
        if counts:
            bound = min(trial.bound for trial in own if trial.bound is not None)
            line += f"; tiles redone: median {statistics.median(counts):g}, max {max(counts)}, least bound {bound}"
        lines.append(line)
    return lines


class References:
    """The undisturbed run of each form of output, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[bool, Scene] = {}

    def of(self, sharded: bool) -> Scene:
        """The scene of an undisturbed run; an output that is not right is no reference."""
        if sharded not in self._made:
            scene = Scene(self._folder / f"reference-{sharded}", kind="threads", sharded=sharded)
            done = scene.start().wait()
            if done.code or scene.wrong():
                raise SystemExit(f"the undisturbed run failed, code {done.code}: {done.text}")
            self._made[sharded] = scene
        return self._made[sharded]

    def compare(self, scene: Scene) -> list[str]:
        """What of an output is not as in the undisturbed run."""
        if not scene.output.exists():
            return ["no output"]
        wrong = [f"{name} differs" for name in differs(scene, self.of(scene.sharded))]
        return wrong + [f"{count} files half written" for count in [len(scene.partials())] if count]


def new_folder(folder: Path) -> Path:
    """A folder of its own for one trial."""
    return Path(tempfile.mkdtemp(dir=folder))


def unless(condition: bool, text: str) -> list[str]:
    """What is wrong unless a condition holds."""
    return [] if condition else [text]
