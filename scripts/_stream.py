"""A cube to stream, made once: shared by the benchmarks that run from store to store."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

BANDS, UNKNOWNS = 50, 20
COLUMNS, CHUNK = 2000, 250
#: The output that counts, by kernel.
RESULTS = {"lstsq": "solution", "norm": "norm"}
TITLES = {
    "tilewise": "tilewise",
    "bare": "bare loop",
    "settled": "bare loop with our allocator",
    "floor": "decode, then encode",
    "dask": "xarray + dask",
    "cubed": "cubed",
}


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


def cube(size: int, chunk: int = CHUNK, codec: str = "zstd") -> str:
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
        shape=(BANDS, size, COLUMNS),
        chunks=(BANDS, chunk, chunk),
        dtype="float32",
        compressors=compressors,
        dimension_names=("band", "y", "x"),
    )
    rng = np.random.default_rng(0)
    rows, columns = size // chunk, COLUMNS // chunk
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


@dataclass(frozen=True)
class Setup:
    """One run of one contender: what it computes, from where to where, by which of its ways and tiles.

    `way` is its kind of workers, or how the bare loop computes; `tile` is in rows and columns.
    """

    peer: str
    kernel: str
    codec: str
    source: str
    library: str
    output: str
    cores: int
    way: str = ""
    tile: tuple[int, int] = (250, 250)

    @property
    def title(self) -> str:
        """What it is called in a table."""
        name = TITLES[self.peer]
        return name if self.peer in ("settled", "floor") else f"{name}, {self.way}"

    @property
    def result(self) -> str:
        """Name of the output that counts."""
        return RESULTS[self.kernel]

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of the result, those of the cube's own pixels."""
        return (UNKNOWNS, CHUNK, CHUNK) if self.kernel == "lstsq" else (CHUNK, CHUNK)

    @property
    def compressors(self) -> tuple[dict[str, Any], ...]:
        """Codecs of the outputs, as Zarr v3 writes them: one for all contenders."""
        return compressors(self.codec)


def compressors(codec: str) -> tuple[dict[str, Any], ...]:
    """The zstd that tilewise writes by default, or nothing."""
    if codec == "none":
        return ()
    return ({"name": codec, "configuration": {"level": 0, "checksum": True}},)


def gigabytes(rows: int) -> float:
    """Decoded size of the cube."""
    return BANDS * rows * COLUMNS * 4 / 1e9


def check(setup: Setup) -> None:
    """Compare the first and the last chunk of a result with numpy's in float64.

    The bound is loose: it tells a result from none, or from that of another chunk; tests are what proves digits.
    """
    cube = zarr.open_array(setup.source, path="b", mode="r")
    result = zarr.open_array(setup.output, path=setup.result, mode="r")
    rows, columns = cube.shape[1:]
    for box in ((slice(0, CHUNK), slice(0, CHUNK)), (slice(rows - CHUNK, rows), slice(columns - CHUNK, columns))):
        b = np.asarray(cube[(slice(None), *box)], "float64")
        found = np.asarray(result[(..., *box)])
        if not np.allclose(found, expected(setup, b), rtol=1e-4, atol=1e-5):
            raise SystemExit(f"{setup.title}: the result of {setup.kernel} is wrong in {box}")


def expected(setup: Setup, b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a kernel makes of a box (band, y, x), by numpy."""
    if setup.kernel == "norm":
        return np.asarray(np.linalg.norm(b, axis=0))
    design = np.asarray(zarr.open_array(setup.library, path="A", mode="r")[...], "float64")
    return np.asarray(np.tensordot(np.linalg.pinv(design), b, axes=1))
