from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

from tilewise import baseline as module
from tilewise.baseline import baseline, measure_baseline, remember


def test_a_baseline_is_measured_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = baseline("processes")
    assert 100 << 20 < measured < 2 << 30
    monkeypatch.setattr(module, "_measure", lambda kind, remote: pytest.fail("measured again"))
    assert baseline("processes") == measured
    remember("processes", measured + 1)
    assert baseline("processes") == measured + 1


def test_threads_hold_what_their_process_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_xarray = module._key("threads", ())
    monkeypatch.delitem(sys.modules, "xarray")
    assert module._key("threads", ()) != with_xarray
    assert "xarray" not in module._imports("threads")
    assert module._key("processes", ()) != module._key("local", ())


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"other": 3}', "KEY: 12", 'KEY: "12"', "KEY: -5", "KEY: 1.5", "KEY: true"]
)
def test_a_broken_cache_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tilewise").mkdir()
    key = json.dumps(module._key("threads", ()))
    (tmp_path / "tilewise" / "baseline.json").write_text(text.replace("KEY", key))
    monkeypatch.setattr(module, "_measure", lambda kind, remote: 7)
    assert baseline("threads") == (12 if text == "{KEY: 12}" else 7)
    remember("threads", 8)
    assert baseline("threads") == 8


def test_a_cache_that_cannot_be_added_to_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands where the new file would be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tilewise" / f"baseline.{os.getpid()}").mkdir(parents=True)
    (tmp_path / "tilewise" / "baseline.json").write_text('{"other": 3}')
    monkeypatch.setattr(module, "_measure", lambda kind, remote: 7)
    assert baseline("threads") == 7


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module, "_measure", lambda kind, remote: 7)
    assert baseline("threads") == 7


def test_what_reads_a_file_is_part_of_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a worker loads when it first opens a file is there before its baseline is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "x.nc"
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(path)
    code = (
        "import sys; from tilewise.baseline import measure_baseline; from tilewise.foreign import ForeignArray; "
        f"measure_baseline([{str(path)!r}]); before = set(sys.modules); "
        f"array = ForeignArray.open({str(path)!r}, 'x'); array.chunks; array[:]; "
        "print(sorted(name for name in set(sys.modules) - before if name.partition('.')[0] != 'encodings'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_file_that_a_worker_cannot_see_is_left_to_its_reader(tmp_path: Path) -> None:
    assert measure_baseline([str(tmp_path / "gone.nc")]) > 0


def test_baselines_of_formats_are_kept_apart() -> None:
    assert module._key("processes", ("/a.nc",)) == module._key("processes", ("/b.nc",))
    assert module._key("processes", ("/a.nc",)) != module._key("processes", ("/a.grib",))
