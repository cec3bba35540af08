"""The bare loop: as many processes as cores, each of which reads its boxes with zarr, computes, and writes with zarr.

Nothing is planned, recorded, retried or bounded. It is what somebody would write who knows zarr and torch, with the
defaults of both. Beside it what no stream can beat: the same loop that only decodes, and then only encodes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

from _stream import CHUNK, Setup, compressors

Array = np.ndarray[Any, Any]
Compute = Callable[[Array], dict[str, Array]]


def result_by_hand(setup: Setup) -> Callable[[Array], Array]:
    """The kernel's result in one line: of those that were tried, the fastest one on a box (band, y, x)."""
    if setup.kernel == "norm":
        return lambda box: np.sqrt(np.einsum("kyx,kyx->yx", box, box))
    import torch

    design = np.asarray(zarr.open_array(setup.library, path="A", mode="r")[...])
    inverse = torch.from_numpy(np.linalg.pinv(design.astype("float64")).astype("float32"))
    return lambda box: (inverse @ torch.from_numpy(box).reshape(len(box), -1)).reshape(-1, *box.shape[1:]).numpy()


def by_hand(setup: Setup) -> Compute:
    """All outputs of the kernel: the result, and a status where there is one."""
    result = result_by_hand(setup)

    def with_status(box: Array) -> dict[str, Array]:
        x = result(box)
        return {"solution": x, "status": np.where(np.isfinite(x.sum(axis=0)), 0, 7).astype("uint8")}

    return with_status if setup.kernel == "lstsq" else lambda box: {"norm": result(box)}


def by_kernel(setup: Setup) -> Compute:
    """The kernel of tilewise, called on the box."""
    import torch

    import tilewise
    from tilewise.fields import FieldSpec
    from tilewise.session import compute_tile

    shape = zarr.open_array(setup.source, path="b", mode="r").shape
    name = "x" if setup.kernel == "norm" else "b"
    specs = {name: FieldSpec(name, ("band", "y", "x"), shape, "float32")}
    kernel: tilewise.Kernel = tilewise.Norm(dim="band")
    shared = {}
    if setup.kernel == "lstsq":
        kernel = tilewise.Lstsq(dim="band")
        design = np.asarray(zarr.open_array(setup.library, path="A", mode="r")[...])
        specs["A"] = FieldSpec("A", ("band", "unknown"), design.shape, "float32")
        shared["A"] = torch.from_numpy(design)
    signature = kernel.declare(specs)
    state, panel = kernel.prepare(shared), kernel.panel(signature)

    def compute(box: Array) -> dict[str, Array]:
        values = {
            spec.name: np.empty((*spec.shape[: len(spec.shape) - 2], *box.shape[1:]), spec.dtype)
            for spec in signature.outputs
        }
        compute_tile(kernel, signature, state, {name: box}, values, panel=panel)
        return values

    return compute


WAYS = {"kernel": by_kernel, "hand": by_hand}


class Work:
    """What one process does: its share of the boxes of the cube."""

    def __init__(self, setup: Setup, number: int) -> None:
        self._setup, self._number = setup, number
        self._cube = zarr.open_array(setup.source, path="b", mode="r")
        self._outputs = dict(zarr.open_group(setup.output, mode="r+").arrays())
        self._compute = WAYS["hand" if setup.peer == "floor" else setup.way](setup)
        if setup.peer == "floor":  # the rows of chunks of the cube are alike, and so are their results
            columns = range(0, self._cube.shape[2], setup.tile[1])
            first = {x: slice(x, x + setup.tile[1]) for x in columns}
            self._ready = {x: self._compute(np.asarray(self._cube[:, : setup.tile[0], s])) for x, s in first.items()}

    def boxes(self) -> Iterator[tuple[slice, slice]]:
        """The boxes of this process, in turn."""
        rows, columns = self._setup.tile
        _, height, width = self._cube.shape
        all_ = [(y, x) for y in range(0, height, rows) for x in range(0, width, columns)]
        for y, x in all_[self._number :: self._setup.cores]:
            yield slice(y, min(y + rows, height)), slice(x, min(x + columns, width))

    def stream(self) -> None:
        """Read, compute, write."""
        for box in self.boxes():
            self._write(box, self._compute(np.asarray(self._cube[(slice(None), *box)])))

    def decode(self) -> None:
        """Read only."""
        for box in self.boxes():
            self._cube[(slice(None), *box)]

    def encode(self) -> None:
        """Write only: results that are there already."""
        for box in self.boxes():
            rows = box[0].stop - box[0].start
            self._write(box, {name: values[..., :rows, :] for name, values in self._ready[box[1].start].items()})

    def _write(self, box: tuple[slice, slice], values: dict[str, Array]) -> None:
        for name, value in values.items():
            self._outputs[name][(..., *box)] = value


def worker(setup: Setup, number: int, phases: tuple[str, ...], pipe: Any) -> None:
    """One process: ready, then each phase when it is told to."""
    import torch

    if setup.peer == "settled":
        from tilewise.hosting import settle

        settle()
    torch.set_num_threads(1)
    work = Work(setup, number)
    pipe.send("ready")
    for phase in phases:
        pipe.recv()
        getattr(work, phase)()
        pipe.send("done")


def run(setup: Setup) -> dict[str, Any]:
    """Times of a run: its begin and end, and the seconds of its phases."""
    _create(setup)
    phases = ("decode", "encode") if setup.peer == "floor" else ("stream",)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(setup.cores):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=worker, args=(setup, number, phases, theirs)))
        processes[-1].start()
        pipes.append(ours)
    _all_say(pipes)
    begin, seconds = time.monotonic(), {}
    for phase in phases:
        start = time.monotonic()
        for pipe in pipes:
            pipe.send(phase)
        _all_say(pipes)
        seconds[phase] = time.monotonic() - start
    end = time.monotonic()
    for process in processes:
        process.join()
    return {"begin": begin, "end": end, "phases": seconds}


def _all_say(pipes: list[Any]) -> None:
    for pipe in pipes:
        pipe.recv()


def _create(setup: Setup) -> None:
    """Create the arrays that are written: the status too, where there is one."""
    shape = zarr.open_array(setup.source, path="b", mode="r").shape[1:]
    create_result(setup)
    if setup.kernel == "lstsq":
        zarr.open_group(setup.output, mode="r+").create_array(
            "status",
            shape=shape,
            chunks=(CHUNK, CHUNK),
            dtype="uint8",
            fill_value=255,
            compressors=compressors(setup.codec) or None,
        )


def create_result(setup: Setup) -> Any:
    """Create the group of an output with the array that counts, and hand the array on."""
    shape = (*setup.chunks[:-2], *zarr.open_array(setup.source, path="b", mode="r").shape[1:])
    return zarr.create_group(setup.output, overwrite=True).create_array(
        setup.result,
        shape=shape,
        chunks=setup.chunks,
        dtype="float32",
        fill_value=float("nan"),
        compressors=setup.compressors or None,
    )
