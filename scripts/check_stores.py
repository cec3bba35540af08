"""What becomes of a run over stores that fail, delay, tear, cut off and reorder, and over an S3 server that is killed.

Each run copies its input through `norm` over two bands, in 256 tiles, and is compared cell by cell with an undisturbed
one. Faults begin once the output has been created, and hit metadata, chunks, reads and writes alike. A run either ends
with the same bits, or names the tile that it could not do, with the reason.

    python scripts/check_stores.py [--seed 0] [--kinds threads,processes] [--parts faults,lasting,s3]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import tilewise
from tilewise import access

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import _lasting_s3
import faulty
from s3_server import CREDENTIALS

Array = np.ndarray[Any, Any]

SIDE, TILE = 128, 8
#: What may pass: chances for each request. All of it is tried again as often as `RETRIES` says.
PASSING: dict[str, dict[str, float]] = {
    "fails": {"fail": 0.03},
    "writes, then fails": {"late": 0.1},
    "writes half": {"torn": 0.1},
    "cuts reads off": {"short": 0.05},
    "delays, reorders": {"delay": 0.1},
    "all of these": {"fail": 0.02, "late": 0.03, "torn": 0.03, "short": 0.03, "delay": 0.05},
}
RETRIES = 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": {"y": TILE, "x": TILE}},
    "shards": {"chunks": {"y": TILE // 2, "x": TILE // 2}, "shards": {"y": TILE, "x": TILE}},
}


@dataclass(frozen=True)
class Found:
    """What became of one run."""

    what: str
    faults: int
    wrong: int
    ending: str
    unnamed: int
    seconds: float

    def __str__(self) -> str:
        """A line of the table."""
        return (
            f"{self.what:<50} {self.faults:>6} {self.wrong:>11} {self.unnamed:>8} {self.seconds:>6.0f} s  {self.ending}"
        )


HEAD = f"{'store, workers, layout':<50} {'faults':>6} {'cells wrong':>11} {'unnamed':>8} {'time':>8}  ending"


def cube(seed: int) -> Array:
    """Numbers without a pattern."""
    return np.random.default_rng(seed).normal(size=(2, SIDE, SIDE)).astype("float32")


def job(source: str, output: str, sidecar: Path, kind: str, layout: str, retries: int = RETRIES) -> tilewise.Job:
    """The job of every run."""
    return tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": source},
        output=tilewise.Output(store=output, **LAYOUTS[layout]),
        sidecar=sidecar,
        tile={"y": TILE, "x": TILE},
        retries=retries,
        cluster=tilewise.Cluster(kind=kind, workers=2),
    )


def run(what: str, this: tilewise.Job, begin: Callable[[], None], local: Callable[[], Array], expected: Array) -> Found:
    """Run a job; `begin` is called once the output is there, and `local` reads what it holds in the end."""
    begun = threading.Event()

    def progress(event: Any) -> None:
        if not begun.is_set():
            begun.set()
            begin()

    clock = time.monotonic()
    try:
        tilewise.run(this, progress=progress)
    except tilewise.TilewiseError as error:
        named = "tile " in str(error) and ("input 'x'" in str(error) or "out" in str(error) or "space" in str(error))
        kept = local()
        wrong = int(np.count_nonzero(~np.isnan(kept) & (kept != expected)))
        ending = f"{type(error).__name__}: {error}"
        return Found(what, 0, wrong, ending[:220], int(not named), time.monotonic() - clock)
    wrong = int(np.count_nonzero(local() != expected))  # what cannot be read is NaN, and wrong
    return Found(what, 0, wrong, "done", 0, time.monotonic() - clock)


def norm_of(folder: Path) -> Array:
    """The output of a run, read by zarr alone from local files."""
    return np.asarray(zarr.open_array(folder, path="norm", mode="r")[...])


def readable(folder: Path) -> Array:
    """The same of a run that has ended early: what cannot be decoded was not done, and is NaN here."""
    array = zarr.open_array(folder, path="norm", mode="r")
    found = np.full(array.shape, np.nan, dtype=array.dtype)
    for y in range(0, SIDE, TILE):
        for x in range(0, SIDE, TILE):
            box = (slice(y, y + TILE), slice(x, x + TILE))
            with suppress(RuntimeError, ValueError, OSError):
                found[box] = array[box]
    return found


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment of this process and those that it starts."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def disturbed(what: str, folder: Path, kind: str, layout: str, retries: int, options: dict[str, Any]) -> Found:
    """A run between stores with faults; its input is in `folder` already."""
    log = folder / "faults"
    shutil.rmtree(folder / "out.zarr", ignore_errors=True)
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir()
    given = {"folder": str(log), **options}
    this = job(faulty.url(folder / "in.zarr"), faulty.url(folder / "out.zarr"), folder / "side", kind, layout, retries)
    with environment(faulty.environment(folder, **given)), faulty.faults(**given):
        found = run(
            f"{what}, {kind}, {layout}",
            this,
            begin=lambda: (log / "on").touch(),
            local=lambda: readable(folder / "out.zarr"),
            expected=norm_of(folder / "expected.zarr"),
        )
    happened = Counter((log / "log").read_text().split() if (log / "log").exists() else ())
    return Found(found.what, happened.total(), found.wrong, found.ending, found.unnamed, found.seconds)


def prepared(folder: Path, seed: int) -> None:
    """The input, and what an undisturbed run makes of it."""
    array = zarr.create_group(folder / "in.zarr").create_array(
        "x", shape=(2, SIDE, SIDE), chunks=(2, TILE, TILE), dtype="float32", dimension_names=("band", "y", "x")
    )
    array[...] = cube(seed)
    tilewise.run(job(str(folder / "in.zarr"), str(folder / "expected.zarr"), folder / "side", "threads", "chunks"))


def cut_off(folder: Path) -> None:
    """Cut off one chunk of the input for good."""
    chunk = folder / "in.zarr" / "x" / "c" / "0" / "5" / "5"
    chunk.write_bytes(chunk.read_bytes()[:-7])


def s3_run(scheme: str, port: int, folder: Path, kind: str, layout: str, seed: int) -> Found:
    """A run from S3 to S3 whose server is killed three times."""
    dice = random.Random(seed)
    with _lasting_s3.serve(folder, port) as server, environment(s3_environment(server.url)):
        server.make_bucket("bucket")
        copy(folder / "in.zarr", f"{scheme}://bucket/in.zarr")
        done = threading.Event()

        def kills() -> None:
            for _ in range(3):
                if done.wait(dice.uniform(0.3, 1.0)):
                    return
                server.restart(dice.uniform(0.5, 3.0))
                killed.append(1)

        killed: list[int] = []
        thread = threading.Thread(target=kills)
        try:
            found = run(
                f"{scheme} server killed, {kind}, {layout}",
                job(f"{scheme}://bucket/in.zarr", f"{scheme}://bucket/out.zarr", folder / "side", kind, layout),
                begin=thread.start,
                local=lambda: ended(done, thread, f"{scheme}://bucket/out.zarr"),
                expected=norm_of(folder / "expected.zarr"),
            )
        finally:
            done.set()
    return Found(found.what, len(killed), found.wrong, found.ending, found.unnamed, found.seconds)


def free_port() -> int:
    """A port that nobody has: one for all servers, since s3fs remembers where it found the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ended(done: threading.Event, thread: threading.Thread, store: str) -> Array:
    """What a store holds once its server is no longer killed."""
    done.set()
    thread.join()
    return np.asarray(zarr.open_array(access.zarr_store(store, read_only=True), path="norm", mode="r")[...])


