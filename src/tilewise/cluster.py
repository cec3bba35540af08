"""Which workers do the tiles: the spec of a cluster, and its numbers on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilewise import machine
from tilewise.errors import ParameterError

Kind = Literal["auto", "threads", "processes", "local", "address", "scheduler-file"]
KINDS: tuple[Kind, ...] = ("auto", "threads", "processes", "local", "address", "scheduler-file")
#: Kinds whose workers somebody else has started.
#: Workers, and threads of one, beyond which a number is a slip.
MOST = 1_000_000
REMOTE: tuple[Kind, ...] = ("address", "scheduler-file")
Device = Literal["auto", "cpu", "cuda"]
#: How long to wait for a scheduler and its workers unless the job says.
TIMEOUT = "60 s"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which workers do the tiles.

    Attributes
    ----------
    kind
        "threads" (this process), "processes" (a spawn pool), "local" (a distributed LocalCluster), "address" or
        "scheduler-file" (the workers of a Dask scheduler that runs already), or "auto": the client that
        dask.compute would use, if there is one; else processes for jobs that read and write 1 GiB or more and for
        several GPUs, and threads for the others.
    workers
        Worker processes, or threads of the one process; the machine's cores unless given. Of workers that run
        already: how many are used; all of them, also those that join later, unless given.
    threads
        Tiles in work at a time within each worker; 1 unless given. Of workers that run already: as many as the
        threads that they have, unless given.
    address
        Address of the scheduler, such as "tcp://host:8786"; needs kind "address".
    scheduler_file
        The JSON file in which the scheduler has written its address; needs kind "scheduler-file".
    wait_for
        Workers that must have joined before the run begins; `workers`, or else 1, unless given.
    timeout
        How long to wait for the scheduler and its workers: seconds, or text such as "10 min"; 60 s unless given.
    """

    kind: Kind = "auto"
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    scheduler_file: str | None = None
    wait_for: int | None = None
    timeout: float | str | None = None

    def __post_init__(self) -> None:
        """Refuse kinds and counts that cannot be, and keys that contradict each other."""
        if self.kind not in KINDS:
            raise ParameterError(
                "cluster.kind is unknown", got=repr(self.kind), expected=" | ".join(KINDS), do="mend cluster.kind"
            )
        for name in ("workers", "threads", "wait_for"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST):
                raise ParameterError(
                    f"cluster.{name} is not a count",
                    got=repr(value),
                    expected=f"1 to {MOST}",
                    do=f"mend cluster.{name}",
                )
        if self.kind == "processes" and self.threads not in (None, 1):
            raise ParameterError(
                "a processes worker does one tile at a time",
                got=f"cluster.threads {self.threads}",
                do="set cluster.workers instead, or use cluster.kind local",
            )
        _check_place(self, "address", "address", "tcp://host:8786")
        _check_place(self, "scheduler_file", "scheduler-file", "/shared/scheduler.json")
        self._check_waiting()

    def _check_waiting(self) -> None:
        for name in ("wait_for", "timeout"):
            if getattr(self, name) is not None and self.kind not in (*REMOTE, "auto"):
                raise ParameterError(
                    f"cluster.{name} is about workers that run already",
                    got=f"cluster.kind {self.kind}",
                    expected="cluster.kind " + " or ".join(REMOTE),
                    do=f"leave cluster.{name} out",
                )
        if self.workers is not None and self.wait_for is not None and self.wait_for > self.workers:
            raise ParameterError(
                "cluster.wait_for is more than cluster.workers, the most that are used",
                got=f"wait_for {self.wait_for}, workers {self.workers}",
                do="mend one of them",
            )
        if not self.seconds >= 0 or isinstance(self.timeout, bool):
            raise ParameterError(
                "cluster.timeout is no time to wait",
                got=repr(self.timeout),
                expected="0 or more",
                do="mend cluster.timeout",
            )

    @property
    def seconds(self) -> float:
        """How long to wait for the scheduler and its workers.

        >>> Cluster(kind="address", address="tcp://host:8786", timeout="10 min").seconds
        600.0
        """
        from dask.utils import parse_timedelta

        timeout = TIMEOUT if self.timeout is None else self.timeout
        text = re.sub(r"min$", "minute", timeout) if isinstance(timeout, str) else timeout
        try:
            return float(text) if isinstance(text, int | float) else float(parse_timedelta(text, default="s"))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ParameterError(
                "cluster.timeout is not a time",
                got=repr(timeout),
                expected='seconds, or text such as "10 min"',
                do="mend cluster.timeout",
            ) from error


def _check_place(cluster: Cluster, name: str, kind: str, example: str) -> None:
    """A key that says where the scheduler is comes with its kind, and the kind with its key."""
    value = getattr(cluster, name)
    if value is None and cluster.kind == kind:
        raise ParameterError(
            f"cluster.kind {kind} needs cluster.{name}", expected=f"such as {example}", do=f"set cluster.{name}"
        )
    if value is None:
        return
    if cluster.kind != kind:
        raise ParameterError(
            f"cluster.{name} needs cluster.kind {kind}",
            got=f"cluster.kind {cluster.kind}",
            do=f"set cluster.kind to {kind}, or leave cluster.{name} out",
        )
    if not isinstance(value, str) or not value.strip():
        raise ParameterError(
            f"cluster.{name} is not a place", got=repr(value), expected=f"such as {example}", do=f"mend cluster.{name}"
        )


@dataclass(frozen=True)
class Ceiling:
    """The worker of least memory among those that somebody else has started.

    Attributes
    ----------
    worker
        Its address.
    limit
        Its memory limit, in bytes.
    pause
        Bytes above which it takes no further task.
    """

    worker: str
    limit: int
    pause: int


@dataclass(frozen=True)
class Layout:
    """A cluster with its numbers: `processes` workers with `slots` tiles in work at a time within each.

    `room` are the bytes that one process may take unless the job says, `baseline` those that the largest has in use
    to begin with, and `ceiling` its limits, where workers run already.
    """

    kind: str
    processes: int
    slots: int
    device: str
    room: int | None = None
    baseline: int | None = None
    ceiling: Ceiling | None = None


def resolve(cluster: Cluster, device: Device = "cpu", nbytes: int = 0) -> Layout:
    """Numbers of a local cluster on this machine, for a job that reads and writes so many bytes.

    Raises
    ------
    ParameterError
        CUDA is asked for where there is none.
    """
    found = _device(device)
    workers = cluster.workers or (_cuda_count() if found == "cuda" else machine.cores())
    kind = _auto(found, workers, nbytes) if cluster.kind == "auto" else cluster.kind
    if kind == "threads":
        return Layout(kind, 1, workers * (cluster.threads or 1), found)
    return Layout(kind, workers, cluster.threads or 1, found)


#: Bytes read and written from which processes are the default. They take the better part of a second longer to start
#: than threads and a third less time for each tile, since threads share one event loop of zarr and one address space:
#: on two cores that is paid back within 0.6 to 2 GB, as the codec has it (scripts/bench_kinds.py).
PROCESSES_FROM = 1 << 30


def _auto(device: str, workers: int, nbytes: int) -> Kind:
    if workers == 1:
        return "threads"
    return "processes" if device == "cuda" or nbytes >= PROCESSES_FROM else "threads"


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
