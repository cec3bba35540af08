"""Gaps, weights and constraints against the loop over pixels that people write, on one thread, in float64.

The loop calls numpy's `lstsq` on the rows that a pixel has, or scipy's `nnls`, for some of the pixels; its time is
multiplied up to all of them. We are called through the kernel as a tile of a job is. Both take turns within a run.

    python scripts/bench_numerics.py [--rounds 5] [--only gaps,weights,patterns,nnls,fcls,store]

Data of `nnls` and `fcls` are read from the folder `../shared/data` beside the repository, and left out without it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.optimize
import torch
import zarr
from threadpoolctl import threadpool_limits

import _gaps
import _stream
import tilewise
from _bench import alternated, ratios
from tilewise.fields import FieldSpec
from tilewise.kernels.declaration import checked_signature
from tilewise.linalg.layout import arrange, one_thread
from tilewise.session import compute_tile

Array = np.ndarray[Any, Any]
Fields = Mapping[str, tuple[tuple[str, ...], Array]]

EQUATIONS, UNKNOWNS, SIDE = 50, 6, 250
#: Pixels that the loop over numpy's lstsq is given.
LOOP_PIXELS = 500
#: Weight of the row that makes a sum of one in the augmented system, beside endmembers of size 1.
HEAVY = 1e3
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Tile:
    """A kernel on one tile in memory, with the outputs that it fills."""

    kernel: tilewise.Kernel
    fields: Fields
    outputs: dict[str, Array]

    @classmethod
    def of(cls, kernel: tilewise.Kernel, fields: Fields) -> Tile:
        """The tile as it is read, contiguous, with outputs whose pages are all there."""
        fields = {name: (dims, np.ascontiguousarray(data)) for name, (dims, data) in fields.items()}
        signature = checked_signature(kernel, _specs(fields))
        return cls(kernel, fields, {out.name: np.ones(out.shape, out.dtype) for out in signature.outputs})

    def compute(self) -> None:
        """Everything that a tile costs but reading and writing, and what is shared prepared anew."""
        specs = _specs(self.fields)
        signature = checked_signature(self.kernel, specs)
        boxes = {name: np.ascontiguousarray(data, signature.reads[name]) for name, (_, data) in self.fields.items()}
        shared = {
            name: arrange(torch.from_numpy(boxes.pop(name)), specs[name].dims, signature.core[name], ())
            for name in signature.shared
        }
        with torch.inference_mode(), one_thread():
            state = self.kernel.prepare(shared)
        compute_tile(self.kernel, signature, state, boxes, self.outputs, panel=self.kernel.panel(signature))


def _specs(fields: Fields) -> dict[str, FieldSpec]:
    return {name: FieldSpec(name, dims, data.shape, str(data.dtype)) for name, (dims, data) in fields.items()}


@dataclass(frozen=True)
class Case:
    """A tile, the loop over its first `pixels` pixels, and the least ratio that is wanted.

    `agree` is given the solutions (unknown, pixel) of those pixels by the loop and by the tile, and says in words how
    far they agree.
    """

    name: str
    tile: Tile
    loop: Callable[[int], Array]
    pixels: int
    target: float
    agree: Callable[[Array, Array], str]


def difference(theirs: Array, ours: Array) -> str:
    """The largest difference, relative to the largest unknown of its pixel."""
    worst = np.abs(ours - theirs).max(0) / np.abs(theirs).max(0)
    return f"largest difference {worst.max():.1e} of a pixel's largest unknown"


def supports(theirs: Array, ours: Array) -> str:
    """How many pixels have the same positive unknowns, beside the difference."""
    other = ((theirs > 0) != (ours > 0)).any(0).sum()
    return f"{other} of {theirs.shape[1]} supports differ, {difference(theirs, ours)}"


def least_squares(name: str, target: float, there: Array | None, weighted: bool, rng: np.random.Generator) -> Case:
    """Rows that are missing where `there` is false, or weights of each pixel's own."""
    A = rng.standard_normal((EQUATIONS, UNKNOWNS))
    b = rng.standard_normal((EQUATIONS, SIDE, SIDE))
    fields: dict[str, Any] = {"A": (("date", "term"), A), "b": (("date", "y", "x"), b)}
    if there is not None:
        b[~there] = np.nan
    if weighted:
        fields["weights"] = (("date", "y", "x"), rng.uniform(0.1, 10, b.shape))
    kernel = tilewise.Lstsq(dim="date", nan_policy="propagate" if weighted else "omit")
    columns = b.reshape(EQUATIONS, -1)
    roots = np.sqrt(fields["weights"][1].reshape(EQUATIONS, -1)) if weighted else None

    def loop(pixels: int) -> Array:
        found = np.empty((UNKNOWNS, pixels))
        for pixel in range(pixels):
            y = columns[:, pixel]
            if roots is not None:
                w = roots[:, pixel]
                found[:, pixel] = np.linalg.lstsq(A * w[:, None], y * w, rcond=None)[0]
            else:
                ok = np.isfinite(y)
                found[:, pixel] = np.linalg.lstsq(A[ok], y[ok], rcond=None)[0]
        return found

    return Case(name, Tile.of(kernel, fields), loop, LOOP_PIXELS, target, difference)


