"""Inputs, outputs and kernels that once did harm: nothing is lost, and nothing wrong looks right."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import stores
import tilewise
from faults import Copy, CountsAndFails
from tilewise.errors import (
    CoordinateError,
    DimensionError,
    KernelContractError,
    OutputExistsError,
    TileError,
    UnsupportedStoreError,
)
from tilewise.fields import OutputSpec
from tilewise.kernels.base import Signature
from tilewise.kernels.declaration import checked_signature
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


# --- what is somebody else's


@pytest.mark.parametrize("limit", [None, "1 MiB"])
def test_a_sidecar_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path, limit: str | None) -> None:
    (tmp_path / "home" / "scratch").mkdir(parents=True)
    (tmp_path / "home" / "scratch" / "thesis").write_text("years of work")
    source = tilewise.Input(store=DATA, dims=DIMS)
    job = tilewise.Job(
        kernel=Copy(dim=DIMS[0]),
        inputs={"x": source},
        output=tmp_path / "o.zarr",
        sidecar=str(tmp_path / "home"),
        memory_limit=limit,
    )
    with pytest.raises(OutputExistsError, match="holds something else"):
        tilewise.run(job)
    assert (tmp_path / "home" / "scratch" / "thesis").read_text() == "years of work"


@pytest.mark.parametrize("sidecar", ["o.zarr", "o.zarr/inner", "."])
def test_a_sidecar_and_an_output_may_not_overlap(tmp_path: Path, sidecar: str) -> None:
    path, old = store(tmp_path / "s"), store(tmp_path / "deep" / "o.zarr")
    place = tmp_path / "deep" / sidecar
    job = tilewise.Job(kernel=Copy(dim=DIMS[0]), inputs={"x": path}, output=old, sidecar=str(place))
    with pytest.raises(OutputExistsError, match="sidecar and output.store"):
        tilewise.run(job, overwrite=True)
    np.testing.assert_array_equal(stores.read(old, "x"), DATA)


@pytest.mark.parametrize(
    "url", ["s3://b/x/../in.zarr", "obstore+s3://b/./in.zarr", "s3://b/in%2Ezarr", "s3://b/x#SECRET"]
)
def test_a_url_that_libraries_read_differently_is_refused(url: str) -> None:
    for make in (lambda: tilewise.Output(store=url), lambda: tilewise.Input(store=url)):
        with pytest.raises(UnsupportedStoreError) as caught:
            make()
        assert "SECRET" not in str(caught.value)


# --- metadata of one state beside data of another


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_that_is_older_than_an_array_is_not_believed(tmp_path: Path, zarr_format: Any) -> None:
    values = np.array([[0.15, 1.27, 2.5, 1000.4, np.nan]])
    packed = {"x": {"dtype": "int32", "scale_factor": 0.5, "_FillValue": -1}}
    for name, encoding in (("old", packed), ("new", {})):
        data = xr.Dataset({"x": (("k", "p"), values)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data.to_zarr(tmp_path / name, zarr_format=zarr_format, consolidated=True, encoding=encoding)
    shutil.rmtree(tmp_path / "old" / "x")
    shutil.copytree(tmp_path / "new" / "x", tmp_path / "old" / "x")
    job = tilewise.Job(kernel=tilewise.Norm(dim="k"), inputs={"x": tmp_path / "old"}, output=tmp_path / "o.zarr")
    tilewise.run(job)
    np.testing.assert_array_equal(stores.read(tmp_path / "o.zarr", "norm"), values[0])


def test_a_damaged_chunk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, old = store(tmp_path / "s"), store(tmp_path / "o")
    for chunk in (Path(path) / "x" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"not what it was")
    with pytest.raises(UnsupportedStoreError, match="cannot be read at their first pixel"):
        run(path, old)
    np.testing.assert_array_equal(stores.read(old, "x"), DATA)


def test_a_block_ends_with_its_first_tile_that_fails(tmp_path: Path) -> None:
    """Where a store has gone, each tile may take its time to fail."""
    path = stores.write(tmp_path / "s", {"x": (DIMS, np.ones((1, 1024, 1)))}, chunks={DIMS[1]: 1})
    calls = tmp_path / "calls"
    job = tilewise.Job(
        kernel=CountsAndFails(dim=DIMS[0], log=str(calls)),
        inputs={"x": path},
        output=tmp_path / "o.zarr",
        tile={DIMS[1]: 1},
        cluster=tilewise.Cluster(kind="threads", workers=1),
    )
    assert tilewise.plan(job).block > 8
    with pytest.raises(tilewise.TilewiseError, match="failed"):
        tilewise.run(job)
    # Two trials of the first pixel, two tiles that are probed, one of the run, and one that was in work.
    assert len(calls.read_text()) <= 2 + 2 + 2
