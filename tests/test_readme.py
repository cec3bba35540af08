"""The examples of README.md run as they stand: Python as plain scripts, YAML and commands as a person types them."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import tilewise
from tilewise import config, errors
from tilewise.kernels import Kernel, kernel_class

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SHAPE = (24, 40, 60)  # time, y, x


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the stores that the examples name."""
    path = tmp_path_factory.mktemp("readme")
    years = np.arange(SHAPE[0]) / 12
    design = np.stack([np.ones_like(years), years, np.cos(2 * np.pi * years), np.sin(2 * np.pi * years)], axis=1)
    names = ("time", "parameter", "y", "x")
    stores = {
        "design": ("A", design.astype("float32"), names[:2]),
        "scene": (
            "displacement",
            np.random.default_rng(7).normal(size=SHAPE).astype("float32"),
            (names[0], *names[2:]),
        ),
    }
    for store, (variable, data, dims) in stores.items():
        zarr.create_group(path / f"{store}.zarr").create_array(variable, data=data, dimension_names=dims)
    (path / "job.yaml").write_text(blocks("yaml")[0])
    return path


def run(command: list[str], folder: Path) -> str:
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": bin_first}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_prints_what_the_page_says(number, folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(blocks("python")[number].replace('output="', f'output="{tmp_path}/'))
    expected = re.findall(r"^print\(.*\)  # (.*)$", blocks("python")[number], re.M)
    assert expected
    assert run([sys.executable, "-W", "error", str(script)], folder).splitlines() == expected


def test_commands_do_the_job_in_yaml(folder):
    commands = re.findall(r"^\$ (tilewise .*?)(?: +#.*)?$", "".join(blocks("console")), re.M)
    assert [command.split()[1] for command in commands] == [
        *("plan", "run", "info", "audit", "kernels", "init", "schema", "completion")
    ]
    for command in commands:
        assert run(["bash", "-c", command], folder) or ">" in command or "--output" in command
    for file in ("new.yaml", "job.schema.json", "tilewise.sh"):
        assert (folder / file).read_text()
    fit = zarr.open_group(folder / "fit.zarr", mode="r")
    found = np.asarray(fit["solution"][...], dtype="float64").reshape(4, -1)
    design = zarr.open_array(folder / "design.zarr" / "A", mode="r")[...].astype("float64")
    b = zarr.open_array(folder / "scene.zarr" / "displacement", mode="r")[...].reshape(SHAPE[0], -1).astype("float64")
    # A float32 product with P, itself rounded and its result too: (n + 2) u |P||b| + u |x| with u = 2^-24.
    u, expected = 2.0**-24, np.linalg.lstsq(design, b, rcond=None)[0]
    bound = (SHAPE[0] + 2) * u * (np.abs(np.linalg.pinv(design)) @ np.abs(b)) + u * np.abs(expected)
    assert np.all(np.abs(found - expected) <= bound)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/benchmarks.md",
        "docs/clusters.md",
        "docs/design.md",
        "docs/jobs.md",
        "docs/errors.md",
        "docs/mistakes.md",
        "docs/numbers.md",
        "docs/status.md",
        "docs/mistakes/lazy.md",
        "CHANGELOG.md",
    ],
)
def test_what_a_page_points_to_is_there(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    scripts = re.findall(r"`(?:bash |python )?((?:scripts|tests|configs|docs)/[\w./-]+)`", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [script for script in scripts if not (ROOT / script).exists()]
    assert not missing


def test_every_error_is_on_its_page():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d) \|", (ROOT / "docs" / "errors.md").read_text(), re.M)
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TilewiseError)]
    found = {(c.__name__, c.__bases__[1].__name__, str(c.exit_code)) for c in classes if c is not errors.TilewiseError}
    assert set(rows) == found


def test_every_status_is_on_its_page_with_an_example():
    page = (ROOT / "docs" / "status.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.M)
    assert rows == [(status.meaning, str(int(status))) for status in tilewise.Status]
    for status in tilewise.Status:
        section = re.search(rf"^## {status.meaning}\n(.*?)(?=^## |\Z)", page, re.S | re.M)
        assert section, status
        assert status.meaning in section[1] or str(int(status)) in section[1]
        assert ">>> " in section[1]


def test_job_file_on_its_page_is_one():
    job = config.loads(re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "jobs.md").read_text(), re.S | re.M)[0])
    assert config.loads(config.dump(job)) == job


@pytest.mark.parametrize(
    "name", sorted(n for n, c in Kernel.registered().items() if c.__module__.startswith("tilewise."))
)
def test_every_kernel_and_its_parameters_are_on_the_pages(name):
    row = re.search(rf"^\| `{name}`.*$", README, re.M)
    jobs = (ROOT / "docs" / "jobs.md").read_text()
    assert row, f"README.md has no row of the kernel {name}"
    for parameter in dataclasses.fields(kernel_class(name)):
        assert f"`{parameter.name}`" in row[0]
        assert f"`{parameter.name}`" in jobs
    assert f"Kernel `{name}`" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("record", [tilewise.Job, tilewise.Input, tilewise.Output, tilewise.Cluster])
def test_every_key_of_a_job_file_is_on_its_page(record):
    jobs = (ROOT / "docs" / "jobs.md").read_text()
    for field in dataclasses.fields(record):
        assert re.search(rf"[`.]{field.name}[`.]|^## {field.name}$", jobs, re.M), field.name