def unmixing(name: str, target: float, M: Array, Y: Array, sum_to_one: bool) -> Case:
    """Endmembers M (band, member) and pixels Y (band, pixel)."""
    kernel = tilewise.Nnls(dim="band", sum_to_one=sum_to_one)
    tile = Tile.of(kernel, {"A": (("band", "member"), M), "b": (("band", "pixel"), Y)})
    augmented = np.vstack([M, np.full((1, M.shape[1]), HEAVY)]) if sum_to_one else M

    def loop(pixels: int) -> Array:
        found = np.empty((M.shape[1], pixels))
        for pixel in range(pixels):
            y = np.append(Y[:, pixel], HEAVY) if sum_to_one else Y[:, pixel]
            found[:, pixel] = scipy.optimize.nnls(augmented, y)[0]
        return found

    return Case(name, tile, loop, Y.shape[1], target, supports)


def jasper() -> Case:
    """198 bands, 4 endmembers, 10 000 pixels."""
    folder = DATA / "unmix_jasper"
    Y = scipy.io.loadmat(folder / "jasperRidge2_R198.mat")["Y"] / 5000.0
    M = scipy.io.loadmat(folder / "end4.mat")["M"].astype(float)
    return unmixing("NNLS, Jasper 198 x 4", 20, M, Y, False)


def samson() -> Case:
    """156 bands, 3 endmembers, 9025 pixels."""
    scene = scipy.io.loadmat(DATA / "unmix_samson" / "samson_dataset.mat")
    return unmixing("FCLS, Samson 156 x 3", 20, scene["M"].astype(float), scene["Y"].astype(float), True)


def cases(wanted: set[str]) -> Iterator[Case]:
    """The cases that are wanted and whose data are there, one after the other."""
    rng, shape = np.random.default_rng(4), (EQUATIONS, SIDE, SIDE)
    if "gaps" in wanted:
        there = _gaps.at_random(rng, shape, 0.2)
        yield least_squares("20 % random gaps, 50 x 6", 15, there, False, rng)
    if "weights" in wanted:
        yield least_squares("weights of each pixel, 50 x 6", 15, None, True, rng)
    if "patterns" in wanted:
        there = _gaps.by_block(rng, shape, (25, 50), 50, 0.2)
        yield least_squares("50 gap patterns, 50 x 6", 40, there, False, rng)
    for key, make in (("nnls", jasper), ("fcls", samson)):
        if key in wanted and DATA.exists():
            yield make()
        elif key in wanted:
            print(f"{key}: left out, {DATA} is not there")


