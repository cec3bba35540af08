from __future__ import annotations

from typing import Any

import pytest

from tilewise import machine
from tilewise.cluster import Cluster, resolve
from tilewise.errors import ParameterError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "slurm"}, "cluster.kind is unknown"),
        ({"workers": 0}, "cluster.workers is not a count"),
        ({"workers": True}, "cluster.workers is not a count"),
        ({"threads": -2}, "cluster.threads is not a count"),
        ({"workers": 10**30}, "cluster.workers is not a count.* 1 to 1000000"),
        ({"kind": "processes", "threads": 2}, "one tile at a time"),
        ({"kind": "address"}, "cluster.kind address needs cluster.address"),
        ({"kind": "scheduler-file"}, "cluster.kind scheduler-file needs cluster.scheduler_file"),
        ({"address": "tcp://a:1"}, "cluster.address needs cluster.kind address; got: cluster.kind auto"),
        ({"kind": "address", "address": "tcp://a:1", "scheduler_file": "f"}, "scheduler_file needs cluster.kind"),
        ({"kind": "address", "address": " "}, "cluster.address is not a place"),
        ({"kind": "address", "address": 8786}, "cluster.address is not a place"),
        ({"wait_for": 0}, "cluster.wait_for is not a count"),
        ({"workers": 2, "wait_for": 3}, "cluster.wait_for is more than cluster.workers"),
        ({"kind": "local", "wait_for": 3}, "cluster.wait_for is about workers that run already"),
        ({"kind": "threads", "timeout": 3}, "cluster.timeout is about workers that run already"),
        ({"timeout": "soon"}, "cluster.timeout is not a time"),
        ({"timeout": ""}, "cluster.timeout is not a time"),
        ({"timeout": True}, "cluster.timeout is no time to wait"),
        ({"timeout": -1}, "cluster.timeout is no time to wait"),
        ({"timeout": float("nan")}, "cluster.timeout is no time to wait"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Cluster(**options)


def test_numbers_come_from_the_machine() -> None:
    cores = machine.cores()
    threads = resolve(Cluster(kind="threads"))
    assert (threads.processes, threads.slots) == (1, cores)
    processes = resolve(Cluster(kind="processes"))
    assert (processes.processes, processes.slots) == (cores, 1)
    local = resolve(Cluster(kind="local", workers=3, threads=2))
    assert (local.processes, local.slots) == (3, 2)


@pytest.mark.parametrize(
    ("workers", "nbytes", "kind"),
    [(2, (1 << 30) - 1, "threads"), (2, 1 << 30, "processes"), (16, 0, "threads"), (1, 1 << 40, "threads")],
)
def test_auto_takes_processes_where_their_start_pays(workers: int, nbytes: int, kind: str) -> None:
    assert resolve(Cluster(workers=workers), nbytes=nbytes).kind == kind


def test_cuda_is_refused_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ParameterError, match="no CUDA device"):
        resolve(Cluster(), "cuda")
    assert resolve(Cluster(), "auto").device == "cpu"
    with pytest.raises(ParameterError, match="device is unknown"):
        resolve(Cluster(), "tpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, 60), (5, 5), (0.5, 0.5), ("5", 5), ("10 min", 600), ("2 hours", 7200), ("1m", 60)]
)
def test_a_timeout_is_seconds_or_text(timeout: Any, seconds: float) -> None:
    assert Cluster(timeout=timeout).seconds == seconds
