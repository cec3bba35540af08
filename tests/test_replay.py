"""One tile of a run computed once more: what it gives, and why it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import stores
import tilewise
from tilewise.cli import main
from tilewise.errors import ParameterError, ResumeError
from tilewise.recompute import unequal_bits
from tilewise.replay import replay
from user_kernels import Fragile, Total

X = np.arange(48.0).reshape(2, 4, 6)


def finished(folder: Path, kernel: tilewise.Kernel, **options: Any) -> str:
    """An output of four tiles as its run has left it."""
    store = stores.write(folder / "x.zarr", {"x": (("band", "y", "x"), X)}, chunks={"y": 1})
    output = str(folder / "out.zarr")
    job = tilewise.Job(
        kernel=kernel, inputs={"x": store}, output=output, cluster=tilewise.Cluster(kind="threads"), **options
    )
    tilewise.run(job)
    return output


def test_a_tile_that_is_done_gives_the_bits_that_are_stored(tmp_path: Path) -> None:
    output = finished(tmp_path, tilewise.Norm(dim="band"), tile={"y": 1})
    found = replay(output, 2)
    assert (found.tile, found.region, found.state, found.error, found.differences) == (
        2,
        "y=2:3, x=0:6",
        "done",
        "",
        (),
    )
    np.testing.assert_array_equal(found.outputs["norm"], stores.read(output, "norm")[2:3])
    assert min(found.seconds) > 0
    array = zarr.open_array(output, path="norm", mode="r+")
    array[2, 1] = -1
    assert replay(output, 2).differences[0].startswith("norm: 1 of 6 cells differ")
    assert replay(output, 1).differences == ()


def test_a_tile_that_fails_tells_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = finished(tmp_path, Fragile(dim="band", most=30.0), tile={"y": 1}, on_error="skip")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = replay(output, 1, allow=["user_kernels"])
    assert (found.state, found.outputs) == ("failed", {})
    assert found.error == "ValueError: x is 35"
    assert "user_kernels.py" in found.details
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(SystemExit) as exit_:
        main(("replay", output, "--tile", "1", "--allow", "user_kernels"))
    assert exit_.value.code == 3
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-2:] == ["tile    1 (y=1:2, x=0:6), failed in the run", "error   ValueError: x is 35"]


def test_the_command_tells_of_a_tile_that_is_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = finished(tmp_path, Total(dim="band"), tile={"y": 1})
    arguments = ("replay", output, "--tile", "3", "--allow", "user_kernels")
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as exit_:
            main((*arguments, *more))
        assert exit_.value.code == 0
    text, document = capfd.readouterr().out.split("{", 1)
    lines = text.splitlines()
    assert lines[1] == "tile     3 (y=3:4, x=0:6), done in the run"
    assert lines[3:] == ["pixels   6 ok", "stored   the same bits"]
    assert json.loads("{" + document)["statuses"] == {"ok": 6}


@pytest.mark.parametrize("tile", [-1, 4, True, 1.0])
def test_a_tile_that_there_is_not(tmp_path: Path, tile: Any) -> None:
    output = finished(tmp_path, tilewise.Norm(dim="band"), tile={"y": 1})
    with pytest.raises(ParameterError, match="there is no such tile.*expected: 0 to 3"):
        replay(output, tile)


def test_a_kernel_that_is_not_allowed_and_records_that_are_not_there(tmp_path: Path) -> None:
    output = finished(tmp_path, Total(dim="band"))
    with pytest.raises(ParameterError, match=r"got: user_kernels:Total.*--allow user_kernels"):
        replay(output, 0)
    with pytest.raises(ResumeError):
        replay(str(tmp_path / "none.zarr"), 0)


def test_a_field_of_one_value_is_one_tile(tmp_path: Path) -> None:
    store = stores.write(tmp_path / "x.zarr", {"x": (("band",), np.array([3.0, 4.0]))})
    output = str(tmp_path / "out.zarr")
    tilewise.run(tilewise.Job(kernel=tilewise.Norm(dim="band"), inputs={"x": store}, output=output))
    found = replay(output, 0)
    assert (found.region, found.differences, found.outputs["norm"]) == ("", (), 5.0)
    array = zarr.open_array(output, path="norm", mode="r+")
    array[...] = 4.0
    (text,) = replay(output, 0).differences
    assert text == "norm: 1 of 1 cells differ from the recomputed ones, by up to 2.0e-01 of the largest value"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "uint8", "bool"])
def test_bits_are_compared_whatever_the_dtype(dtype: str) -> None:
    one = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    other = one.copy()
    assert not unequal_bits(one, other).any()
    other[1, 1] = 1
    if one.dtype.kind in "fc":
        one[0, 0], other[0, 0] = np.nan, -np.nan
        other[0, 1] = np.nextafter(one.real.dtype.type(1), one.real.dtype.type(2))
    expected = np.array([[False, one.dtype.kind in "fc", False], [False, True, False]])
    np.testing.assert_array_equal(unequal_bits(one, other), expected)
