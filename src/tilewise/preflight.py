"""Before anything is written: load what a tile needs, and try the kernel on one pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import zarr
import zarr.storage

from tilewise.coordinates import Array
from tilewise.errors import KernelContractError
from tilewise.fields import FieldSpec, Tile
from tilewise.kernels import kernel_class
from tilewise.program import Program, Ticket
from tilewise.session import Session, compute_tile, open_session
from tilewise.store import read_box, write_box


def try_kernel(ticket: Ticket) -> None:
    """Open the inputs, prepare the kernel, and try it on one pixel; nothing is written.

    Raises
    ------
    KernelContractError
        The kernel does not fill the outputs that it declared.
    """
    _try_one_pixel(open_session(ticket))


def warm_up() -> None:
    """Run one small tile through a store in memory and back, so that everything a tile needs is loaded."""
    store = zarr.create_group(zarr.storage.MemoryStore())
    array = store.create_array("x", shape=(4, 64, 64), dtype="float32", chunks=(4, 64, 64))
    write_box(array, tuple(slice(0, n) for n in array.shape), np.ones(array.shape, dtype="float32"))
    box = np.empty(array.shape, dtype="float32")
    read_box([array], False, tuple(slice(0, n) for n in array.shape), box)
    design = torch.eye(4, 2, dtype=torch.float64)
    torch.linalg.svd(design, full_matrices=False)
    kernel = kernel_class("norm")(**{"dim": "x"})
    signature = kernel.declare({"x": FieldSpec("x", ("x", "a", "b"), array.shape, "float32")})
    out = {"norm": np.empty(array.shape[1:], dtype="float32")}
    compute_tile(kernel, signature, None, {"x": box}, out, panel=kernel.panel(signature))


def _try_one_pixel(session: Session) -> None:
    """Compute the first pixel twice, over two different fillings: a cell that keeps both was never written."""
    program = session.program
    signature = program.signature
    tile = Tile(0, program.grid.dims, (0,) * len(program.grid.dims), (1,) * len(program.grid.dims))
    boxes = session.read(tile)
    runs = [_trial(program, session.state, boxes, tile, filling) for filling in (0, 1)]
    for spec in signature.outputs:
        kept = (runs[0][spec.name] == 0) & (runs[1][spec.name] == 1)
        if kept.any():
            raise KernelContractError(
                f"kernel {program.kernel.name!r} does not fill its output {spec.name!r}",
                got=f"{int(kept.sum())} of {kept.size} cells of a pixel not written",
                expected=f"an array with dims {spec.dims}",
                do="fill out[name] in compute, with copy_ or in place",
            )


def _trial(program: Program, state: Any, boxes: Mapping[str, Array], tile: Tile, filling: int) -> dict[str, Array]:
    signature = program.signature
    outputs = {
        spec.name: np.full([tile.sizes.get(d, n) for d, n in spec.sizes.items()], filling, dtype=spec.dtype)
        for spec in signature.outputs
    }
    try:
        compute_tile(program.kernel, signature, state, boxes, outputs, panel=program.panel, device=program.device)
    except (KeyError, RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise KernelContractError(
            f"kernel {program.kernel.name!r} fails on the first pixel: {type(error).__name__}",
            got=error,
            expected="outputs " + ", ".join(f"{s.name} {s.dims}" for s in signature.outputs),
            do="make compute agree with declare",
        ) from error
    return outputs
