"""What people read of plans and runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import stores
from tilewise import Cluster, Job, Output, Report, plan, report, run, texts
from tilewise.cf import to_json
from tilewise.outcome import Event
from user_kernels import Total


@pytest.fixture
def job(tmp_path):
    x = np.arange(4 * 6 * 10, dtype="float32").reshape(4, 6, 10)
    store = stores.write(tmp_path / "x.zarr", {"x": (("band", "y", "x"), x)}, chunks={"y": 2, "x": 5})
    output = Output(store=str(tmp_path / "out.zarr"), chunks={"y": 2, "x": 5}, shards={"x": 10})
    return Job(
        kernel=Total(dim="band", factor=float("inf")),
        inputs={"x": store},
        output=output,
        memory_limit="8 GiB",
        tile={"y": 2},
        cluster=Cluster(kind="threads", workers=1),
    )


def test_what_a_plan_says_as_json(job):
    found = json.loads(to_json(report.describe(job)))
    assert set(found) == {"kernel", "inputs", "outputs", "workers", "plan"}
    assert found["kernel"] == {"name": "user_kernels:Total", "dim": "band", "factor": "inf"}
    assert found["inputs"]["x"] == {
        "store": job.inputs["x"].store,
        "variables": ["x"],
        "dims": ["band", "y", "x"],
        "shape": [4, 6, 10],
        "dtype": "float32",
        "chunks": [4, 2, 5],
        "shards": None,
        "bytes": 960,
        "shared": False,
        "decoded": [],
    }
    assert found["outputs"]["status"] == {
        "store": job.output.store,
        "variables": ["status"],
        "dims": ["y", "x"],
        "shape": [6, 10],
        "dtype": "uint8",
        "chunks": [2, 5],
        "shards": [2, 10],
        "bytes": 60,
        "packed": None,
    }
    assert found["workers"] == {"kind": "threads", "device": "cpu"}
    memory = found["plan"]["memory"]
    assert {"tile_dims", "grid", "tile", "unit", "tiles", "block", "blocks", "panel", "processes", "slots"} <= set(
        found["plan"]
    )
    per_slot = memory["boxes"] + memory["outputs"] + memory["transient"]
    assert memory["peak"] == memory["baseline"] + memory["shared"] + memory["slots"] * per_slot + memory["allocator"]
    # Every key of the JSON stands in the docstring that documents it.
    described = set(re.findall(r"`(\w+)`", report.describe.__doc__ or ""))
    inner = [found, found["inputs"]["x"], found["workers"], found["plan"], memory]
    assert {key for mapping in inner for key in mapping} <= described


def test_what_a_plan_says_in_words(job):
    text = report.plan_text(report.describe(job))
    for line in (
        r"kernel         user_kernels:Total\(dim=band, factor=inf\)",
        r"input x        \(band 4, y 6, x 10\) float32, 960 B, chunks 4 x 2 x 5",
        r"output total   \(y 6, x 10\) float32, 240 B, chunks 2 x 5, shards 2 x 10",
        r"output status  \(y 6, x 10\) uint8, 60 B, chunks 2 x 5, shards 2 x 10",
        r"tiles          3: y 3, x 1",
        r"tasks          3 of 1 tile",
        r"tile           y 2, x 10; panels of \d+ pixels",
        r"workers        threads: 1 process on cpu, 1 tile at a time",
        r"reads          960 B, 1.00 times the inputs",
        r"writes         300 B",
        r"  boxes of inputs  320 B",
        r"  outputs          100 B",
        r"  predicted peak   \d+ MiB of a limit of 8.00 GiB",
    ):
        assert re.search(f"^{line}$", text, re.M), f"{line} is not in\n{text}"


def test_what_a_run_says(job):
    found = Report(
        output="out.zarr",
        plan=plan(job).with_baseline(0),
        tiles=plan(job).tiles,
        seconds=2.0,
        startup=1.5,
        phases={"read": 0.25, "compute": 3.0, "write": 0.5},
        statuses={"ok": 1000000, "no_data": 3},
        peaks={"host:1": 3 << 20, "host:2": 2 << 20},
    )
    peak = texts.format_bytes(found.plan.memory.peak)
    assert report.run_text(found).splitlines() == [
        "output   out.zarr",
        f"tiles    {found.tiles} in 2.0 s, after 1.5 s to start",
        "read     960 B, 480 B/s",
        "written  300 B, 150 B/s",
        "phases   read 250 ms, compute 3.0 s, write 500 ms",
        "pixels   1,000,000 ok, 3 no_data",
        f"peak     3.00 MiB of {peak} predicted, in one process",
    ]


def test_a_run_that_was_finished_before_has_no_speed(job):
    run(job)
    assert report.run_text(run(job, resume=True)).splitlines() == [
        f"output  {job.output.store}",
        "tiles   all 3 were done before",
        "pixels  60 non_finite",
    ]


def test_a_run_tells_of_every_tile_and_leaves_json_for_all(job):
    events: list[Event] = []
    found = run(job, progress=events.append)
    assert [(event.done, event.total) for event in events] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert json.loads(to_json(found.to_dict()), parse_constant=pytest.fail)["tiles"] == 3
    # An order of infinity is in the provenance, and zarr.json must be JSON to readers of other languages.
    for path in (Path(job.output.store) / "zarr.json", Path(str(job.sidecar_folder)) / "job.json"):
        assert "inf" in path.read_text()
        json.loads(path.read_text(), parse_constant=pytest.fail)
