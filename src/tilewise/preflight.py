"""Before anything is written: load what a tile needs, and try the kernel on one pixel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch
import zarr
import zarr.storage

from tilewise import hosting
from tilewise.coordinates import Array
from tilewise.errors import BudgetError, DamagedDataError, KernelContractError, TilewiseError, UnsupportedStoreError
from tilewise.fields import Tile
from tilewise.linalg.layout import one_thread
from tilewise.memory import megabytes
from tilewise.program import Ticket
from tilewise.session import Session, compute_tile, open_session
from tilewise.store import read_box, write_box


def try_kernel(ticket: Ticket) -> None:
    """Open the inputs, prepare the kernel, and try it on one pixel; nothing is written.

    Raises
    ------
    KernelContractError
        The kernel does not fill the outputs that it declared.
    BudgetError
        Its tiles do not fit the memory of the CUDA device.
    """
    with hosting.place(ticket.run) if ticket.hosted else nullcontext():
        session = open_session(ticket)
        _check_device(session)
        _try_one_pixel(session)


def _check_device(session: Session) -> None:
    program = session.program
    if program.device == "cpu":
        return
    free, total = torch.cuda.mem_get_info(session.device)
    if program.device_bytes > free:
        raise BudgetError(
            "a tile does not fit the memory of the CUDA device",
            got=f"{megabytes(free)} free of {megabytes(total)}",
            expected=megabytes(program.device_bytes),
            do="set tile to a smaller one, or device to cpu",
        )


def warm_up() -> None:
    """Do one small tile by hand, so that whatever a tile needs is loaded: a store, codecs, BLAS and LAPACK."""
    group = zarr.create_group(zarr.storage.MemoryStore())
    array = group.create_array("x", shape=(16, 64, 64), dtype="float32", chunks=(16, 64, 64))
    whole = tuple(slice(0, n) for n in array.shape)
    box = np.ones(array.shape, dtype="float32")
    with torch.inference_mode(), one_thread():
        for dtype in (torch.float32, torch.float64):
            design = torch.eye(16, 8, dtype=dtype)
            factor, _, _ = torch.linalg.svd(design, full_matrices=False)
            pixels = torch.from_numpy(box).reshape(16, -1).to(dtype)
            torch.mul(factor.T @ pixels, 2.0).sqrt_()
    write_box(array, whole, box)
    read_box([array], False, whole, box)


def _try_one_pixel(session: Session) -> None:
    """Compute the first pixel twice, over two different fillings: a cell that keeps both was never written."""
    program = session.program
    signature = program.signature
    tile = Tile(0, program.grid.dims, (0,) * len(program.grid.dims), (1,) * len(program.grid.dims))
    boxes = _first_boxes(session, tile)
    runs = [_trial(session, boxes, tile, filling) for filling in (0, 1)]
    for spec in signature.outputs:
        kept = (runs[0][spec.name] == 0) & (runs[1][spec.name] == 1)
        if kept.any():
            raise KernelContractError(
                f"kernel {program.kernel.name!r} does not fill its output {spec.name!r}",
                got=f"{int(kept.sum())} of {kept.size} cells of a pixel not written",
                expected=f"an array with dims {spec.dims}",
                do="fill out[name] in compute, with copy_ or in place",
            )


def _first_boxes(session: Session, tile: Tile) -> dict[str, Array]:
    try:
        return session.read(tile, session.tries())
    except DamagedDataError as error:
        if session.program.skip:  # its tile will fail, and the others are to be done
            return session.ones(tile)
        raise UnsupportedStoreError(
            "the inputs cannot be read at their first pixel",
            got=f"{error.what}: {error.got}",
            do=f"{error.do}, or a codec that can be used here; or set on_error to skip",
        ) from error


def _trial(session: Session, boxes: Mapping[str, Array], tile: Tile, filling: int) -> dict[str, Array]:
    program = session.program
    signature = program.signature
    outputs = {
        spec.name: np.full([tile.sizes.get(d, n) for d, n in spec.sizes.items()], filling, dtype=spec.dtype)
        for spec in signature.outputs
    }
    try:
        compute_tile(
            program.kernel, signature, session.state, boxes, outputs, panel=program.panel, device=session.device
        )
    except TilewiseError:
        raise
    except Exception as error:
        raise KernelContractError(
            f"kernel {program.kernel.name!r} fails on the first pixel: {type(error).__name__}",
            got=error,
            expected="outputs " + ", ".join(f"{s.name} {s.dims}" for s in signature.outputs),
            do="make compute agree with declare",
        ) from error
    return outputs
