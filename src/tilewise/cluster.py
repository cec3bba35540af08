"""Which workers do the tiles: the spec of a cluster, and its numbers on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilewise import machine
from tilewise.errors import ParameterError

if TYPE_CHECKING:
    pass

Kind = Literal["auto", "threads", "processes", "local"]
KINDS: tuple[Kind, ...] = ("auto", "threads", "processes", "local")
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which workers do the tiles.

    Attributes
    ----------
    kind
        "threads" (this process), "processes" (a spawn pool), "local" (a distributed LocalCluster), or "auto":
        threads up to four workers, processes above and for several GPUs.
    workers
        Worker processes, or threads of the one process; the machine's cores unless given.
    threads
        Tiles in work at a time within each worker.
    """

    kind: Kind = "auto"
    workers: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse kinds and counts that cannot be."""
        if self.kind not in KINDS:
            raise ParameterError(
                "cluster.kind is unknown", got=repr(self.kind), expected=" | ".join(KINDS), do="mend cluster.kind"
            )
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ParameterError(
                    f"cluster.{name} is not a count", got=repr(value), expected="at least 1", do=f"mend cluster.{name}"
                )
        if self.kind == "processes" and self.threads != 1:
            raise ParameterError(
                "a processes worker does one tile at a time",
                got=f"cluster.threads {self.threads}",
                do="set cluster.workers instead, or use cluster.kind local",
            )


@dataclass(frozen=True)
class Layout:
    """A cluster with its numbers: `processes` workers with `slots` tiles in work at a time within each."""

    kind: Kind
    processes: int
    slots: int
    device: str


def resolve(cluster: Cluster, device: Device = "cpu") -> Layout:
    """Numbers of a cluster on this machine.

    Raises
    ------
    ParameterError
        CUDA is asked for where there is none.
    """
    found = _device(device)
    workers = cluster.workers or (_cuda_count() if found == "cuda" else machine.cores())
    kind = _auto(found, workers) if cluster.kind == "auto" else cluster.kind
    if kind == "threads":
        return Layout(kind, 1, workers * cluster.threads, found)
    return Layout(kind, workers, cluster.threads, found)


#: Workers up to which threads are the default. On two cores they take less time than processes, for the tiles and in
#: all (scripts/bench_kinds.py). Within one process a single event loop of zarr copies every chunk, so that many
#: workers are given processes of their own; where the one overtakes the other has not been measured.
THREADS_UP_TO = 4


def _auto(device: str, workers: int) -> Kind:
    if device == "cuda":
        return "processes" if workers > 1 else "threads"
    return "threads" if workers <= THREADS_UP_TO else "processes"


def _device(device: Device) -> str:
    if device == "cpu":
        return "cpu"
    if device not in ("auto", "cuda"):
        raise ParameterError("device is unknown", got=repr(device), expected="auto | cpu | cuda", do="mend device")
    count = _cuda_count()
    if device == "cuda" and not count:
        raise ParameterError(
            "device is cuda and torch finds no CUDA device here",
            do="set device to cpu or auto, or install a CUDA build of torch",
        )
    return "cuda" if count else "cpu"


def _cuda_count() -> int:
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
