"""A job to be killed: its files, its processes, what they have done, and whether its output is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

TESTS = Path(__file__).resolve().parent
SHAPE = (3, 63, 59)
#: Cells of a tile along y and x: 16 x 15 tiles, the last of each axis ragged.
TILE = 4
TILES = 16 * 15
#: Seconds after which a command is taken to hang.
PATIENCE = 240.0
#: A tile whose input is all NaN, so that its chunks of `copy` and `total` hold nothing but the fill value.
ALL_FILL = (5, 7)


def values() -> np.ndarray[Any, Any]:
    """A number of its own in every cell, but for one tile of NaN."""
    x = np.arange(1, 1 + np.prod(SHAPE), dtype="float32").reshape(SHAPE)
    y0, x0 = (TILE * n for n in ALL_FILL)
    x[:, y0 : y0 + TILE, x0 : x0 + TILE] = np.nan
    return x


def number_of(row: int, column: int) -> int:
    """Number of the tile in that row and column of the grid."""
    return row * 15 + column


def first_value(number: int) -> float:
    """First value of a tile, by which the log names it."""
    row, column = divmod(number, 15)
    return float(1 + row * TILE * SHAPE[2] + column * TILE)


@dataclass(frozen=True)
class Scene:
    """A job in a folder of its own.

    Attributes
    ----------
    folder
        Where the job file and the log lie, and all else unless `place` is given.
    kind, workers, sharded
        Of the cluster and of the output.
    seconds
        That each tile takes.
    kernel, parameters
        A class of `chaos_kernels`, and more of its parameters.
    keys
        More keys of the job.
    place
        Where the output and its sidecar lie.
    """

    folder: Path
    kind: str = "processes"
    workers: int = 2
    sharded: bool = False
    seconds: float = 0.0
    kernel: str = "Logged"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    place: Path | None = None

    @property
    def output(self) -> Path:
        return (self.place or self.folder) / "out.zarr"

    @property
    def sidecar(self) -> Path:
        return self.output.with_name("out.zarr.tilewise")

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def write(self) -> Path:
        """Input and job file; the job file's path. JSON is YAML."""
        self.folder.mkdir(parents=True, exist_ok=True)
        source = self.folder / "in.zarr"
        if not source.exists():
            group = zarr.create_group(source)
            chunks = (SHAPE[0], 8, 8)
            x = group.create_array("v", shape=SHAPE, chunks=chunks, dtype="float32", dimension_names=("band", "y", "x"))
            x[...] = values()
        cut = TILE // 2 if self.sharded else TILE
        output: dict[str, Any] = {"store": str(self.output), "chunks": {"y": cut, "x": cut}}
        if self.sharded:
            output["shards"] = {"y": TILE, "x": TILE}
        kernel = {"name": f"chaos_kernels:{self.kernel}", "dim": "band", "log": str(self.log)}
        job = {
            "kernel": {**kernel, "seconds": self.seconds, **self.parameters},
            "inputs": {"x": {"store": str(source), "variable": "v"}},
            "output": output,
            "tile": {"y": TILE, "x": TILE},
            "cluster": {"kind": self.kind, "workers": self.workers},
            "memory_limit": "3 GiB",
            **self.keys,
        }
        path = self.folder / "job.yaml"
        path.write_text(json.dumps(job, indent=1))
        return path

    def start(self, *flags: str) -> Command:
        """Begin `tilewise run` with these flags, in a session of its own."""
        return Command.start(self.folder, "run", str(self.write()), "--quiet", *flags)

    def tilewise(self, command: str, *flags: str) -> Done:
        """What a command about the output says, such as `audit` or `info`."""
        return Command.start(self.folder, command, str(self.output), *flags).wait()

    def written(self) -> int:
        """Write units of `copy` that are there."""
        return sum(
            not name.endswith(".partial") for _, _, names in os.walk(self.output / "copy" / "c") for name in names
        )

    def partials(self) -> list[str]:
        """Files that a kill has left half written."""
        return [str(path) for path in self.output.rglob("*.partial*")]

    def noted(self) -> list[tuple[int, str, float]]:
        """What the log says of each tile that was computed: process, first value, time."""
        if not self.log.exists():
            return []
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(int(pid), key, float(when)) for pid, key, when in lines]

    def redone(self) -> int:
        """Tiles that were computed more than once, once for each time."""
        return sum(count - 1 for count in Counter(key for _, key, _ in self.noted()).values())

    def block(self) -> int:
        """Tiles that one task does."""
        return int(json.loads((self.sidecar / "plan.json").read_text())["block"])

    def states(self) -> dict[int, int]:
        """Tiles by their state in the ledger."""
        found = Counter(np.asarray(zarr.open_group(self.sidecar / "ledger.zarr", mode="r")["state"][...]).ravel())
        return {int(state): count for state, count in found.items()}

    def wrong(self, *, factor: float = 1.0, without: int | None = None) -> int:
        """Cells that are not, bit for bit, what numpy says; those of the tile `without` have to be fill values."""
        copy = values() * np.float32(factor)
        total = copy[0] + copy[1] + copy[2]
        status = np.where(np.isfinite(total), 0, 7).astype("uint8")
        if without is not None:
            row, column = divmod(without, 15)
            box = tuple(slice(TILE * n, TILE * n + TILE) for n in (row, column))
            copy[(slice(None), *box)], total[box], status[box] = np.nan, np.nan, 255
        group = zarr.open_group(self.output, mode="r")
        count = 0
        for name, expected in {"copy": copy, "total": total, "status": status}.items():
            found = np.asarray(group[name][...])
            equal = (found == expected) | (np.isnan(found) & np.isnan(expected))
            count += int(np.count_nonzero(~equal))
        return count