def copy(source: Path, store: str) -> None:
    """Copy a local store to S3 as it is."""
    to = access.zarr_store(store, read_only=False)
    for file in source.rglob("*"):
        if file.is_file():
            value = default_buffer_prototype().buffer.from_bytes(file.read_bytes())
            sync(to.set(str(file.relative_to(source)), value))


def s3_environment(url: str) -> dict[str, str]:
    """What s3fs and obstore need to find the server."""
    return {
        **CREDENTIALS,
        "AWS_DEFAULT_REGION": CREDENTIALS["AWS_REGION"],
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="threads,processes")
    parser.add_argument("--parts", default="faults,lasting,s3")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    kinds, parts = options.kinds.split(","), options.parts.split(",")
    rows: list[Found] = []

    def add(found: Found) -> None:
        print(found, flush=True)
        rows.append(found)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.path.append(str(folder / "plugin"))  # processes that are spawned take over the path
        prepared(folder, options.seed)
        for number, kind in enumerate(kinds):
            layouts = list(LAYOUTS)
            for again, (what, chances) in enumerate(PASSING.items() if "faults" in parts else ()):
                layout = layouts[(number + again) % 2]
                add(disturbed(what, folder, kind, layout, RETRIES, {**chances, "seed": options.seed}))
        port = free_port()
        for scheme in ("s3", "obstore+s3") if "s3" in parts else ():
            for number, kind in enumerate(kinds):
                where = folder / f"{scheme}-{kind}"
                shutil.copytree(folder / "in.zarr", where / "in.zarr")
                shutil.copytree(folder / "expected.zarr", where / "expected.zarr")
                add(s3_run(scheme, port, where, kind, list(LAYOUTS)[number % 2], options.seed))
        if "lasting" in parts:
            add(disturbed("stays away", folder, kinds[0], "chunks", 1, {"fail": 1.0}))
            add(disturbed("has no space", folder, kinds[-1], "chunks", 3, {"room": 20}))
            cut_off(folder)
            add(disturbed("has a chunk cut off", folder, kinds[-1], "shards", 2, {}))
    print("\n" + HEAD)
    for row in rows:
        print(row)
    print(
        f"{len(rows)} runs: {sum(r.wrong for r in rows)} cells wrong, {sum(r.unnamed for r in rows)} failures unnamed"
    )


if __name__ == "__main__":
    main()
