"""What a shell completes: bash for real, zsh and fish by the words that their scripts ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, get_completion_class

from tilewise.cli import commands

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
#: Words before the one to complete, that one, and what it may become.
CASES = [
    ([], "", {"plan", "run", "init", "schema", "kernels", "completion"}),
    ([], "k", {"kernels"}),
    (["init"], "", {"affine_norm", "lstsq", "norm", "solve"}),
    (["init"], "ls", {"lstsq"}),
    (["kernels"], "aff", {"affine_norm"}),
    (["schema", "--kernel"], "so", {"solve"}),
    (["completion"], "", {"bash", "zsh", "fish"}),
    (["run", "job.yaml"], "--o", {"--overwrite"}),
]


def completer(shell: str) -> ShellComplete:
    found = get_completion_class(shell)
    assert found is not None
    return found(commands, {}, "tilewise", "_TILEWISE_COMPLETE")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("words", "incomplete", "expected"), CASES)
def test_words_are_completed(shell: str, words: list[str], incomplete: str, expected: set[str]) -> None:
    found = completer(shell).get_completions(words, incomplete)
    assert {item.value for item in found} >= expected
    assert all(item.value.startswith(incomplete) for item in found)


def test_a_job_is_a_file() -> None:
    for words in (["plan"], ["run"], ["init", "norm", "--output"]):
        (found,) = completer("zsh").get_completions(words, "jo")
        assert found.type == "file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_the_script(shell: str) -> None:
    done = subprocess.run(
        [BIN / "tilewise", "completion", shell], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == completer(shell).source().strip()
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("words", "incomplete", "expected"), CASES)
def test_bash_completes(words: list[str], incomplete: str, expected: set[str], tmp_path: Path) -> None:
    line = ["tilewise", *words, incomplete]
    script = (
        "source <(tilewise completion bash)\n"
        "complete -p tilewise >&2\n"
        'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        '_tilewise_completion tilewise\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *line],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-F _tilewise_completion tilewise" in done.stderr
    assert set(done.stdout.split()) >= expected
    assert all(word.startswith(incomplete) for word in done.stdout.split())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_the_script() -> None:
    subprocess.run(["zsh", "-n"], input=completer("zsh").source(), text=True, check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_takes_the_script() -> None:
    subprocess.run(["fish", "--no-execute"], input=completer("fish").source(), text=True, check=True)
