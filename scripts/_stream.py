"""A cube to stream, made once: shared by the benchmarks that run from store to store."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import zarr

BANDS, UNKNOWNS = 50, 20


def folder() -> Path:
    """Where benchmark data lies: TILEWISE_BENCH, or a folder of the system's temporary one."""
    path = Path(os.environ.get("TILEWISE_BENCH") or Path(tempfile.gettempdir()) / "tilewise-bench")
    path.mkdir(parents=True, exist_ok=True)
    return path


def library() -> str:
    """Design matrix A (band, unknown) of random numbers."""
    path = folder() / "library.zarr"
    design = np.random.default_rng(1).standard_normal((BANDS, UNKNOWNS)).astype("float32")
    group = zarr.create_group(path, overwrite=True)
    group.create_array("A", data=design, dimension_names=("band", "unknown"))
    return str(path)


def cube(size: int, chunk: int = 250, codec: str = "zstd") -> str:
    """Cube b (band, y, x) of float32 with `size` rows and 2000 columns.

    Every chunk holds one of eight blocks of random numbers with two decimals; equal ones are hard links of one
    file, so that a store far larger than memory is made in seconds and read like any other.
    """
    path = folder() / f"cube-{size}-{chunk}-{codec}.zarr"
    if (path / "done").exists():
        return str(path)
    group = zarr.create_group(path, overwrite=True)
    compressors = None if codec == "none" else ({"name": codec, "configuration": {}},)
    array = group.create_array(
        "b",
        shape=(BANDS, size, 2000),
        chunks=(BANDS, chunk, chunk),
        dtype="float32",
        compressors=compressors,
        dimension_names=("band", "y", "x"),
    )
    rng = np.random.default_rng(0)
    rows, columns = size // chunk, 2000 // chunk
    places = [(r, c) for r in range(rows) for c in range(columns)]
    for r, c in places[:8]:
        block = rng.standard_normal((BANDS, chunk, chunk), dtype="float32").round(2)
        array[:, r * chunk : (r + 1) * chunk, c * chunk : (c + 1) * chunk] = block
    for number, (r, c) in enumerate(places[8:]):
        target = path / "b" / "c" / "0" / str(r) / str(c)
        target.parent.mkdir(parents=True, exist_ok=True)
        r0, c0 = places[number % 8]
        os.link(path / "b" / "c" / "0" / str(r0) / str(c0), target)
    (path / "done").touch()
    return str(path)


def spread(values: Sequence[float], form: Callable[[float], str] = "{:.2f}".format) -> str:
    """Median with the range beside it."""
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def log(text: str) -> None:
    """Progress of a benchmark, on stderr."""
    print(text, file=sys.stderr, flush=True)
