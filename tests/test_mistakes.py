"""Every message of docs/mistakes/jobs.md is the one that the command shown says. The Python page is a doctest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stores

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "mistakes"
#: Where the folder of the page lies, in its messages.
HOME = "/data"


def mistakes() -> Iterator[tuple[str, str, str, str]]:
    """Title, job file, command, and what it says, of each on the page."""
    for section in (PAGES / "jobs.md").read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        (job,) = re.findall(r"^```yaml\n(.*?)^```", section, re.S | re.M)
        (console,) = re.findall(r"^```console\n(.*?)^```", section, re.S | re.M)
        for command, said in re.findall(r"^\$ (.*)\n((?:[^$].*\n)+)", console, re.M):
            yield title, job, command, said


MISTAKES = list(mistakes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes") / "data"
    chunks = {"y": 10, "x": 10}
    stores.write(path / "design.zarr", {"A": (("time", "parameter"), np.stack([np.ones(24), np.arange(24.0)], 1))})
    stores.write(path / "scene.zarr", {"height": (("time", "y", "x"), np.ones((24, 20, 30)))}, chunks=chunks)
    shutil.copytree(path / "design.zarr", path / "design.zarr.old")
    return path


def test_there_are_ten_at_each_door() -> None:
    for page in PAGES.glob("*.md"):
        titles = re.findall(r"^## (\d+)\. ", page.read_text(), re.M)
        assert titles == [str(number) for number in range(1, 11)], page.name


@pytest.mark.parametrize(("title", "job", "command", "said"), MISTAKES, ids=[f"{m[0]} {m[2]}" for m in MISTAKES])
def test_a_message_is_as_the_page_shows_it(folder: Path, title: str, job: str, command: str, said: str) -> None:
    (folder / "job.yaml").write_text(job)
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.stderr.replace(str(folder), HOME) == said
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
