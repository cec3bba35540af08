"""What people see: numbers with units, progress on terminals and elsewhere, plans and runs in a few lines."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import sys
import termios
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import stores
from tilewise import Cluster, Job, Output, Report, plan, report, run
from tilewise.cf import to_json
from tilewise.outcome import Event
from user_kernels import Total


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (999 * 1024, "999 KiB"),
        (1000 * 1024, "0.98 MiB"),
        (1 << 50, "1.00 PiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_bytes(count, text):
    assert report.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (119.6, "2 min"),
        (3599.7, "1 h"),
        (3661, "1 h 1 min"),
        (86400 * 3 + 3600 * 5 + 59, "3 d 5 h"),
        (86400 + 59, "1 d"),
    ],
)
def test_durations(seconds, text):
    assert report.format_seconds(seconds) == text


def test_a_rate_without_time_is_none():
    assert report.format_rate(10, 0.0) == "-"


# --- progress


def watch(stream: io.StringIO, *seconds: float) -> list[str]:
    """Lines of a run of which one tile is done at each of these times, and the last of all at the end."""
    total = len(seconds)
    with report.progress(stream=stream) as on_event:
        on_event(Event(0, total, 0.0, 0))
        for done, time in enumerate(seconds, start=1):
            on_event(Event(done, total, time, done << 20))
    return stream.getvalue().splitlines()


def test_a_line_at_the_start_now_and_then_and_at_the_end():
    assert watch(io.StringIO(), 1, 5, 9.9, 10.0, 19.0, 20.5, 21.0, 22.0) == [
        "tilewise: 0 of 8 tiles",
        "tilewise: 4 of 8 tiles (50 %) in 10.0 s, 410 KiB/s, about 10.0 s left",
        "tilewise: 6 of 8 tiles (75 %) in 20.5 s, 300 KiB/s, about 6.8 s left",
        "tilewise: 8 of 8 tiles (100 %) in 22.0 s, 372 KiB/s",
    ]


def test_nobody_listens():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert watch(Gone(), 1, 2) == []
    closed = io.StringIO()
    on_event = report.progress(stream=closed)
    closed.close()
    on_event(Event(0, 1, 0.0, 0))


def test_quiet(capfd, monkeypatch):
    with report.progress(quiet=True) as on_event:
        on_event(Event(1, 1, 1.0, 1))
    monkeypatch.setattr(sys, "stderr", None)
    with report.progress() as on_event:
        on_event(Event(1, 1, 1.0, 1))
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def terminal():
    """A pseudo-terminal: a stream to write to, and a function that reads at the other end until a line is complete."""
    control, end = os.openpty()
    termios.tcsetwinsize(end, (24, 80))
    stream = os.fdopen(end, "w")

    def seen() -> str:
        stream.flush()
        text = ""
        while not text.endswith("\n") and select.select([control], [], [], 10.0)[0]:
            text += os.read(control, 1 << 16).decode()
        return text

    yield stream, seen
    stream.close()
    os.close(control)


def test_a_bar_on_a_terminal(terminal):
    stream, seen = terminal
    on_event = report.progress(stream=stream)
    for event in (Event(0, 4, 0.0, 0), Event(1, 4, 1.0, 1 << 20), Event(4, 4, 2.0, 4 << 20)):
        on_event(event)
    text = seen()
    assert re.search(r"^\r +0% \|.*\| 0/4 tiles", text)
    assert re.search(r"100% \|.*\| 4/4 tiles \[.*, 2.00 MiB/s\]\r\n$", text)


def test_a_run_that_fails_leaves_the_terminal_in_order(terminal):
    stream, seen = terminal
    with suppress(ValueError), report.progress(stream=stream) as on_event:
        on_event(Event(1, 4, 1.0, 1 << 20))
        raise ValueError
    assert seen().endswith("\n")


def test_log_messages_are_lines_on_standard_error(capsys):
    log = logging.getLogger("tilewise")
    before = (log.level, list(log.handlers))
    with report.logged():
        log.info("measuring")
    with report.logged(quiet=True):
        log.warning("unseen")
    log.info("unseen")
    assert capsys.readouterr() == ("", "tilewise: measuring\n")
    assert (log.level, log.handlers) == before


# --- plans and runs


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
        tiles=1234,
        seconds=2.0,
        startup=1.5,
        phases={"read": 0.25, "compute": 3.0, "write": 0.5},
        statuses={"ok": 1000000, "no_data": 3},
        peaks={"host:1": 3 << 20, "host:2": 2 << 20},
    )
    peak = report.format_bytes(found.plan.memory.peak)
    assert report.run_text(found).splitlines() == [
        "output   out.zarr",
        "tiles    1,234 in 2.0 s, after 1.5 s to start",
        "read     960 B, 480 B/s",
        "written  300 B, 150 B/s",
        "phases   read 250 ms, compute 3.0 s, write 500 ms",
        "pixels   1,000,000 ok, 3 no_data",
        f"peak     3.00 MiB of {peak} predicted, in one process",
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
