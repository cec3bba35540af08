"""What the benchmarks stand on: watched processes, contenders that compute the same, and the page they fill."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import _bare
import _page
import _stream
import _tree
import bench_stream
from _stream import BANDS, UNKNOWNS, Setup

MIB = 1 << 20
#: A program that holds memory in itself and in a process that it starts.
HOLDS = """
import subprocess, sys, time
held = b"x" * (64 << 20)
if len(sys.argv) == 1:
    other = subprocess.Popen([sys.executable, sys.argv[0], "child"])
    other.wait()
else:
    time.sleep(1.2)
print("held", len(held) >> 20)
"""


def test_all_processes_of_a_program_are_watched(tmp_path):
    program = tmp_path / "holds.py"
    program.write_text(HOLDS)
    ended = _tree.run([sys.executable, str(program)])
    assert ended.text.splitlines()[-1] == "held 64"
    assert 64 * MIB < ended.largest < 128 * MIB
    assert 128 * MIB < ended.together < 256 * MIB
    assert ended.cpu_between(ended.started, ended.started + ended.seconds) > 0


def test_a_program_that_fails_is_told_of():
    with pytest.raises(SystemExit, match=r"(?s)ended with 3:.*what went wrong"):
        _tree.run([sys.executable, "-c", "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"])


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    rng = np.random.default_rng(0)
    group = zarr.create_group(folder / "in.zarr")
    group.create_array("b", data=rng.standard_normal((BANDS, 250, 500), "float32"), chunks=(BANDS, 250, 250))
    group.create_array("A", data=rng.standard_normal((BANDS, UNKNOWNS), "float32"))
    source = str(folder / "in.zarr")
    return Setup("bare", "lstsq", "zstd", source, source, str(folder / "out.zarr"), cores=1, way="hand")


@pytest.mark.parametrize("kernel", ["lstsq", "norm"])
def test_every_way_of_the_bare_loop_computes_the_same(setup, kernel):
    own = replace(setup, kernel=kernel)
    box = np.asarray(zarr.open_array(setup.source, path="b", mode="r")[:, :7, :9])
    found = [compute(own)(box) for compute in _bare.WAYS.values()]
    for values in found:
        # As loose as the check of a benchmark's output: rounding of float32 over 50 terms is far below it.
        np.testing.assert_allclose(
            values[own.result], _stream.expected(own, box.astype("float64")), rtol=1e-4, atol=1e-5
        )
        assert {name: (v.shape, v.dtype) for name, v in values.items()} == {
            name: (v.shape, v.dtype) for name, v in found[0].items()
        }
        assert not values.get("status", np.zeros(1)).any()


def test_a_contender_runs_and_what_it_wrote_is_checked_and_removed(setup):
    run = bench_stream.measured(setup)
    assert run.total > run.seconds > 0
    assert run.largest > 50 * MIB
    assert not Path(setup.output).exists()


def test_a_wrong_result_is_no_result(setup):
    _bare.create_result(setup)[...] = 0
    with pytest.raises(SystemExit, match="bare loop, hand: the result of lstsq is wrong"):
        _stream.check(setup)


def runs(*seconds):
    return [bench_stream.Run(s, 1.0, s + 1.5, 2 * s, 300 * MIB, 600 * MIB, {}) for s in seconds]


def test_ratios_are_of_the_runs_of_one_round(setup):
    ways = {"tilewise": "auto", "bare": "hand", "floor": "hand", "cubed": "threads"}
    auto, bare, floor, cubed = (replace(setup, peer=peer, way=way) for peer, way in ways.items())
    found = bench_stream.figures({auto: runs(2, 3), bare: runs(1, 2), floor: runs(1, 1), cubed: runs(4, 3)})
    assert found == {
        "tilewise, auto / bare loop (at most 1.10)": [2, 1.5],
        "bare loop, hand / decode, then encode (at most 1.10)": [1, 2],
        "cubed, threads / tilewise (at least 1.5)": [2, 1],
    }
    line = bench_stream.table({auto: runs(2, 3, 4)}, 6.0)[1]
    expected = "tilewise, auto 3.00 (2.00 to 4.00) 2.00 1.00 (1.00 to 1.00) 4.50 (3.50 to 5.50) 6.0 300 600"
    assert " ".join(line.split()) == expected


def test_every_way_of_ours_counts_and_the_best_of_the_loop(setup):
    ours = bench_stream.choices(replace(setup, peer="tilewise"))
    assert {way: len(options) for way, options in ours.items()} == {"auto": 1, "processes": 1, "local": 1}
    assert {way: len(o) for way, o in bench_stream.choices(setup).items()} == {"best": 6}


def test_the_page_tells_how_and_where_and_what(tmp_path):
    script = tmp_path / "bench_thing.py"
    script.write_text('"""How a thing is timed.\n\nIn turns.\n\n    python scripts/bench_thing.py [--runs 5]\n"""\n')
    result = _page.Result("python scripts/bench_thing.py", "2026-01-02", 90.0, (0.1, 1.9), {"cores": "2"}, ("1.0 s",))
    failed = replace(result, machine={"cores": "4"}, lines=(), failure="The script ended with 1.")
    result.save(tmp_path / "kept" / "thing.json")
    assert _page.Result.load_from(tmp_path / "kept" / "thing.json") == result
    page = _page.page([("Things", script, result), ("Broken", script, failed), ("Others", script, None)])
    first, broken, others = page.split("\n## ")[2:]
    assert "| cores | 2 |" in page
    assert first.startswith(
        "Things\n\nHow a thing is timed.\n\nIn turns.\n\n`python scripts/bench_thing.py`: 2026-01-02, 2"
    )
    assert "```text\n1.0 s\n```" in first
    assert "| cores | 4 |" in broken
    assert "The script ended with 1." in broken
    assert others.endswith("Not measured.\n")


def test_this_machine_is_named():
    named = _page.machine()
    assert {"processor", "cores", "memory", "system", "python", "torch", "zarr"} <= named.keys()
    assert all(named.values())
