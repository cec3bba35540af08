"""Inputs of the seed problems, written chunk by chunk: those of configs/points_primitives.yaml and pixel_solve.yaml.

    python scripts/make_seed_data.py [FOLDER] [--size SIZE]

FOLDER is `seed` unless given. SIZE multiplies the number of points, and of rows of pixels: 1 is quick, and 100 is
larger than the memory of most machines. The same size gives the same numbers, whatever was there before is replaced,
and memory does not grow with the size.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

Array = npt.NDArray[Any]

SEED = 7
BATCHES, POINTS, POINT_CHUNK, PRIMITIVES, PARAMETERS = 2, 8000, 2000, 4000, 7
EQUATIONS, UNKNOWNS, ROWS, COLUMNS, PIXEL_CHUNK = 50, 100, 500, 500, 125


def make_points(folder: Path, size: int) -> None:
    """points (batch, point, component) in metres of a map grid, primitives (batch, primitive, parameter).

    Columns 0-2 of a primitive scale a point, 3-5 move it: points lie around -offset / scale of some primitive, so
    that small distances between large coordinates are what is asked for.
    """
    points = create(
        folder / "points.zarr",
        "points",
        {"batch": BATCHES, "point": POINTS * size, "component": 3},
        chunks=(1, POINT_CHUNK, 3),
    )
    primitives = create(
        folder / "primitives.zarr",
        "primitives",
        {"batch": BATCHES, "primitive": PRIMITIVES, "parameter": PARAMETERS},
        chunks=(1, PRIMITIVES, PARAMETERS),
    )
    for batch in range(BATCHES):
        rng = np.random.default_rng([SEED, batch])
        centres = rng.uniform([512_000, 5_403_000, 100], [513_000, 5_404_000, 400], (PRIMITIVES, 3))
        scales = rng.choice([0.5, 1.0, 2.0], (PRIMITIVES, 3))
        rest = rng.standard_normal((PRIMITIVES, PARAMETERS - 6))
        primitives[batch] = np.concatenate([scales, -scales * centres, rest], axis=1).astype("float32")
        for start in range(0, POINTS * size, POINT_CHUNK):
            rng = np.random.default_rng([SEED, batch, start])
            near = centres[rng.integers(0, PRIMITIVES, POINT_CHUNK)]
            points[batch, start : start + POINT_CHUNK] = near + 20 * rng.standard_normal((POINT_CHUNK, 3))


def make_pixels(folder: Path, size: int) -> None:
    """A (equation, unknown) of half the rank that its unknowns would need, b (equation, y, x); standard normal."""
    design = create(folder / "design.zarr", "A", {"equation": EQUATIONS, "unknown": UNKNOWNS})
    design[...] = np.random.default_rng([SEED, 1]).standard_normal((EQUATIONS, UNKNOWNS), dtype="float32")
    chunks = (EQUATIONS, PIXEL_CHUNK, PIXEL_CHUNK)
    pixels = create(folder / "pixels.zarr", "b", {"equation": EQUATIONS, "y": ROWS * size, "x": COLUMNS}, chunks)
    for y in range(0, ROWS * size, PIXEL_CHUNK):
        rng = np.random.default_rng([SEED, 2, y])
        pixels[:, y : y + PIXEL_CHUNK] = rng.standard_normal((EQUATIONS, PIXEL_CHUNK, COLUMNS), dtype="float32")


def create(path: Path, name: str, sizes: dict[str, int], chunks: tuple[int, ...] | None = None) -> zarr.Array[Any]:
    """An empty float32 array in a group of its own."""
    if path.exists():
        shutil.rmtree(path)
    return zarr.create_group(path).create_array(
        name,
        shape=tuple(sizes.values()),
        chunks=chunks or tuple(sizes.values()),
        dtype="float32",
        dimension_names=tuple(sizes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("seed"), metavar="FOLDER")
    parser.add_argument("--size", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.size < 1:
        parser.error("--size is at least 1")
    make_points(arguments.folder, arguments.size)
    make_pixels(arguments.folder, arguments.size)


if __name__ == "__main__":
    main()
