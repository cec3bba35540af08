"""The scene of the demo: displacement of the ground over time, made chunk by chunk, and the check of what is found.

    python scripts/demo_scene.py make FOLDER            writes scene.zarr, design.zarr and truth.zarr
    python scripts/demo_scene.py check FOLDER REPORT    compares fit.zarr with the truth; REPORT is of `tilewise run`

Every pixel moves by an offset, a constant velocity and a yearly cycle, and is observed every twelve days with white
noise: b = A x + e. Bowls subside, hills swell with the seasons. Observations are rounded to a 64th of a millimetre, as
archives round what is below their noise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import ZstdCodec

Array = npt.NDArray[Any]
Box = tuple[slice, slice]

EPOCHS, ROWS, COLUMNS, CHUNK = 150, 2560, 2816, 128
DAYS_BETWEEN = 12
PARAMETERS = {"offset": "mm", "velocity": "mm/year", "cosine": "mm", "sine": "mm"}
NOISE = 2.0  # standard deviation, mm
STEP = 2.0**-6  # of the rounded observations, mm
SEED = 20260101
#: Whatever changes the scene changes this: a scene that was made by another recipe is made anew.
RECIPE = [3, EPOCHS, ROWS, COLUMNS, CHUNK, DAYS_BETWEEN, NOISE, STEP, SEED]


def design() -> Array:
    """A (time, parameter) of the model, as stored: 1, years, and the cosine and sine of the year, in float32."""
    years = np.arange(EPOCHS) * DAYS_BETWEEN / 365.25
    columns = [np.ones(EPOCHS), years, np.cos(2 * np.pi * years), np.sin(2 * np.pi * years)]
    return np.stack(columns, axis=1).astype("float32")


def truth(box: Box) -> Array:
    """x (parameter, y, x) of a box, in float32."""
    y, x = (np.arange(s.start, s.stop) / CHUNK for s in box)
    y, x = y[:, None], x[None, :]

    def bowl(row: float, column: float, width: float) -> Array:
        return np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * width**2))

    hills = np.cos(0.9 * y + 0.3) * np.cos(0.7 * x) + 0.5 * np.sin(1.9 * x - 1.1 * y)
    velocity = -38 * bowl(5, 6, 1.2) - 24 * bowl(11, 12, 2.1) - 15 * bowl(14, 3, 0.6) + 3 * hills
    parameters = [4 * np.sin(0.2 * x + 0.5 * y), velocity, 5 * hills, 2 * np.cos(0.4 * x - 0.2 * y)]
    return np.stack([np.broadcast_to(p, (y.size, x.size)) for p in parameters]).astype("float32")


def boxes() -> Iterator[Box]:
    for row, column in product(range(0, ROWS, CHUNK), range(0, COLUMNS, CHUNK)):
        yield slice(row, row + CHUNK), slice(column, column + CHUNK)


def make(folder: Path) -> None:
    """Write scene, design and truth, unless they are there whole."""
    if _is_whole(folder):
        _say(f"the scene in {folder} is there already")
        return
    _say(f"making a scene of {4 * EPOCHS * ROWS * COLUMNS / 1e9:.2f} GB in {folder}, once")
    for name in ("scene", "design", "truth"):
        shutil.rmtree(folder / f"{name}.zarr", ignore_errors=True)
    with warnings.catch_warnings():
        # Text labels are not yet in the Zarr v3 specification; zarr and xarray read them.
        warnings.simplefilter("ignore", zarr.errors.UnstableSpecificationWarning)
        _make_design(folder / "design.zarr")
        found = _make_empty(folder / "truth.zarr", "truth", {"parameter": len(PARAMETERS)})
        _label_parameters(zarr.open_group(folder / "truth.zarr"))
        scene = _make_empty(folder / "scene.zarr", "displacement", {"time": EPOCHS})
        _label_time(zarr.open_group(folder / "scene.zarr"))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(partial(_fill, scene, found), range(len(list(boxes()))), boxes()):
            pass
    # Written last: a scene without its recipe was left half made.
    zarr.open_group(folder / "scene.zarr").attrs["recipe"] = RECIPE


def _is_whole(folder: Path) -> bool:
    try:
        scene = zarr.open_group(folder / "scene.zarr", mode="r")
        arrays = (scene["displacement"], zarr.open_array(folder / "truth.zarr" / "truth", mode="r"))
        zarr.open_array(folder / "design.zarr" / "A", mode="r")
    except (FileNotFoundError, KeyError, ValueError):
        return False
    return scene.attrs.get("recipe") == RECIPE and all(a.nchunks_initialized == a.nchunks for a in arrays)


def _make_empty(path: Path, name: str, first: dict[str, int]) -> zarr.Array[Any]:
    group = zarr.create_group(path)
    for dim, size in (("y", ROWS), ("x", COLUMNS)):
        group.create_array(dim, data=40.0 * np.arange(size), dimension_names=[dim], attributes={"units": "m"})
    (dim, size) = next(iter(first.items()))
    return group.create_array(
        name,
        shape=(size, ROWS, COLUMNS),
        chunks=(size, CHUNK, CHUNK),
        dtype="float32",
        compressors=ZstdCodec(level=1),
        dimension_names=[dim, "y", "x"],
        attributes={"units": "mm"} if dim == "time" else {},
    )


def _make_design(path: Path) -> None:
    group = zarr.create_group(path)
    group.create_array("A", data=design(), dimension_names=["time", "parameter"])
    _label_time(group)
    _label_parameters(group)


def _label_time(group: zarr.Group) -> None:
    attributes = {"units": "days since 2021-01-04", "calendar": "standard"}
    days = np.arange(EPOCHS) * DAYS_BETWEEN
    group.create_array("time", data=days, dimension_names=["time"], attributes=attributes)


def _label_parameters(group: zarr.Group) -> None:
    group.create_array("parameter", data=np.array(list(PARAMETERS)), dimension_names=["parameter"])


def _fill(scene: zarr.Array[Any], found: zarr.Array[Any], number: int, box: Box) -> None:
    """Write one chunk of truth and scene; its noise is seeded by its number, whoever makes it."""
    x = truth(box)
    found[(slice(None), *box)] = x
    random = np.random.Generator(np.random.SFC64([SEED, number]))
    observed = random.standard_normal((EPOCHS, x[0].size), dtype="float32")
    observed *= np.float32(NOISE)
    observed += design() @ x.reshape(len(x), -1)
    observed *= np.float32(1 / STEP)
    np.rint(observed, out=observed)
    observed *= np.float32(STEP)
    scene[(slice(None), *box)] = observed.reshape(EPOCHS, *x.shape[1:])


def check(folder: Path, report: dict[str, Any]) -> None:
    """Compare the fit with the truth and with numpy, and print a summary.

    The estimate of a parameter is normally distributed about its true value, with standard deviation
    s_j = NOISE sqrt((A^T A)^-1_jj). Hence, for errors z in units of s_j over N pixels:

    - no |z| exceeds 7: the probability that one does is below 4 N 2.6e-12, 6e-5 here;
    - the mean of z^2 is within 6 sqrt(2 / N) of 1: its standard deviation is at most that of one parameter alone,
      sqrt(2 / N), since those of a pixel are correlated. Rounding by STEP adds STEP^2 / 12 to the variance NOISE^2,
      which is 5e-6 of it.

    On whole chunks spread over the scene the fit equals numpy's float64 least squares within (n + 2) u |P| |b| + u |x|
    for n observations, u = 2^-24 and P the pseudo-inverse: the bound of a product by a P that was rounded to float32,
    whose result is rounded to float32.
    """
    fit = zarr.open_group(folder / "fit.zarr", mode="r")
    scene = zarr.open_array(folder / "scene.zarr" / "displacement", mode="r")
    pixels = ROWS * COLUMNS
    A = design().astype("float64")
    scale = NOISE * np.sqrt(np.diag(np.linalg.inv(A.T @ A)))
    largest, squares = np.zeros(len(scale)), np.zeros(len(scale))
    for box in boxes():
        z = np.abs(fit["solution"][(slice(None), *box)] - truth(box).astype("float64")) / scale[:, None, None]
        largest = np.maximum(largest, z.max(axis=(1, 2)))
        squares += np.square(z).sum(axis=(1, 2))
    spread = squares.sum() / (len(scale) * pixels)
    _require(bool(np.all(largest <= 7)), f"an error is {largest.max():.1f} times its standard deviation")
    _require(abs(spread - 1) <= 6 * math.sqrt(2 / pixels), f"the errors' mean square is {spread:.4f} of the expected")
    _require(report["statuses"] == {"ok": pixels}, f"not every pixel is ok: {report['statuses']}")
    every = len(list(boxes())) // 8
    worst = max(_against_numpy(fit["solution"], scene, box) for box in list(boxes())[::every])
    _require(worst <= 1, f"a solution is {worst:.2f} times the rounding bound away from numpy's")
    _summary(folder, report, float(largest[1] * scale[1]), worst)


def _against_numpy(solution: Any, scene: zarr.Array[Any], box: Box) -> float:
    b = np.asarray(scene[(slice(None), *box)], dtype="float64").reshape(EPOCHS, -1)
    x = np.asarray(solution[(slice(None), *box)], dtype="float64").reshape(len(PARAMETERS), -1)
    A = design().astype("float64")
    expected = np.linalg.lstsq(A, b, rcond=None)[0]
    u = 2.0**-24
    bound = (EPOCHS + 2) * u * (np.abs(np.linalg.pinv(A)) @ np.abs(b)) + u * np.abs(expected)
    return float(np.max(np.abs(x - expected) / bound))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"the demo's check failed: {otherwise}")


def _summary(folder: Path, report: dict[str, Any], velocity: float, worst: float) -> None:
    plan = report["plan"]
    size, budget, seconds = 4 * EPOCHS * ROWS * COLUMNS, plan["memory_limit"], report["seconds"]
    stored = sum(f.stat().st_size for f in (folder / "scene.zarr").rglob("*") if f.is_file())
    _require(size >= 4 * budget, "the scene is smaller than four times the budget")
    rows = {
        "input": f"{size / 1e9:.2f} GB ({stored / 1e9:.2f} GB stored), {size / budget:.1f} times the budget of "
        f"{_mib(budget)} a worker process",
        "time": f"{seconds:.1f} s for {report['tiles']} tiles, {plan['processes'] * plan['slots']} at a time, after "
        f"{report['startup']:.1f} s to start",
        "throughput": f"{size / 1e6 / seconds:.0f} MB/s of input",
        "peak memory": f"{_mib(plan['memory']['peak'])} predicted, {_mib(report['peak'])} measured, a worker process",
        "check": f"{ROWS * COLUMNS} pixels ok, velocities within {velocity:.2f} mm/year of the truth",
        "": f"solutions within {worst:.2f} of the bound of rounding about numpy's float64 ones",
        "output": report["output"],
    }
    print("\n" + "\n".join(f"{name:<12}{text}" for name, text in rows.items()))


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        check(Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
