"""Runs of the command line that are killed in mid-run and resumed; scripts/chaos.py does it many times over."""

from __future__ import annotations

import signal
from pathlib import Path

from chaos_scenes import TILES, Scene, wait_for_units


def test_a_run_that_is_killed_is_resumed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, kind="threads", seconds=0.02, sharded=True)
    command = scene.start()
    wait_for_units(scene, command, 60)
    command.kill()
    assert command.wait().code == -signal.SIGKILL
    assert 0 < scene.written() < TILES
    noted = len(scene.noted())
    again = scene.start("--resume").wait()
    assert again.code == 0, again.text
    assert command.outlived(60) == 0
    assert scene.wrong() == 0
    assert scene.partials() == []
    # At most all of the first run has been done again: how much less is measured where nothing else is at work.
    assert scene.redone() <= noted


def test_a_run_that_is_told_to_end_leaves_nothing_to_do_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path, kind="threads", seconds=0.02)
    command = scene.start()
    wait_for_units(scene, command, 60)
    command.kill(signal.SIGTERM)
    assert command.wait().code == 128 + signal.SIGTERM
    assert 0 < scene.written() < TILES
    again = scene.start("--resume").wait()
    assert again.code == 0, again.text
    assert scene.wrong() == 0
    assert scene.redone() == 0
