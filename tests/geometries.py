"""Random geometries of a job, and a kernel that copies, so that every cell that is lost is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import tilewise
from tilewise.clients import reach
from tilewise.engine import run_program
from tilewise.fields import FieldSpec, OutputSpec, TileGrid, result_dtype
from tilewise.kernels.base import Kernel, Signature
from tilewise.opened import forget
from tilewise.program import Program
from tilewise.store import create
from tilewise.surveys import survey

#: Write units of one array at most, so that a geometry takes a fraction of a second.
MOST_UNITS = 120
MOST_CELLS = 20_000


@dataclass(frozen=True, kw_only=True)
class Copies(Kernel, name="test_copies"):
    """Outputs `copy`, x itself with its core dimensions; `first`, its first component; and `code`, a small integer."""

    core: tuple[str, ...] = ()
    input_sets = (("x",),)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        dtype = result_dtype([x.dtype])
        outputs = [
            OutputSpec("copy", self.core, tuple(x.sizes[dim] for dim in self.core), dtype),
            OutputSpec("first", (), (), dtype),
            OutputSpec("code", (), (), "uint8", fill=255),
        ]
        return Signature.of(fields, core={"x": self.core}, outputs=outputs)

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        x = fields["x"]
        first = x[(0,) * len(self.core)]
        out["copy"].copy_(x)
        out["first"].copy_(first)
        out["code"].copy_(first % 251)

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        return 8 * math.prod(sizes[dim] for dim in signature.tile_dims)


@dataclass(frozen=True)
class Geometry:
    """An input with its dims, chunks and shards, the core dims of the kernel, and how outputs and tiles are cut."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    core: tuple[str, ...]
    chunks: tuple[int, ...]
    in_shards: tuple[int, ...] | None
    out_chunks: Mapping[str, int]
    out_shards: Mapping[str, int] | None
    tile: Mapping[str, int]
    codec: str

    @property
    def tile_dims(self) -> tuple[str, ...]:
        return tuple(dim for dim in self.dims if dim not in self.core)

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """A number of its own in every cell, none of them the fill value."""
        return np.arange(1, 1 + math.prod(self.shape), dtype="float32").reshape(self.shape)

    def job(self, folder: Path, cluster: tilewise.Cluster) -> tilewise.Job:
        """A job of this geometry; its input is written to the folder."""
        group = zarr.create_group(folder / "in.zarr")
        x = group.create_array(
            "x",
            shape=self.shape,
            chunks=self.chunks,
            shards=self.in_shards,
            dtype="float32",
            dimension_names=self.dims,
        )
        x[...] = self.values
        return tilewise.Job(
            kernel=Copies(core=self.core),
            inputs={"x": str(folder / "in.zarr")},
            output=tilewise.Output(
                store=folder / "out.zarr", chunks=self.out_chunks, shards=self.out_shards, codec=self.codec
            ),
            tile=self.tile or "auto",
            cluster=cluster,
            memory_limit="4 GiB",
        )

    def wrong(self, folder: Path) -> int:
        """Cells of the outputs that are not what they have to be, by numpy alone."""
        x = self.values.transpose([self.dims.index(dim) for dim in (*self.core, *self.tile_dims)])
        first = x[(0,) * len(self.core)]
        expected = {"copy": x, "first": first, "code": (first % 251).astype("uint8")}
        group = zarr.open_group(folder / "out.zarr", mode="r")
        return sum(int(np.count_nonzero(np.asarray(group[n][...]) != want)) for n, want in expected.items())


def random_geometry(rng: np.random.Generator) -> Geometry:
    """A geometry of one to four dimensions, at most one of them a core dimension, of any order."""
    count = int(rng.integers(1, 5))
    while True:
        found = _draw(rng, count)
        if found is not None:
            return found


