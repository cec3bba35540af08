"""The linter, the formatter and the type checker belong to the suite: what they say, a reader would have to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("scripts/test", "scripts/demo", "scripts/_env.sh", "scripts/slurm_job.sh", ".ci/run")


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_tool_has_nothing_to_say(command):
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_bash(script):
    done = subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
