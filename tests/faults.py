"""Hostile kernels: each breaks one clause of the contract, or fails where it is told to."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.fields import FieldSpec, OutputSpec, result_dtype
from tilewise.kernels.base import Kernel, Signature


@dataclass(frozen=True, kw_only=True)
class Copy(Kernel, name="test_copy"):
    """Output `copy` equal to the input `x`; `dim` is its core dimension. The well-behaved one of this file."""

    dim: str
    input_sets = (("x",),)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        self.check_dim(x, self.dim, "dim")
        copy = OutputSpec("copy", (self.dim,), (x.sizes[self.dim],), result_dtype([x.dtype]))
        return Signature.of(fields, core={"x": (self.dim,)}, outputs=[copy])

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        out["copy"].copy_(fields["x"])

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        return 0


def is_first(file: str) -> bool:
    """Whether this call, of those in all processes, is the first that names the file."""
    try:
        Path(file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def in_a_probe() -> bool:
    """Whether a kernel is being called for a tile that is only probed: it may count twice, and is not of the run."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "tilewise.trial":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@dataclass(frozen=True, kw_only=True)
class FailsAt(Copy, name="test_fails_at"):
    """Raises on the tile that holds the value `at`."""

    at: float

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        if (fields["x"] == self.at).any():
            raise ArithmeticError(f"found {self.at}")
        super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class FailsUntil(FailsAt, name="test_fails_until"):
    """Raises on the tile that holds the value `at` while the file `mended` is not there; notes each tile in `log`."""

    mended: str
    log: str

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        if fields["x"][0].numel() > 1 and not in_a_probe():  # nor where the kernel is tried on one pixel
            with Path(self.log).open("a") as file:
                file.write(f"{float(fields['x'].flatten()[0])}\n")
        if Path(self.mended).exists():
            return Copy.compute(self, state, fields, out, panel=panel)
        return super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class OwnStatus(Copy, name="test_own_status"):
    """Has a status with a code of its own."""

    code: int
    dtype: str = "uint8"

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        copy = OutputSpec("copy", (self.dim,), (x.sizes[self.dim],), result_dtype([x.dtype]))
        outputs = [copy, OutputSpec("status", (), (), self.dtype, fill=255)]
        return Signature.of(fields, core={"x": (self.dim,)}, outputs=outputs)

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        out["status"].fill_(self.code)


@dataclass(frozen=True, kw_only=True)
class StopsServer(Copy, name="test_stops_server"):
    """Kills the process `pid` on the tile that holds the value `at`."""

    pid: int
    at: float

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        if (fields["x"] == self.at).any():
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class LeavesCells(Copy, name="test_leaves_cells"):
    """Fills only the first row of its output."""

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        out["copy"][0].copy_(fields["x"][0])


@dataclass(frozen=True, kw_only=True)
class WrongShape(Copy, name="test_wrong_shape"):
    """Fills an output of another shape than it declared."""

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        out["copy"].copy_(fields["x"].repeat(2, *[1] * (fields["x"].dim() - 1)))


@dataclass(frozen=True, kw_only=True)
class UndeclaredOutput(Copy, name="test_undeclared_output"):
    """Fills an output that it did not declare."""

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        out["other"].copy_(fields["x"])


@dataclass(frozen=True, kw_only=True)
class LacksTileDimension(Copy, name="test_lacks_tile_dimension"):
    """Declares an output without the tile dimensions."""

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        signature = super().declare(fields)
        bad = OutputSpec("copy", (self.dim,), (signature.sizes[self.dim],), "float64")
        return Signature(
            signature.fields, signature.core, signature.tile_dims, signature.shared, signature.reads, (bad,)
        )


@dataclass(frozen=True, kw_only=True)
class NoOutputs(Copy, name="test_no_outputs"):
    """Declares nothing."""

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        signature = super().declare(fields)
        return Signature(signature.fields, signature.core, signature.tile_dims, signature.shared, signature.reads, ())


@dataclass(frozen=True, kw_only=True)
class Waits(Copy, name="test_waits"):
    """Says in a file that a tile has begun, and goes on once there is another one; then takes `seconds`.

    The file `most` tells how many tiles were in work at a time within the process.
    """

    began: str
    go: str
    most: str = ""
    seconds: float = 0.0

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        with _AT_WORK:
            Path(self.began).touch()
            deadline = time.monotonic() + 120
            while not Path(self.go).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(self.seconds)
            if self.most:
                Path(self.most).write_text(str(_AT_WORK.most))
        super().compute(state, fields, out, panel=panel)


class _AtWork:
    """How many are within it now, and were at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.now -= 1


_AT_WORK = _AtWork()


@dataclass(frozen=True, kw_only=True)
class DiesAt(Copy, name="test_dies_at"):
    """Takes its process with it on the tile that holds the value `at`; and on the first tile, once, named in a file."""

    at: float | None = None
    once: str = ""
    seconds: float = 0.5

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        if fields["x"][0].numel() > 1:  # not where the kernel is tried on one pixel
            time.sleep(self.seconds)
            if self._is_first() or self._is_guilty(fields["x"]):
                os.kill(os.getpid(), signal.SIGKILL)
        super().compute(state, fields, out, panel=panel)

    def _is_guilty(self, x: Any) -> bool:
        return self.at is not None and bool((x == self.at).any())

    def _is_first(self) -> bool:
        return bool(self.once) and is_first(self.once)


@dataclass(frozen=True, kw_only=True)
class CountsAndFails(Copy, name="test_counts_and_fails"):
    """Notes each call in a file; fails from the third on, so that the trial of the first pixel goes well."""

    log: str

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        with Path(self.log).open("a") as file:
            file.write(".")
        if len(Path(self.log).read_text()) > 2:
            raise ArithmeticError("again")
        super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class ShortOfMemory(Copy, name="test_short_of_memory"):
    """Asks torch for more memory than there is: once, named in a file; or wherever panels exceed `panels`."""

    once: str = ""
    panels: int | None = None

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        if fields["x"][0].numel() > 1 and (is_first(self.once) if self.once else panel > int(self.panels or 0)):
            import torch

            torch.empty(2**60, dtype=torch.uint8)
        super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class NeedsRoom(Copy, name="test_needs_room"):
    """Has memory for one tile at a time within its process; a tile that is not alone says so, and waits for others."""

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        with _AT_WORK:
            time.sleep(0.05)  # so that others come
            if _AT_WORK.now > 1:
                raise MemoryError("not beside others")
            super().compute(state, fields, out, panel=panel)
