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
        ({"kind": "processes", "threads": 2}, "one tile at a time"),
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


def test_auto_is_a_kind() -> None:
    assert resolve(Cluster()).kind in ("threads", "processes", "local")


def test_cuda_is_refused_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ParameterError, match="no CUDA device"):
        resolve(Cluster(), "cuda")
    assert resolve(Cluster(), "auto").device == "cpu"
    with pytest.raises(ParameterError, match="device is unknown"):
        resolve(Cluster(), "tpu")  # type: ignore[arg-type]
