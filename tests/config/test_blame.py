"""A refusal of planning or running starts with the place of the key that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stores
from tilewise import config, errors
from tilewise.config.blame import blamed_key
from tilewise.errors import TilewiseError
from tilewise.runs import run
from tilewise.surveys import plan

JOB = """\
kernel:
  name: norm
  dim: band
inputs:
  x:
    store: x.zarr
    variable: v
output:
  store: out.zarr
  chunks: {y: 2}
memory_limit: 8 GiB
cluster: {kind: threads, workers: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = np.arange(3 * 4 * 6, dtype="float64").reshape(3, 4, 6)
    stores.write(tmp_path / "x.zarr", {"v": (("band", "y", "x"), values)}, chunks={"y": 2})
    return tmp_path


def refusal(text: str, *overrides: str, do: Any = plan) -> TilewiseError:
    Path("job.yaml").write_text(text)
    with pytest.raises(TilewiseError) as caught, config.placed("job.yaml", overrides):
        do(config.load("job.yaml", overrides))
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "error", "start"),
    [
        ("dim: band", "dim: bnad", errors.DimensionError, "job.yaml:3:3: kernel.dim: x has no dimension 'bnad'; "),
        ("variable: v", "variable: w", errors.MissingVariableError, "job.yaml:7:5: inputs.x.variable: "),
        ("x.zarr", "none.zarr", errors.MissingStoreError, "job.yaml:6:5: inputs.x.store: input 'x' is not there; "),
        ("  x:", "  y:", errors.DimensionError, "job.yaml:4:1: inputs: kernel 'norm' does not take these inputs; "),
        ("{y: 2}", "{z: 2}", errors.DimensionError, "job.yaml:10:3: output.chunks: output.chunks names 'z', "),
        ("8 GiB", "1 MiB", errors.BudgetError, "job.yaml:11:1: memory_limit: a tile of "),
        ("memory", "tile: {y: 3}\nmemory", errors.DimensionError, "job.yaml:11:8: tile.y: "),
        (
            "memory",
            "  attrs: {nrom: {units: m}}\nmemory",
            errors.ParameterError,
            "job.yaml:11:11: output.attrs.nrom: output.attrs names 'nrom', which is no output; expected: one of norm. "
            "To mend it: write norm instead of output.attrs.nrom.",
        ),
    ],
)
def test_a_refusal_has_its_place_and_key(folder: Path, old: str, new: str, error: type, start: str) -> None:
    found = refusal(JOB.replace(old, new))
    assert type(found) is error
    assert str(found).startswith(start)
    assert found.exit_code == 2
    assert isinstance(found.__cause__, error)
    assert str(found).endswith(str(found.__cause__))


def test_a_short_form_is_the_place_of_its_keys(folder: Path) -> None:
    text = "kernel: {name: norm, dim: band}\ninputs: {x: none.zarr}\noutput: out.zarr\n"
    assert str(refusal(text)).startswith("job.yaml:2:10: inputs.x.store: input 'x' is not there; ")


def test_a_key_that_is_not_there_has_the_place_of_the_nearest_above(folder: Path) -> None:
    stores.write(folder / "x.zarr" / "more", {"v": (None, np.zeros((3, 4)))})
    found = refusal(JOB.replace("store: x.zarr", "store: x.zarr/more"))
    assert str(found).startswith("job.yaml:5:3: inputs.x.dims: input 'x' (")


def test_a_change_on_the_command_line_is_a_place(folder: Path) -> None:
    assert str(refusal(JOB, "kernel.dim=bnad")).startswith("--set kernel.dim=bnad: kernel.dim: x has no dimension")
    assert str(refusal(JOB, "output={store: o.zarr, chunks: {z: 2}}")).startswith("--set output={")


def test_a_run_refuses_in_the_same_way(folder: Path) -> None:
    (folder / "out.zarr").mkdir()
    found = refusal(JOB, do=run)
    assert type(found) is errors.OutputExistsError
    assert str(found).startswith("job.yaml:9:3: output.store: out.zarr already exists. ")


def test_a_refusal_that_names_no_key_stays_as_it_is(folder: Path) -> None:
    found = refusal(JOB.replace("name: norm", 'name: "user_kernels:Mistaken"'))
    assert type(found) is errors.KernelContractError
    assert str(found).startswith("kernel 'mistaken' fails to declare its outputs: KeyError; ")


def test_a_failure_is_no_mistake_of_the_file(folder: Path) -> None:
    """Though what a kernel says may look like a key."""
    found = refusal(JOB.replace("name: norm", 'name: "user_kernels:Fragile"\n  most: 60'), do=run)
    assert type(found) is errors.TileError
    assert str(found).startswith("tile ")


def test_mistakes_of_loading_have_their_place_already(folder: Path) -> None:
    assert str(refusal(JOB.replace("dim:", "dmi:"))).startswith("job.yaml:3:3: kernel.dmi: there is no such key; ")
    assert str(refusal("a: [")).startswith("job.yaml:1:5: not YAML")


def test_a_file_that_has_gone_hides_nothing(folder: Path) -> None:
    error = TilewiseError("x has no dimension", do="set kernel.dim")
    with pytest.raises(TilewiseError) as caught, config.placed("none.yaml"):
        raise error
    assert caught.value is error


VALUE = {
    "kernel": {"name": "norm", "dim": "band"},
    "inputs": {"x": "kernel.zarr"},
    "output": {"store": "output.zarr", "chunks": {"y": 5}},
    "tile": {"zarr": 3},
}


@pytest.mark.parametrize(
    ("what", "got", "do", "keys"),
    [
        ("kernel.dim is odd", "", "", ("kernel", "dim")),
        ("kernel.ord is odd", "", "", ("kernel", "ord")),
        ("kernel.zarr is odd", "", "", ()),
        ("output.zarr exists", "", "choose another output.store", ("output", "store")),
        ("tile.zarr exists", "", "choose another output.store", ("output", "store")),
        ("a/tile.zarr and 'tile.zarr' are odd", "", "", ()),
        ("output.chunks.y is odd", "", "", ("output", "chunks", "y")),
        ("output.chunks.z is odd", "output.chunks", "", ("output", "chunks")),
        ("inputs.x.variable is odd", "", "", ("inputs", "x", "variable")),
        ("inputs.y.variable is odd", "", "", ()),
        ("odd", "", "set the variable of inputs['x']", ("inputs", "x")),
        ("odd", "cluster.threads 2", "", ("cluster", "threads")),
        ("the output is odd, and the kernel", "", "make the inputs fit", ()),
        ("odd", "", "set memory_limit to at least 3", ("memory_limit",)),
        ("odd", "", "set kernel.unknown, or kernel.dim", ("kernel", "dim")),
        ("odd", "", "", ()),
    ],
)
def test_the_key_that_an_error_names(what: str, got: str, do: str, keys: tuple[str, ...]) -> None:
    assert blamed_key(TilewiseError(what, got=got, do=do), VALUE) == keys
