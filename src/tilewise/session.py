"""What one worker process keeps open for one run, and the computation of one tile.

Each process opens what a program names once and keeps it under the run's name (`opened.py`).
"""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from tilewise import access, hosting
from tilewise.coordinates import Array, close
from tilewise.damage import unreadable
from tilewise.errors import LockedError, MissingStoreError
from tilewise.fields import FieldSpec, Status, Tile
from tilewise.kernels.base import Kernel, Signature
from tilewise.linalg.blocks import boxes
from tilewise.linalg.layout import arrange, one_thread
from tilewise.locking import Watch
from tilewise.opened import opened
from tilewise.outputs import Target
from tilewise.packing import PANEL
from tilewise.program import Program, Ticket
from tilewise.store import concrete, open_target, read_box, view, write_box
from tilewise.tries import Patience, Tries
from tilewise.trouble import Trouble, trouble_of
from tilewise.turns import Turns

Found = TypeVar("Found")
#: Seconds for which a look at the lease is good, while a tile of many write units is written.
LOOK = 1.0


class Session:
    """What one process keeps open for one run: arrays, the kernel's state, and buffers for each slot."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.device = hosting.device_of(program.run, program.device)
        self.turns = Turns()
        self._computing = threading.BoundedSemaphore(program.slots)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._patience = Patience(program.retries, partial(hosting.is_over, program.run) if program.hosted else bool)
        self._lease = Watch(program.lease) if program.lease else None
        self.inputs = self.tries()(self._open, "read")
        self._outputs: dict[str, Any] = {}
        self._slot = threading.local()
        self._all_buffers: weakref.WeakSet[_Buffers] = weakref.WeakSet()
        try:
            self.state = self._prepare()
        except BaseException:
            self.close()
            raise

    def _open(self) -> dict[str, list[Any]]:
        return {name: [ref.open() for ref in source.arrays] for name, source in self.program.sources.items()}

    def aside(self, program: Program) -> Session:
        """The same inputs, state and turns for another program of this run, with outputs and tiles of its own."""
        other = copy.copy(self)
        other.program = program
        other._lease = None
        other._outputs, other._slot, other._all_buffers = {}, threading.local(), weakref.WeakSet()
        return other

    def tries(self) -> Tries:
        """The tries of one tile."""
        return Tries(self._patience)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for tiles of this process any more."""
        return self._patience.over()

    def _prepare(self) -> Any:
        program = self.program
        tensors = {}
        for name in program.signature.shared:
            spec = program.signature.fields[name]
            box = np.empty(spec.shape, dtype=program.signature.reads[name])
            self._read(name, tuple(slice(0, n) for n in spec.shape), box, self.tries())
            tensor = torch.from_numpy(box).to(self.device)
            tensors[name] = arrange(tensor, spec.dims, program.signature.core[name], ())
        with torch.inference_mode(), one_thread(), _on(self.device):
            return program.kernel.prepare(tensors)

    @property
    def computing(self) -> AbstractContextManager[Any]:
        """A turn of computing: of as many as there are slots, where more tiles are in work than those."""
        return nullcontext() if self._pool is None else self._computing

    def pool(self, read_ahead: int) -> Executor:
        """Threads for the tiles that are in work at a time, asked for with their slots held."""
        with self._lock:
            if self._pool is None:
                ready = hosting.know_thread if self.program.hosted else None
                workers = self.program.slots * (1 + read_ahead)
                self._pool = ThreadPoolExecutor(workers, "tilewise-tile", initializer=ready)
            return self._pool

    def close(self) -> None:
        """Close the files that inputs are read from."""
        if self._pool is not None:
            self._pool.shutdown()
        for arrays in self.inputs.values():
            for array in arrays:
                close(array)

    def _read(self, name: str, box: tuple[slice, ...], out: Array, tries: Tries) -> None:
        self.reading(name, box, tries, partial(self._read_once, name, box, out))

    def reading(self, name: str, box: tuple[slice, ...], tries: Tries, read: Callable[[], Found]) -> Found:
        """Result of reading a box, again after what may pass; what does not names the input, and its damaged chunk."""
        source = self.program.sources[name]
        try:
            return tries(read, "read")
        except MissingStoreError:
            raise
        except Exception as error:
            if trouble_of(error, "read") is Trouble.MEMORY:
                raise
            raise unreadable(name, source, self.inputs[name], box, error) from error

    def _read_once(self, name: str, box: tuple[slice, ...], out: Array) -> None:
        source = self.program.sources[name]
        with access.reaching(source.arrays[0].store):
            read_box(self.inputs[name], source.stacked, box, out, source.decodings)
        for ref in source.arrays:
            ref.check()

    def read(self, tile: Tile, tries: Tries) -> dict[str, Array]:
        """Boxes of the streamed inputs, in buffers that the next tile of this slot takes over."""
        signature = self.program.signature
        boxes = {}
        for name in signature.streamed:
            spec = signature.fields[name]
            box = concrete(tile.slices(spec.dims), spec.shape)
            boxes[name] = self._buffer(name, spec, signature.reads[name], box)
            self._read(name, box, boxes[name], tries)
        return boxes

    def ones(self, tile: Tile) -> dict[str, Array]:
        """Boxes of ones in place of those of the streamed inputs: something to try a kernel on."""
        signature = self.program.signature
        fields = {name: signature.fields[name] for name in signature.streamed}
        shapes = {n: [s.stop - s.start for s in concrete(tile.slices(f.dims), f.shape)] for n, f in fields.items()}
        return {name: np.ones(shape, dtype=signature.reads[name]) for name, shape in shapes.items()}

    def outputs(self, tile: Tile) -> dict[str, Array]:
        """Buffers of the outputs of a tile."""
        found = {}
        for target in self.program.targets:
            box = concrete(tile.slices(target.spec.dims), target.spec.shape)
            found[target.spec.name] = self._buffer(target.spec.name, target.spec, target.spec.dtype, box)
        return found

    def _buffer(self, name: str, spec: FieldSpec, dtype: str, box: tuple[slice, ...]) -> Array:
        """A contiguous array of the box's shape, cut from a buffer of a whole tile: memory is faulted in once."""
        buffers = self._buffers().arrays
        if name not in buffers:
            grid = self.program.grid
            whole = {**spec.sizes, **dict(zip(grid.dims, grid.tile_shape, strict=True))}
            buffers[name] = np.empty(math.prod(whole[dim] for dim in spec.dims), dtype=dtype)
        shape = [s.stop - s.start for s in box]
        flat: Array = buffers[name][: math.prod(shape)]
        return flat.reshape(shape)

    def _buffers(self) -> _Buffers:
        if not hasattr(self._slot, "buffers"):
            self._slot.buffers = _Buffers()
            self._all_buffers.add(self._slot.buffers)
        found: _Buffers = self._slot.buffers
        return found

    def idle_until(self, begin: float, end: float) -> float:
        """Seconds that this slot had nothing to do before a block that has begun and ended then; 0 for the first."""
        before = getattr(self._slot, "ended", begin)
        self._slot.ended = end
        return max(0.0, begin - float(before))

    def drop_buffers(self, *, of_all: bool) -> None:
        """Give up the buffers of this slot; or those of all, only while no other tile of this process is in work."""
        for buffers in list(self._all_buffers) if of_all else [self._buffers()]:
            buffers.arrays.clear()
        if of_all:  # rare enough for what takes tenths of a second
            gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def flag_misfits(self, values: Mapping[str, Array]) -> int:
        """Make values that a packed output cannot hold missing, with a status that says so; how many there were."""
        count = 0
        status = values.get("status")
        for target in self.program.targets:
            if target.packing is None:
                continue
            output = values[target.spec.name]
            own = tuple(range(len(self.program.signature.own_dims(target.spec))))
            for box in boxes(output.shape, PANEL):
                part = view(output, box)
                misfits = target.packing.misfits(part)
                if not misfits.any():
                    continue
                count += int(np.count_nonzero(misfits))
                part[misfits] = np.nan
                if status is not None:
                    pixels = view(status, box[len(own) :])
                    np.maximum(pixels, int(Status.NON_FINITE), out=pixels, where=misfits.any(axis=own))
        return count

    def write(self, tile: Tile, values: Mapping[str, Array], tries: Tries) -> None:
        """Write the outputs of a tile, each to its own write units; the status last, so that ok means all is there.

        Raises
        ------
        LockedError
            The output is no longer this run's to write: what has been written of the tile does not count.
        """
        tries(partial(self._write_once, tile, values), "write")

    def _write_once(self, tile: Tile, values: Mapping[str, Array]) -> None:
        try:
            for target in sorted(self.program.targets, key=lambda target: target.spec.name == "status"):
                self._check_lease()
                self._write_target(target, tile, values[target.spec.name], self._looks())
        except LockedError:
            raise
        except Exception:
            self._check_lease()  # what fails since another run has taken over is that run's doing
            raise
        self._check_lease()

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _looks(self) -> Callable[[], None]:
        """What to call before each write unit: it looks at the lease unless that was done a moment ago."""
        last = time.monotonic()

        def look() -> None:
            nonlocal last
            if time.monotonic() - last >= LOOK:
                self._check_lease()
                last = time.monotonic()

        return look

    def _write_target(self, target: Target, tile: Tile, values: Array, look: Callable[[], None]) -> None:
        name = target.spec.name
        box = concrete(tile.slices(target.spec.dims), target.spec.shape)
        with access.reaching(target.array.store):
            if name not in self._outputs:
                self._outputs[name] = open_target(target.array)
            write_box(self._outputs[name], box, values, target.packing, look)
        target.array.check()