def _draw(rng: np.random.Generator, count: int) -> Geometry | None:
    dims = tuple("abcd"[:count])
    shape = tuple(int(n) for n in rng.integers(1, {1: 2000, 2: 120, 3: 30, 4: 14}[count], count))
    core = tuple(str(d) for d in rng.choice(dims, int(rng.integers(0, 2)), replace=False))
    chunks = _cut(rng, shape)
    in_shards = _grown(rng, chunks, shape) if rng.random() < 0.3 else None
    tile_dims = [dim for dim in dims if dim not in core]
    sizes = dict(zip(dims, shape, strict=True))
    # What is left out follows from the input and the kernel.
    out_chunks = {dim: _piece(rng, sizes[dim]) for dim in dims if rng.random() < 0.8}
    unit = {dim: out_chunks.get(dim, min(c, n)) for dim, c, n in zip(dims, chunks, shape, strict=True)}
    out_shards = None
    if rng.random() < 0.5:
        out_shards = {dim: unit[dim] * int(rng.integers(1, 4)) for dim in tile_dims if rng.random() < 0.7}
        unit |= out_shards
    unit = {dim: min(n, sizes[dim]) for dim, n in unit.items()}
    tile = {dim: unit[dim] * int(rng.integers(1, 4)) for dim in tile_dims if rng.random() < 0.7}
    units = math.prod(-(-sizes[dim] // unit[dim]) for dim in dims)
    if math.prod(shape) > MOST_CELLS or not int(rng.choice([1, 4, 12], p=[0.1, 0.3, 0.6])) <= units <= MOST_UNITS:
        return None
    if math.prod(-(-n // c) for n, c in zip(shape, in_shards or chunks, strict=True)) > MOST_UNITS:
        return None
    codec = str(rng.choice(["zstd", "none"]))
    return Geometry(dims, shape, core, chunks, in_shards, out_chunks, out_shards, tile, codec)


def _cut(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_piece(rng, n) for n in shape)


def _piece(rng: np.random.Generator, size: int) -> int:
    """Cells of a chunk along one dimension: often a small part of it, and seldom one that divides it."""
    most = max(1, size // int(rng.integers(1, 3 + min(size, 40) // 4)))
    return int(rng.integers(1, most + 1))


def _grown(rng: np.random.Generator, chunks: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shards of whole chunks."""
    return tuple(c * int(rng.integers(1, -(-n // c) + 1)) for c, n in zip(chunks, shape, strict=True))


#: Tiles of 3 x 5 cells in chunks, or shards, of 8 x 8.
MISALIGNED = {"a": 3, "b": 5}


def planted(*, sharded: bool) -> Geometry:
    """A geometry whose write units are 8 x 8 cells, which `MISALIGNED` tiles share."""
    cut = 4 if sharded else 8
    shards = {"a": 8, "b": 8} if sharded else None
    chunks = {"a": cut, "b": cut}
    return Geometry(("a", "b"), (40, 40), (), (8, 8), None, chunks, shards, {"a": 8, "b": 8}, "zstd")


def misaligned(job: tilewise.Job, run: str, *, guarded: bool = True) -> Program:
    """A program over the template of a job's output, whose tiles share write units as no plan would have them."""
    found = survey(job)
    create(job.output, found.work.targets, list(found.work.sources.values()), {})
    grid = found.plan.grid
    wrong = TileGrid(grid.dims, grid.size, tuple(MISALIGNED[dim] for dim in grid.dims))
    program = Program(
        run=run,
        kernel=job.kernel,
        signature=found.work.signature,
        sources=found.work.sources,
        targets=found.work.targets,
        grid=wrong if guarded else grid,
        panel=found.plan.panel,
    )
    object.__setattr__(program, "grid", wrong)  # past the guard
    return program


def stream(program: Program, cluster: tilewise.Cluster) -> None:
    """Do every tile of a program."""
    tiles = (((number, number + 1),) for number in range(len(program.grid)))
    try:
        with reach(cluster) as site, site.open(program.run) as workers:
            run_program(program, workers, tiles, lambda record: None, lambda: True)
    finally:
        forget(program.run)
