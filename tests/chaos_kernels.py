"""Kernels of jobs that are killed: each tile is noted in a file, and one of them may be a bad one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faults import in_a_probe, is_first
from tilewise.fields import FieldSpec, OutputSpec, result_dtype
from tilewise.kernels.base import Kernel, Signature


@dataclass(frozen=True, kw_only=True)
class Logged(Kernel, name="test_logged"):
    """`copy`, x times `factor`; `total`, its sum along `dim`, NaN where one is; `status`.

    Each tile takes `seconds`, and appends a line to the file `log`: process, first value, time.
    """

    dim: str
    log: str
    seconds: float = 0.0
    factor: float = 1.0
    input_sets = (("x",),)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        self.check_dim(x, self.dim, "dim")
        dtype = result_dtype([x.dtype])
        outputs = [
            OutputSpec("copy", (self.dim,), (x.sizes[self.dim],), dtype),
            OutputSpec("total", (), (), dtype),
            OutputSpec("status", (), (), "uint8", fill=255),
        ]
        return Signature.of(fields, core={"x": (self.dim,)}, outputs=outputs)

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        x = fields["x"]
        if x[0].numel() > 1 and not in_a_probe():  # nor the one pixel that a run begins with
            time.sleep(self.seconds)
            self.spoil(x, panel)
            _append(self.log, f"{os.getpid()} {float(x.flatten()[0]):.0f} {time.monotonic():.6f}\n")
        out["copy"].copy_(x).mul_(self.factor)
        out["total"].copy_(out["copy"].sum(dim=0))
        out["status"].copy_(out["total"].isfinite().logical_not() * 7)

    def spoil(self, x: Any, panel: int) -> None:
        """What a bad tile does before it is noted; a good one does nothing."""

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        pixels = 1
        for dim in signature.tile_dims:
            pixels *= sizes[dim]
        return 16 * pixels


def _append(path: str, text: str) -> None:
    """One write at the end of a file that several processes write to."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


@dataclass(frozen=True, kw_only=True)
class Eats(Logged, name="test_eats"):
    """Takes memory on the tile that holds the value `at`, then ends as the kernel ends a process for memory."""

    at: float

    def spoil(self, x: Any, panel: int) -> None:
        if not (x == self.at).any():
            return
        eaten = [b"\1" * (8 << 20) for _ in range(16)]
        assert eaten
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class OutOfMemory(Logged, name="test_out_of_memory"):
    """Asks torch for more memory than there is, on the tile that holds the value `at`.

    It asks once, and says so in the file `once`; or, without one, whenever it is given more than `most` pixels a panel.
    """

    at: float
    once: str = ""
    most: int = 0

    def spoil(self, x: Any, panel: int) -> None:
        import torch

        if (x == self.at).any() and (is_first(self.once) if self.once else panel > self.most):
            torch.empty(1 << 58, dtype=torch.uint8)
