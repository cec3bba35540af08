"""A job as a value: kernel, inputs, output and budget, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from tilewise import machine, places
from tilewise.cluster import Cluster, Device
from tilewise.errors import ParameterError
from tilewise.folders import Folder
from tilewise.kernels import Kernel
from tilewise.outputs import Output
from tilewise.scratch import without_data
from tilewise.sources import Input

#: What becomes of a run when a tile fails.
OnError = Literal["raise", "skip"]


#: Largest `read_ahead`.
MOST_AHEAD = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """Kernel, inputs, output and budget: everything that a run needs to know.

    Attributes
    ----------
    kernel
        What to compute.
    inputs
        The kernel's inputs by name, each an `Input`, or a path (in Python also an array) in its place.
    output
        An `Output`, or a path in its place.
    memory_limit
        Budget of one worker process, in bytes or as text such as "2 GiB"; 60 % of the available memory over the
        worker processes unless given.
    tile
        "auto", or cells by tile dimension; dimensions left out are negotiated.
    cluster
        Which workers do the tiles.
    device
        "cpu", "cuda", or "auto" (CUDA where there is one).
    sidecar
        Path or URL of the job's records and scratch data; beside the output unless given.
    on_error
        "raise": the first tile that fails ends the run. "skip": it is recorded, with its region and cause, and the
        run goes on.
    retries
        How often a tile is tried again when its store does not answer, or gives what cannot be decoded.
    read_ahead
        Tiles that are read or written while another one is computed, for each of those that are in work at a time: as
        much more memory for tiles. "auto": as many as a probe finds use for, where a store is behind a URL and they
        fit `memory_limit`; none for local stores.
    """

    kernel: Kernel
    inputs: Mapping[str, Input]
    output: Output
    memory_limit: int | str | None = None
    tile: Literal["auto"] | Mapping[str, int] = "auto"
    cluster: Cluster = field(default_factory=Cluster)
    device: Device = "cpu"
    sidecar: str | None = None
    on_error: OnError = "raise"
    retries: int = 3
    read_ahead: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Short forms become `Input` and `Output`; values that cannot be are refused."""
        _check_kind("the kernel of a job is not one", self.kernel, Kernel, "a kernel such as tilewise.Norm(dim=...)")
        _check_kind("the inputs of a job have no names", self.inputs, Mapping, 'such as {"x": "wind.zarr"}')
        _check_kind("the cluster of a job is not one", self.cluster, Cluster, 'tilewise.Cluster(kind="threads"), say')
        inputs = {n: v if isinstance(v, Input) else Input(store=v) for n, v in self.inputs.items()}
        object.__setattr__(self, "inputs", inputs)
        if not isinstance(self.output, Output):
            object.__setattr__(self, "output", Output(store=self.output))
        if self.sidecar is not None:
            object.__setattr__(self, "sidecar", places.local_path(str(self.sidecar)))
            places.check_writable(self.sidecar, "sidecar")
        if self.memory_limit is not None:
            machine.parse_bytes(self.memory_limit, "memory_limit")
        if not isinstance(self.tile, Mapping) and not (isinstance(self.tile, str) and self.tile == "auto"):
            raise ParameterError(
                "tile is neither auto nor sizes",
                got=repr(self.tile),
                expected="auto, or cells by dimension",
                do="mend tile",
            )
        if self.on_error not in ("raise", "skip"):
            raise ParameterError(
                "on_error is unknown", got=repr(self.on_error), expected="raise | skip", do="mend on_error"
            )
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise ParameterError(
                "retries is not a count", got=repr(self.retries), expected="0 or more", do="mend retries"
            )
        ahead = self.read_ahead
        if ahead != "auto" and (not isinstance(ahead, int) or isinstance(ahead, bool) or not 0 <= ahead <= MOST_AHEAD):
            raise ParameterError(
                "read_ahead is neither auto nor a count",
                got=repr(ahead),
                expected=f"auto, or 0 to {MOST_AHEAD}",
                do=f"set read_ahead to auto, or to 0 to {MOST_AHEAD}",
            )

    @property
    def sidecar_folder(self) -> Folder:
        """Where the job's records and scratch data lie."""
        return Folder(self.sidecar) if self.sidecar else self.locked_folder

    @property
    def locked_folder(self) -> Folder:
        """Where the output is locked: beside it, wherever the records lie, so that every job on it looks there."""
        return Folder(self.output.store.rstrip("/") + ".tilewise")

    def anchored(self) -> Job:
        """The same job, wherever a process stands: its relative places, which begin here, are absolute."""
        stores = {n: replace(i, store=places.absolute(str(i.store))) for n, i in self.inputs.items() if not i.in_memory}
        output = replace(self.output, store=places.absolute(self.output.store))
        sidecar = None if self.sidecar is None else places.absolute(self.sidecar)
        return replace(self, inputs={**self.inputs, **stores}, output=output, sidecar=sidecar)

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON data, as a job file would say it; in-memory inputs are named, not stored."""
        found = {
            "kernel": kernel_dict(self.kernel),
            "inputs": {name: _plain(without_data(source)) for name, source in self.inputs.items()},
            "output": _plain(self.output),
            "memory_limit": self.memory_limit,
            "tile": self.tile if isinstance(self.tile, str) else dict(self.tile),
            "cluster": _plain(self.cluster),
            "device": self.device,
            "sidecar": self.sidecar,
            "on_error": self.on_error,
            "retries": self.retries,
            "read_ahead": self.read_ahead,
        }
        return {key: value for key, value in found.items() if value is not None}


def _check_kind(what: str, value: object, kind: type, expected: str) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise ParameterError(
            what, got=f"the class {value.__name__}", expected=expected, do=f"call it: {value.__name__}(...)"
        )
    raise ParameterError(what, got=type(value).__name__, expected=expected, do="give one")


def kernel_dict(kernel: Kernel) -> dict[str, Any]:
    """A kernel as a job file would say it: its name and its parameters."""
    cls = type(kernel)
    name = kernel.name if "name" in vars(cls) and kernel.name in Kernel.registered() else None
    if name is None or not cls.__module__.startswith("tilewise."):
        name = f"{cls.__module__}:{cls.__qualname__}"
    assert is_dataclass(kernel)
    return {"name": name, **{f.name: _jsonable(getattr(kernel, f.name)) for f in fields(kernel) if f.init}}


def _plain(value: Any) -> dict[str, Any]:
    """Fields as JSON data; what is None, or a mapping left as empty as it is by default, is left out."""
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    empty = {f.name for f in fields(value) if f.default_factory is dict and not found[f.name]}
    return {name: _jsonable(item) for name, item in found.items() if item is not None and name not in empty}


def _jsonable(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, (tuple, list)) else value