class _Buffers:
    """Buffers of one slot, by the names of inputs and outputs."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}


def open_session(ticket: Ticket) -> Session:
    """The session of a run in this process, opened at its first task here."""
    return opened(ticket.run, lambda: Session(pickle.loads(ticket.payload)))


def _on(device: str) -> AbstractContextManager[None]:
    """The device as torch's current one in this thread, for kernels that name it without a number."""
    return nullcontext() if device == "cpu" else torch.cuda.device(device)


def compute_tile(
    kernel: Kernel,
    signature: Signature,
    state: Any,
    boxes: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    panel: int,
    device: str = "cpu",
) -> None:
    """Compute one tile of in-memory arrays into preallocated outputs.

    Parameters
    ----------
    boxes
        Streamed inputs by name, with the dims that the signature gives them and the dtype that it reads.
    outputs
        Outputs by name, with the dims that the signature gives them; every cell is overwritten.
    """
    specs = {out.name: out for out in signature.outputs}
    with torch.inference_mode(), one_thread(), _on(device):
        fields = {
            name: arrange(
                torch.from_numpy(box).to(device), signature.fields[name].dims, signature.core[name], signature.tile_dims
            )
            for name, box in boxes.items()
        }
        host = {name: torch.from_numpy(array) for name, array in outputs.items()}
        out = host if device == "cpu" else {name: torch.empty_like(t, device=device) for name, t in host.items()}
        views = {
            n: arrange(t, specs[n].dims, signature.own_dims(specs[n]), signature.tile_dims) for n, t in out.items()
        }
        kernel.compute(state, fields, views, panel=panel)
        for name, tensor in host.items():
            if tensor is not out[name]:
                tensor.copy_(out[name])
