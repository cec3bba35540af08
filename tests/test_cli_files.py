"""The commands that write and describe job files, as a shell runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def environment() -> dict[str, str]:
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture
def shell(tmp_path):
    def call(*arguments: str, **options):
        done = subprocess.run(
            [sys.executable, "-m", "tilewise.cli", *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize("arguments", [["kernels"], ["kernels", "norm"], ["kernels", "norm", "--json"]])
def test_kernels_load_nothing_that_is_slow(arguments):
    code = (
        f"import sys; from tilewise.cli import _main; code = _main({arguments!r});"
        "slow = {'torch', 'zarr', 'xarray', 'pydantic', 'dask', 'distributed'};"
        "print(code, sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_kernels(shell):
    code, out, err = shell("kernels")
    assert (code, err) == (0, "")
    assert re.search(r"^norm +Norm of the vector along `dim`: .*\n +inputs: x$", out, re.M)
    code, out, err = shell("kernels", "user_kernels:Total")
    assert (code, err) == (0, "")
    assert out.startswith("user_kernels:Total\n\nSum of x along `dim`, times `factor`; ")
    code, out, err = shell("kernels", "--json")
    assert {"name": "norm", "inputs": [["x"]]}.items() <= next(
        one for one in json.loads(out) if one["name"] == "norm"
    ).items()
    code, out, err = shell("kernels", "lstsq", "--json")
    assert json.loads(out)["parameters"][0]["name"] == "dim"


@pytest.mark.parametrize("arguments", [("kernels", "nrom"), ("init", "nrom"), ("schema", "--kernel", "nrom")])
def test_an_unknown_kernel(shell, arguments):
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: there is no kernel 'nrom'; expected: affine_norm, ")
    assert err.endswith("To mend it: write 'norm' instead.\n")


def test_init_then_plan(shell, tmp_path):
    """What init writes says at once what is to be filled in, and where."""
    code, printed, err = shell("init", "norm")
    assert (code, err) == (0, "")
    assert shell("init", "norm", "--output", "job.yaml") == (0, "", "")
    assert (tmp_path / "job.yaml").read_text() == printed
    code, out, err = shell("plan", "job.yaml")
    assert (code, out) == (2, "")
    assert [line.partition(": not a value")[0] for line in err.splitlines()] == [
        f"{'Error: ' * (i == 0)}job.yaml:{line}:{column}: {key}"
        for i, (line, column, key) in enumerate(places(printed, "dim", "store", "store"))
    ]

    code, out, err = shell("init", "lstsq", "-o", "job.yaml")
    assert (code, out) == (2, "")
    assert err == "Error: job.yaml already exists. To mend it: choose another file, or pass --force.\n"
    assert (tmp_path / "job.yaml").read_text() == printed
    assert shell("init", "lstsq", "-o", "job.yaml", "--force") == (0, "", "")
    assert (tmp_path / "job.yaml").read_text().startswith("# lstsq: ")
    assert shell("init", "lstsq", "-o", "none/job.yaml")[0] == 2


def places(text: str, *keys: str) -> list[tuple[int, int, str]]:
    """Line, column and dotted key of what is required, as they stand in the text."""
    names = iter(["kernel.dim", "inputs.x.store", "output.store"])
    lines = text.splitlines()
    return [
        (number, line.index(line.strip()) + 1, next(names))
        for number, line in enumerate(lines, start=1)
        if "# required" in line and line.strip().partition(":")[0] in keys
    ]


def test_schema(shell):
    code, out, err = shell("schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["title"] == "tilewise job"
    code, out, err = shell("schema", "--kernel", "user_kernels:Everything")
    assert "factor" in json.loads(out, parse_constant=pytest.fail)["$defs"]["user_kernels:Everything"]["properties"]
