"""What an output may replace, what can be resumed, and that what is replaced is never seen half."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import zarr

from tilewise import access, cf
from tilewise.errors import OutputExistsError, ParameterError, ResumeError
from tilewise.folders import Folder
from tilewise.outputs import Output
from tilewise.replacing import check_output, clear, sweep
from tilewise.runfile import RunRecord, Stage


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "o.zarr") if request.param == "local" else f"memory://{uuid4().hex}/o.zarr")


def sidecar_of(folder: Folder) -> Folder:
    return Folder(f"{folder.place}.tilewise")


def made_by(run: str, folder: Folder, count: int = 6) -> None:
    """An output as a run makes it."""
    store = access.zarr_store(folder.place, read_only=False)
    group = zarr.create_group(store, attributes=cf.provenance({"kernel": {"name": "norm"}}, run))
    group.create_array("out", shape=(count,), chunks=(1,), dtype="float32")[...] = 1


def record(folder: Folder, stage: Stage, run: str = "a") -> RunRecord:
    return RunRecord(run, stage, folder.place)


def check(folder: Folder, record: RunRecord | None, *, overwrite: bool = False, resume: bool = False) -> None:
    check_output(Output(store=folder.place), [], overwrite=overwrite, resume=resume, record=record)


def test_a_run_whose_output_is_there_can_be_resumed_at_every_stage_but_creating(folder: Folder) -> None:
    made_by("a", folder)
    for stage in ("running", "finished", "failed", "stopped"):
        check(folder, record(folder, stage), resume=True)
    resumed = record(folder, "running").resumed("b", {})
    check(folder, resumed, resume=True)


def test_what_cannot_be_resumed_is_refused_by_name(folder: Folder) -> None:
    check(folder, None, resume=True)  # there is nothing at all: a run may begin
    with pytest.raises(ResumeError, match="is not the output that the run has made; got: none.*expected: run a"):
        check(folder, record(folder, "running"), resume=True)
    made_by("other", folder)
    with pytest.raises(ResumeError, match="no run of .* to resume; got: no record.*leave --resume out"):
        check(folder, None, resume=True)
    with pytest.raises(ResumeError, match="got: run other; expected: run a"):
        check(folder, record(folder, "running"), resume=True)
    with pytest.raises(ResumeError, match="that of another output"):
        check(folder, RunRecord("a", "running", "elsewhere.zarr"), resume=True)
    with pytest.raises(ParameterError, match="both replace the output and go on"):
        check(folder, record(folder, "running"), overwrite=True, resume=True)


def test_the_way_to_go_on_is_named_where_a_run_has_not_finished(folder: Folder) -> None:
    made_by("a", folder)
    with pytest.raises(OutputExistsError, match="--resume .*or pass --overwrite"):
        check(folder, record(folder, "running"))
    for other in (record(folder, "finished"), record(folder, "running", "b"), None):
        with pytest.raises(OutputExistsError, match="To mend it: choose another output.store, or pass --overwrite"):
            check(folder, other)
    check(folder, None, overwrite=True)


@pytest.mark.parametrize("resume", [True, False])
def test_what_a_run_was_creating_when_it_was_killed_is_no_obstacle(folder: Folder, resume: bool) -> None:
    creating = record(folder, "creating")
    check(folder, creating, resume=resume)
    made_by("a", folder)
    check(folder, creating, resume=resume)
    check(folder, RunRecord.begin("b", folder.place, {}, creating), resume=resume)
    if folder.path is not None:
        shutil.rmtree(folder.path)
        folder.path.mkdir()
        (folder.path / f"zarr.{uuid4().hex}.partial").write_text("{")
        check(folder, creating, resume=resume)


def test_an_output_that_a_killed_run_has_not_replaced_yet_is_kept(folder: Folder) -> None:
    made_by("old", folder)
    with pytest.raises(OutputExistsError, match="already exists"):
        check(folder, record(folder, "creating"))
    with pytest.raises(ResumeError, match="ended before it replaced.*--overwrite"):
        check(folder, record(folder, "creating"), resume=True)
    check(folder, record(folder, "creating"), overwrite=True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"attributes": []}', '{"attributes": {"tilewise": 1}}'])
def test_a_damaged_root_is_nobodys(folder: Folder, content: str) -> None:
    folder.write_text("zarr.json", content)
    with pytest.raises(ResumeError, match="is not the output"):
        check(folder, record(folder, "running"), resume=True)
    with pytest.raises(OutputExistsError):
        check(folder, record(folder, "creating"))


def test_a_file_of_somebody_is_never_what_a_run_was_creating(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "o.zarr"))
    (tmp_path / "o.zarr").write_text("thesis")
    with pytest.raises(OutputExistsError):
        check(folder, record(folder, "creating"))
    (tmp_path / "o.zarr").unlink()
    (tmp_path / "o.zarr").mkdir()
    (tmp_path / "o.zarr" / "a.jpg").write_text("x")
    for overwrite in (True, False):
        with pytest.raises(OutputExistsError):
            check(folder, record(folder, "creating"), overwrite=overwrite)


def test_an_output_goes_whole(folder: Folder) -> None:
    made_by("old", folder)
    clear(folder, sidecar_of(folder), "new")
    assert not folder.exists()
    assert sidecar_of(folder).names() == []
    clear(folder, sidecar_of(folder), "new")


def test_what_a_kill_leaves_of_an_old_output_is_swept(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "o.zarr"))
    made_by("older", Folder(f"{tmp_path}/o.zarr.tilewise/removed-new"))  # the very run was killed, and goes on
    made_by("old", folder)
    clear(folder, sidecar_of(folder), "new")
    assert not folder.exists()
    sidecar_of(folder).write_text("job.json", "{}")
    sweep(sidecar_of(folder))
    assert sidecar_of(folder).names() == ["job.json"]


class Killed(BaseException):
    """What stands for a kill: nothing handles it."""


def killed_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    """Let that many files and folders be removed, and then no more."""
    left = iter(range(steps))

    def counted(remove: Callable[..., None]) -> Callable[..., None]:
        def step(*args: Any, **options: Any) -> None:
            if next(left, None) is None:
                raise Killed
            remove(*args, **options)

        return step

    patch.setattr(os, "unlink", counted(os.unlink))
    patch.setattr(os, "rmdir", counted(os.rmdir))


def test_an_output_that_is_removed_where_it_lies_never_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the sidecar is on another file system: file by file, and killed after each one in turn."""
    folder, sidecar = Folder(str(tmp_path / "o.zarr")), Folder(f"memory://{uuid4().hex}/sidecar")
    whole = []
    while not whole or folder.exists():
        shutil.rmtree(folder.place, ignore_errors=True)
        made_by("old", folder, 2)
        with monkeypatch.context() as patch, suppress(Killed):
            killed_after(len(whole), patch)
            clear(folder, sidecar, "new")
        whole.append((tmp_path / "o.zarr" / "zarr.json").exists())
        if not whole[-1]:
            check(folder, record(folder, "creating", "new"))
            check(folder, None, overwrite=True)
    # First goes what the mark was written as, then the metadata of the root.
    assert whole == [True, True, *[False] * (len(whole) - 2)]
    assert len(whole) > 8
