"""Kernels as a user brings them, by "user_kernels:Class": what the doors are tried with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilewise import Footprint, Kernel, Signature
from tilewise.errors import ParameterError
from tilewise.fields import FieldSpec, OutputSpec, result_dtype


@dataclass(frozen=True, kw_only=True)
class Total(Kernel, name="total"):
    """Sum of x along `dim`, times `factor`; a status of 0 where it is finite."""

    dim: str
    factor: float = 1.0

    input_sets = (("x",),)

    def __post_init__(self) -> None:
        if self.factor == 0:
            raise ParameterError(
                "kernel.factor is zero", got=self.factor, expected="any other number", do="mend kernel.factor"
            )

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        self.check_dim(x, self.dim, "dim")
        outputs = [
            OutputSpec("total", (), (), result_dtype([x.dtype])),
            OutputSpec("status", (), (), "uint8", fill=255),
        ]
        return Signature.of(fields, core={"x": (self.dim,)}, outputs=outputs)

    def footprint(self, signature: Signature) -> Footprint:
        return Footprint()

    def workspace(self, signature: Signature, sizes: Mapping[str, int], *, panel: int) -> int:
        pixels = 1
        for dim in signature.tile_dims:
            pixels *= sizes[dim]
        return 32 * pixels

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        total = fields["x"].sum(dim=0) * self.factor
        out["total"].copy_(total)
        out["status"].copy_(total.isfinite().logical_not() * 7)


@dataclass(frozen=True, kw_only=True)
class Fragile(Total, name="fragile"):
    """Raises on a tile in which any x is above `most`."""

    most: float = 0.0

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        if fields["x"].max() > self.most:
            raise ValueError(f"x is {fields['x'].max():.0f}")
        super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class Mistaken(Total, name="mistaken"):
    """Has a mistake in its declaration."""

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        return super().declare({"y": fields["y"]})


@dataclass(frozen=True, kw_only=True)
class Talkative(Total, name="talkative"):
    """Prints, in Python and past it."""

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        print("declaring")
        return super().declare(fields)

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        print("computing", flush=True)
        os.write(1, b"computing, below python\n")
        super().compute(state, fields, out, panel=panel)


@dataclass(frozen=True, kw_only=True)
class Slow(Total, name="slow"):
    """Takes its time, and says in a file that it has begun."""

    seconds: float
    began: str

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        if fields["x"][0].numel() > 1:  # not the one pixel that a run begins with
            Path(self.began).touch()
            time.sleep(self.seconds)


@dataclass(frozen=True)
class Window:
    """A parameter that is a record itself."""

    width: int
    taper: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Everything(Total, name="everything"):
    """Parameters of every type that a job file can say."""

    names: tuple[str, ...] = ()
    orders: tuple[float, ...] = ()
    count: int = 1
    exact: bool = False
    mode: Literal["fast", "safe"] = "fast"
    limit: float | None = None
    label: str | int | None = None
    table: Mapping[str, float] = field(default_factory=dict)
    window: Window = Window(3)
    other: Window | None = None


@dataclass(frozen=True, kw_only=True)
class Odd(Total, name="odd"):
    """Parameters that a job file cannot say, or not without more words, but for their defaults."""

    function: Callable[[float], float] = abs
    anything: Any = None
    windows: tuple[Window, ...] = ()
    codes: frozenset[int] = frozenset()
    text: str = "a: b # c\nsecond"
    start: Window


class Undecorated(Kernel):
    """A kernel that is no dataclass."""


@dataclass(frozen=True, kw_only=True)
class Five(Kernel, name="five"):
    """Five outputs of x along `dim`, one of them with a dimension of its own; appends a byte to `log` at every call."""

    dim: str
    log: str = os.devnull

    input_sets = (("x",),)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        x = self.check_inputs(fields)["x"]
        self.check_dim(x, self.dim, "dim")
        outputs = [OutputSpec(name, (), (), "float64") for name in ("least", "most", "total", "mean")]
        ends = OutputSpec("ends", ("end",), (2,), "float64", attrs={"units": "m"})
        return Signature.of(fields, core={"x": (self.dim,)}, outputs=[*outputs, ends])

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        with Path(self.log).open("ab") as log:
            log.write(b".")
        x = fields["x"]
        out["least"].copy_(x.amin(dim=0))
        out["most"].copy_(x.amax(dim=0))
        out["total"].copy_(x.sum(dim=0))
        out["mean"].copy_(x.mean(dim=0))
        out["ends"].copy_(x[[0, -1]])


@dataclass(frozen=True, kw_only=True)
class Shifted(Kernel, name="shifted"):
    """x + shift, pixel by pixel, unless `fills` is false; `log` gets a byte whenever the shift is prepared."""

    log: str = os.devnull
    fills: bool = True

    input_sets = (("x", "shift"),)

    def declare(self, fields: Mapping[str, FieldSpec]) -> Signature:
        self.check_inputs(fields)
        out = OutputSpec("shifted", (), (), "float64", fill=-9.0)
        return Signature.of(fields, core={"x": (), "shift": ()}, outputs=[out], shared=["shift"])

    def prepare(self, shared: Mapping[str, Any]) -> Any:
        with Path(self.log).open("ab") as log:
            log.write(b".")
        return shared["shift"].clone()

    def compute(self, state: Any, fields: Mapping[str, Any], out: Mapping[str, Any], *, panel: int) -> None:
        if self.fills:
            out["shifted"].copy_(fields["x"] + state)