def measured(case: Case, rounds: int) -> str:
    """One line of what was measured."""
    all_pixels = int(np.prod(case.tile.outputs["status"].shape))
    times = alternated({"ours": case.tile.compute, "loop": lambda: case.loop(case.pixels)}, rounds)
    whole = [seconds * all_pixels / case.pixels for seconds in times["loop"]]
    median, low, high = ratios(whole, times["ours"])
    ours = case.tile.outputs["solution"].reshape(-1, all_pixels)[:, : case.pixels]
    share = "" if case.pixels == all_pixels else f" from {case.pixels}"
    return (
        f"{case.name}, {all_pixels} pixels: {median:.1f} times [{low:.1f}, {high:.1f}] as fast, wanted {case.target:g};"
        f" ours {statistics.median(times['ours']):.3f} s, loop {statistics.median(whole):.2f} s{share};"
        f" {case.agree(case.loop(case.pixels), ours)}"
    )


# Store to store


def store(name: str, patterns: int | None, rows: int, columns: int) -> str:
    """A stack (date, y, x) of float32 in chunks of 250 by 250, gap-free or with so many patterns in blocks of 125."""
    path = _stream.folder() / f"numerics-{name}-{rows}.zarr"
    if (path / "done").exists():
        return str(path)
    rng = np.random.default_rng(5)
    group = zarr.create_group(path, overwrite=True)
    group.create_array("A", data=rng.standard_normal((EQUATIONS, UNKNOWNS)), dimension_names=("date", "term"))
    shape = (EQUATIONS, rows, columns)
    chunks, dims = (EQUATIONS, 250, 250), ("date", "y", "x")
    b = group.create_array("b", shape=shape, chunks=chunks, dtype="float32", dimension_names=dims)
    there = _gaps.by_block(rng, shape, (125, 125), patterns, 0.2) if patterns else None
    for row in range(0, rows, 250):
        strip = rng.standard_normal((EQUATIONS, 250, columns), np.float32).round(2)
        if there is not None:
            strip[~there[:, row : row + 250]] = np.nan
        b[:, row : row + 250] = strip
    (path / "done").touch()
    return str(path)


def store_to_store(rounds: int, rows: int, columns: int = 2000) -> str:
    """Time of the same job on a store with 50 patterns of gaps and on one without."""
    stores = {"gap-free": store("full", None, rows, columns), "50 patterns": store("patterns", 50, rows, columns)}
    times: dict[str, list[float]] = {name: [] for name in stores}
    output = _stream.folder() / "numerics-out.zarr"
    for number in range(rounds + 1):
        for name, path in stores.items():
            job = tilewise.Job(
                kernel=tilewise.Lstsq(dim="date", nan_policy="omit"),
                inputs={"A": path, "b": path},
                output=str(output),
                cluster=tilewise.Cluster(kind="threads", workers=1),
                memory_limit="4 GiB",
            )
            report = tilewise.run(job, overwrite=True)
            if number:  # the first round warms up
                times[name].append(report.seconds)
    shutil.rmtree(output)
    median, low, high = ratios(times["50 patterns"], times["gap-free"])
    gigabytes = EQUATIONS * rows * columns * 4 / 1e9
    return (
        f"store to store, {gigabytes:.1f} GB of float32, one worker: 50 gap patterns take {median:.2f} times"
        f" [{low:.2f}, {high:.2f}] as long as none, wanted at most 2; {statistics.median(times['50 patterns']):.2f} s"
        f" and {statistics.median(times['gap-free']):.2f} s"
    )


def main() -> None:
    """Print the measurements that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="alternated rounds after one that warms up (default 5)")
    parser.add_argument("--only", default="gaps,weights,patterns,nnls,fcls,store", help="some of the measurements")
    parser.add_argument("--rows", type=int, default=1250, help="rows of 2000 pixels in the stores (1250 are 500 MB)")
    options = parser.parse_args()
    wanted = set(options.only.split(","))
    lines = []
    with threadpool_limits(1), one_thread():
        for case in cases(wanted):
            lines.append(measured(case, options.rounds))
            _stream.log(lines[-1])
    if "store" in wanted:
        lines.append(store_to_store(options.rounds, options.rows))
    print(f"against the loop over pixels, float64, one thread, medians of {options.rounds} alternated rounds [range]:")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
