"""Inputs, outputs and kernels that once did harm: nothing is lost, and nothing wrong looks right."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stores
import tilewise
from faults import Copy
from tilewise.errors import (
    CoordinateError,
    DimensionError,
    KernelContractError,
    OutputExistsError,
    TileError,
    UnsupportedStoreError,
)
from tilewise.fields import OutputSpec
from tilewise.kernels.base import Signature, checked_signature
from tilewise.sources import Input, find

DATA = np.arange(24.0).reshape(2, 3, 4)
DIMS = ("band", "y", "x")


def run(source: Any, output: Any, kernel: Any = None, **options: Any) -> tilewise.Report:
    job = tilewise.Job(
        kernel=kernel or Copy(dim="band"),
        inputs={"x": source},
        output=output,
        cluster=tilewise.Cluster(kind="threads", workers=1),
        tile={"y": 1, "x": 1},
        **options,
    )
    return tilewise.run(job, overwrite=True)


def store(path: Path, **more: Any) -> str:
    return stores.write(path, {"x": (DIMS, DATA), **more}, chunks={"y": 1, "x": 1})


@pytest.mark.parametrize("scheme", ["file://", "local://"])
def test_a_local_url_is_a_path_and_never_overwritten(tmp_path: Path, scheme: str) -> None:
    path = store(tmp_path / "s")
    with pytest.raises(OutputExistsError, match="same store"):
        run(scheme + path, path)
    np.testing.assert_array_equal(stores.read(path, "x"), DATA)
    assert run(scheme + path, scheme + str(tmp_path / "o")).tiles == 12


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStoreError, match=r"output.store is empty"):
        run(store(tmp_path / "s"), "")


@dataclass(frozen=True, kw_only=True)
class Removes(Copy, name="test_removes"):
    """Moves a folder away at the cell with the value `at`."""

    folder: str
    at: float

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        if (fields["x"] == self.at).any():
            shutil.move(self.folder, self.folder + "-gone")


@pytest.mark.parametrize("which", ["in", "out"])
def test_a_store_that_disappears_fails_the_tile_instead_of_reading_as_fill(tmp_path: Path, which: str) -> None:
    path = store(tmp_path / "in")
    kernel = Removes(dim="band", folder=str(tmp_path / which), at=DATA[0, 1, 1])
    with pytest.raises(TileError, match="disappeared"):
        run(path, str(tmp_path / "out"), kernel)


def test_a_coordinate_is_not_meant_by_an_inputs_name(tmp_path: Path) -> None:
    fields = {"v": (("y", "x"), DATA[0]), "x": (("x",), np.arange(4.0)), "y": (("y",), np.arange(3.0))}
    path = stores.write(tmp_path / "s", fields)
    assert find("x", Input(store=path)).arrays[0].path == "v"


def test_a_coordinate_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoordinateError, match="does not fit"):
        find("x", Input(store=store(tmp_path / "s", y=(("y",), np.arange(5)))))


@pytest.mark.parametrize("codec", ["bytes", {"name": "transpose", "configuration": {"order": [0, 1]}}, "crc32c "])
def test_a_codec_that_does_not_compress_is_refused_before_anything_is_removed(tmp_path: Path, codec: Any) -> None:
    path, old = store(tmp_path / "s"), store(tmp_path / "o")
    with pytest.raises(UnsupportedStoreError, match="cannot be used"):
        run(path, tilewise.Output(store=old, codec=codec))
    np.testing.assert_array_equal(stores.read(old, "x"), DATA)


def test_a_coordinate_with_the_name_of_an_output_is_refused(tmp_path: Path) -> None:
    path, old = store(tmp_path / "s", copy=((), np.float64(3))), store(tmp_path / "o")
    source = tilewise.Input(store=path, dims=("band", "copy", "x"))
    with pytest.raises(DimensionError, match="name of the output 'copy'"):
        run(source, old)
    np.testing.assert_array_equal(stores.read(old, "x"), DATA)


@pytest.mark.parametrize("text", ['{"name": "my app"}', "[]", "{", '{"zarr_format": 3, "node_type": "group"}'])
def test_a_folder_that_holds_anything_else_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "o" / "photos").mkdir(parents=True)
    (tmp_path / "o" / "photos" / "a.jpg").write_text("x")
    (tmp_path / "o" / "zarr.json").write_text(text)
    with pytest.raises(OutputExistsError, match="not overwritten"):
        run(store(tmp_path / "s"), str(tmp_path / "o"))
    assert (tmp_path / "o" / "photos" / "a.jpg").exists()


def test_a_sidecar_is_a_folder_of_its_own(tmp_path: Path) -> None:
    path = store(tmp_path / "s")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputExistsError, match="sidecar"):
        run(path, str(tmp_path / "o"), sidecar=path)
    with pytest.raises(OutputExistsError, match="sidecar"):
        run(path, str(tmp_path / "o"), sidecar=str(tmp_path / "file"))
    assert json.loads((tmp_path / "s" / "zarr.json").read_text())["node_type"] == "group"


@dataclass(frozen=True, kw_only=True)
class Exits(Copy, name="test_exits"):
    """Calls sys.exit at the cell with the value `at`."""

    at: float

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        if (fields["x"] == self.at).any():
            raise SystemExit(0)
        super().compute(state, fields, out, panel=panel)


def test_a_kernel_that_exits_fails_its_tile(tmp_path: Path) -> None:
    with pytest.raises(TileError, match="SystemExit"):
        run(store(tmp_path / "s"), str(tmp_path / "o"), Exits(dim="band", at=DATA[0, 2, 2]))


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec("", (), (), "float32"),
        OutputSpec("../../evil", (), (), "float32"),
        OutputSpec("zarr.json", (), (), "float32"),
        OutputSpec("count", (), (), "int32"),
        OutputSpec("none", ("k",), (0,), "float32"),
    ],
    ids=lambda spec: spec.name,
)
def test_an_output_that_no_store_can_hold_is_refused(tmp_path: Path, spec: OutputSpec) -> None:
    class Declares(Copy):
        def declare(self, fields: Any) -> Signature:
            return Signature.of(fields, core={"x": ("band",)}, outputs=[spec])

    with pytest.raises(KernelContractError, match="no store can hold"):
        checked_signature(Declares(dim="band"), {"x": find("x", Input(store=store(tmp_path / "s"))).spec})
