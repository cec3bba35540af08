"""Records of runs: written and read again, damaged ones are none, and which output they speak of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.folders import Folder
from tilewise.runfile import RUN_FILE, RunRecord


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "o.tilewise"))
    assert RunRecord.load(folder) is None
    record = RunRecord.begin("a", str(tmp_path / "o"), {"torch": "2"})
    record.save(folder)
    assert RunRecord.load(folder) == record
    record.at("stopped").resumed("b", {"torch": "3"}).save(folder)
    found = RunRecord.load(folder)
    assert found is not None
    assert (found.run, found.runs, found.stage, found.environment) == ("b", ("a", "b"), "running", {"torch": "3"})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"run": "a"}', '{"run":"a","stage":"x","output":"o","environment":{},"runs":[]}']
)
def test_a_damaged_record_is_none_and_said(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder(str(tmp_path))
    folder.write_text(RUN_FILE, text)
    assert RunRecord.load(folder) is None
    assert "is damaged" in caplog.text


def test_a_record_speaks_of_one_output_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = RunRecord("a", "running", "o.zarr")
    assert record.is_resumable(str(tmp_path / "o.zarr"))
    assert record.is_resumable("./o.zarr/")
    assert not record.is_creating("o.zarr")
    assert not record.is_resumable("p.zarr")
    assert record.at("creating").is_creating("o.zarr")
    assert not record.at("creating").is_resumable("o.zarr")
    assert not record.at("creating").is_creating("p.zarr")


def test_a_run_takes_the_names_of_one_that_was_killed_while_creating_and_of_no_other() -> None:
    killed = RunRecord.begin("a", "o", {})
    assert RunRecord.begin("b", "o", {}, killed).runs == ("a", "b")
    assert RunRecord.begin("b", "p", {}, killed).runs == ("b",)
    assert RunRecord.begin("b", "o", {}, killed.at("finished")).runs == ("b",)
