"""Folders: files made by one writer alone, whole or not at all; what a kill leaves of them is found and removed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import zarr

import stores
from s3_server import S3Server
from tilewise import folders
from tilewise.errors import StoreAccessError, StoreFullError
from tilewise.folders import Folder, is_partial, remove_partials, stale_partials


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "f") if request.param == "local" else f"memory://{uuid4().hex}/f")


def no_links(src: Any, dst: Any) -> None:
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("links", [True, False])
def test_of_several_makers_exactly_one_has_made_the_file(
    folder: Folder, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)  # as file systems have it that know none
    for round_ in range(20 if folder.path else 3):
        name, ready, made = f"{round_}.json", threading.Barrier(6), []

        def make(text: str) -> None:
            ready.wait()  # noqa: B023 - every thread ends within the round
            if folder.create_text(name, text):  # noqa: B023
                made.append(text)  # noqa: B023

        threads = [threading.Thread(target=make, args=(str(i),)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [folder.read_text(name)] == made
    assert not [name for name in folder.names() if is_partial(name)]


@pytest.mark.parametrize("scheme", ["s3", "obstore+s3"])
def test_a_file_of_an_object_store_is_made_once(s3: S3Server, scheme: str) -> None:
    s3.make_bucket(name := f"made-{uuid4().hex[:8]}")
    folder = Folder(f"{scheme}://{name}/f")
    assert folder.create_text("a.json", "1")
    assert not folder.create_text("a.json", "2")
    assert folder.read_text("a.json") == "1"
    folder.remove_text("a.json")
    folder.remove_text("a.json")
    assert folder.read_text("a.json") is None
    assert folder.create_text("a.json", "3")


def test_the_last_of_two_writers_has_made_it_where_a_library_cannot_write_exclusively(s3: S3Server) -> None:
    s3.make_bucket(name := f"last-{uuid4().hex[:8]}")
    folder = Folder(f"s3://{name}/f")

    def another_writes(seconds: float) -> None:
        folder.write_text("a.json", "2")

    assert not folder.create_text("a.json", "1", sleep=another_writes)


def test_files_are_replaced_and_removed(folder: Folder) -> None:
    folder.write_text("a.json", "1")
    folder.write_text("a.json", "2")
    assert folder.read_text("a.json") == "2"
    folder.remove_text("a.json")
    folder.remove_text("a.json")
    assert folder.read_text("a.json") is None
    assert folder.names() == []
    folder.remove_if_empty()
    folder.remove_if_empty()
    assert not folder.exists()


def test_a_file_that_is_replaced_has_another_stamp(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write_text("a.json", "1")
    before = folder.stamp("a.json")
    assert before == folder.stamp("a.json") is not None
    folder.write_text("a.json", "2")
    assert folder.stamp("a.json") not in (before, None)
    assert folder.stamp("b.json") is None is Folder("memory://stamp").stamp("a.json")


def test_a_folder_that_holds_something_is_not_empty(folder: Folder) -> None:
    folder.write_text("a.json", "1")
    folder.remove_if_empty()
    assert folder.names() == ["a.json"]


def test_what_zarr_and_we_leave_when_killed_is_found_and_nothing_else(tmp_path: Path) -> None:
    stores.write(tmp_path / "o", {"b": (("y", "x"), np.ones((4, 6)))}, chunks={"y": 2, "x": 2})
    stale = {
        tmp_path / "o" / f"zarr.{uuid4().hex}.partial",
        tmp_path / "o" / "b" / "c" / "0" / f"1.{uuid4().hex}.partial",
        tmp_path / "o" / f"run.json.{uuid4().hex}.part",
    }
    kept = {tmp_path / "o" / "b" / "c" / "0" / "1.partial", tmp_path / "o" / "thesis.part"}
    for path in stale | kept:
        path.write_text("x")
    folder = Folder(str(tmp_path / "o"))
    assert set(stale_partials(folder)) == stale
    assert remove_partials(folder) == 3
    assert remove_partials(folder) == 0
    assert all(path.exists() for path in kept)
    assert (zarr.open_array(tmp_path / "o", path="b")[...] == 1).all()


def test_the_names_that_zarr_gives_to_parts_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(self: Path, to: Any) -> Path:
        seen.append(self.name)
        return self.rename(to)

    monkeypatch.setattr(Path, "replace", look)
    zarr.create_array(tmp_path / "a", shape=4, chunks=2, dtype="int8")[...] = 1
    assert len(seen) >= 3
    assert all(map(is_partial, seen))


def test_there_are_no_parts_where_there_is_nothing(tmp_path: Path) -> None:
    for place in (str(tmp_path / "no"), f"memory://{uuid4().hex}"):
        assert remove_partials(Folder(place)) == 0


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFullError), (errno.EROFS, StoreAccessError)])
def test_a_full_disk_and_one_that_may_not_be_written_are_named(
    tmp_path: Path, number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(str(tmp_path))
    folder.write_text("a.json", "1")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.os, "fsync", refuse)
    with pytest.raises(kind, match=r"a\.json.*To mend it"):
        folder.write_text("a.json", "2")
    with pytest.raises(kind, match=r"b\.json"):
        folder.create_text("b.json", "2")
    assert folder.read_text("a.json") == "1"
    assert folder.names() == ["a.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write_text("a.json", "1")
    (tmp_path / "a.json").chmod(0)
    with pytest.raises(StoreAccessError, match=r"a\.json cannot be read; got: Permission denied"):
        folder.read_text("a.json")