def differs(one: Scene, other: Scene) -> list[str]:
    """Arrays of two outputs that differ in a bit, or in which write units are there."""
    names = sorted(path.name for path in one.output.iterdir() if path.is_dir())
    if names != sorted(path.name for path in other.output.iterdir() if path.is_dir()):
        return ["other arrays"]
    first, second = (zarr.open_group(scene.output, mode="r") for scene in (one, other))
    return [n for n in names if _bytes(first[n]) != _bytes(second[n])] + [
        f"units of {n}" for n in names if _units(one.output / n) != _units(other.output / n)
    ]


def _bytes(array: Any) -> bytes:
    return np.asarray(array[...]).tobytes()


def _units(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit code (negative: the signal), and what it said."""

    code: int
    text: str
    seconds: float


@dataclass(frozen=True)
class Command:
    """A command at work, with the session of its processes: those that outlive it are found by it."""

    process: subprocess.Popen[bytes]
    said: Path
    begin: float

    @classmethod
    def start(cls, folder: Path, *arguments: str) -> Command:
        said = folder / f"said-{time.monotonic_ns()}.txt"
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tilewise.cli", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        return cls(process, said, time.monotonic())

    def wait(self, patience: float = PATIENCE) -> Done:
        """Wait for the command itself; what hangs is killed, and has the exit code of that."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill_all()
            code = self.process.wait()
        return Done(code, self.said.read_text(errors="replace"), time.monotonic() - self.begin)

    def others(self) -> list[int]:
        """Processes of the session, without the command itself and those that are dead already."""
        return [pid for pid in _session(self.process.pid) if pid != self.process.pid]

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send the command itself a signal."""
        self.process.send_signal(signum)

    def kill_all(self) -> None:
        """SIGKILL the command and every process that it has started."""
        for pid in _session(self.process.pid):
            kill(pid)

    def outlived(self, patience: float) -> int:
        """Processes that are still there after so many seconds; they are killed then."""
        end = time.monotonic() + patience
        while self.others() and time.monotonic() < end:
            time.sleep(0.1)
        left = self.others()
        for pid in left:
            kill(pid)
        return len(left)


def kill(pid: int) -> None:
    """SIGKILL a process that may have gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has gone meanwhile
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def wait_for_units(scene: Scene, command: Command, count: int) -> int:
    """Wait until so many write units are there, or the command has ended; how many there are."""
    end = time.monotonic() + PATIENCE
    while (found := scene.written()) < count and command.process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return found
