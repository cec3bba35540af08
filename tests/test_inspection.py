"""What workers of others are asked, and what their answers come to."""

from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import stores
from tilewise import __version__, cf, inspection
from tilewise.coordinates import ArrayRef
from tilewise.errors import ClusterError, ParameterError
from tilewise.inspection import Facts

GIB = 1 << 30
FACTS = Facts(("here", 1), nthreads=2, limit=10 * GIB, pause=8 * GIB, available=20 * GIB, baseline=GIB, cuda=0)


def test_another_minor_version_of_python_is_refused() -> None:
    mine = cf.library_versions()["python"]
    major, minor, *_ = mine.split(".")
    inspection.check_pythons({"worker a": f"{major}.{minor}.99"})
    with pytest.raises(ClusterError, match="worker b runs another version of Python; got: 2.7.1; expected: " + mine):
        inspection.check_pythons({"worker a": mine, "worker b": "2.7.1"})


def test_tilewise_has_to_be_the_same() -> None:
    inspection.check_tilewise({"worker a": __version__})
    with pytest.raises(ClusterError, match="worker b has another version of tilewise; got: 9.9"):
        inspection.check_tilewise({"worker a": __version__, "worker b": "9.9"})
    with pytest.raises(ClusterError, match="the scheduler has no tilewise; expected"):
        inspection.check_tilewise({"the scheduler": ""})


def test_what_asks_for_the_version_travels_by_value() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(inspection.version_asker())
    assert pickle.loads(cloudpickle.dumps(inspection.version_asker()))() == __version__


def test_warnings_name_worker_library_and_both_versions() -> None:
    mine = cf.library_versions()
    theirs = {"worker a": dict(mine), "worker b": {**mine, "torch": "0.1"}, "worker c": {**mine, "numcodecs": "absent"}}
    first, second = inspection.version_warnings(theirs)
    assert first.startswith(f"worker b has torch 0.1, the client {mine['torch']}")
    assert second.startswith(f"worker c has numcodecs absent, the client {mine['numcodecs']}")


def test_numbers_of_workers_by_process() -> None:
    facts = {
        "a": FACTS,
        "b": replace(FACTS, nthreads=1, baseline=2 * GIB),  # in the same process as a
        "c": replace(FACTS, process=("there", 1), limit=4 * GIB, pause=3 * GIB),
    }
    layout = inspection.lay_out("address", facts, None, "cpu")
    assert (layout.processes, layout.slots, layout.device) == (2, 3, "cpu")
    assert layout.baseline == 2 * GIB
    assert layout.room == int(0.6 * 4 * GIB)
    assert layout.ceiling is not None
    assert (layout.ceiling.worker, layout.ceiling.limit, layout.ceiling.pause) == ("c", 4 * GIB, 3 * GIB)
    assert inspection.lay_out("address", facts, 1, "cpu").slots == 2
    with pytest.raises(ParameterError, match="more than worker b has; got: 2; expected: at most 1"):
        inspection.lay_out("address", facts, 2, "cpu")


def test_workers_without_a_limit_share_what_their_machine_has() -> None:
    free = replace(FACTS, limit=0, pause=0)
    facts = {"a": free, "b": replace(free, process=("here", 2)), "c": replace(free, process=("there", 1))}
    layout = inspection.lay_out("client", facts, None, "cpu")
    assert layout.room == int(0.6 * 10 * GIB)
    assert layout.ceiling is None


def test_devices_are_those_of_the_workers() -> None:
    two = replace(FACTS, cuda=2)
    facts = {"a": two, "b": two, "c": two, "d": replace(two, process=("there", 1))}
    assert inspection.lay_out("address", facts, None, "auto").device == "cuda"
    assert inspection.cuda_numbers(facts) == {"a": 0, "b": 1, "c": 0, "d": 0}
    assert inspection.lay_out("address", {**facts, "e": FACTS}, None, "auto").device == "cpu"
    with pytest.raises(ParameterError, match="no CUDA device on worker e"):
        inspection.lay_out("address", {**facts, "e": FACTS}, None, "cuda")
    with pytest.raises(ParameterError, match="device is unknown"):
        inspection.lay_out("address", facts, None, "tpu")  # type: ignore[arg-type]


def test_stores_that_are_not_seen_are_named(tmp_path: Path) -> None:
    store = stores.write(tmp_path / "in.zarr", {"x": (("y",), np.ones(3))})
    assert inspection.unseen_inputs([ArrayRef(store, "x")]) == (socket.gethostname(), [])
    answer = inspection.unseen_inputs([ArrayRef(store, "x"), ArrayRef(str(tmp_path / "none"), "x")])
    with pytest.raises(ClusterError, match="the input .*none/x cannot be opened by worker tcp://a:1 on"):
        inspection.refuse_unseen("the input", {"tcp://a:1": answer})
    other = inspection.unseen_output(store, ("run",))
    with pytest.raises(ClusterError, match="got: another store, which this run has not made"):
        inspection.refuse_unseen("the output", {"tcp://a:1": other})
    inspection.refuse_unseen("the output", {})
