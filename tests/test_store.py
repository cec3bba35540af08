from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import stores
from tilewise.errors import DimensionError, OutputExistsError, ParameterError, UnsupportedStoreError
from tilewise.fields import OutputSpec
from tilewise.outputs import Output, lay_out
from tilewise.replacing import check_output
from tilewise.sources import Input, find
from tilewise.store import READ_CHUNKS, aligned_parts, create, open_target, read_box, write_box, write_units

SPEC = OutputSpec("out", ("p", "y", "x"), (2, 10, 12), "float32")


def source(tmp_path: Path, **options: Any) -> Any:
    fields = {
        "b": (("band", "y", "x"), np.ones((3, 10, 12))),
        "y": (("y",), np.linspace(50, 40, 10)),
        "lat": (("y", "x"), np.ones((10, 12))),
        "crs": ((), np.int32(0)),
        "p": (("p",), np.array(["tree", "road"])),
        "A": (("band", "p"), np.ones((3, 2))),
    }
    attrs = {
        "b": {"coordinates": "lat", "grid_mapping": "crs", "units": "K"},
        "y": {"units": "degrees_north"},
        "crs": {"grid_mapping_name": "latitude_longitude"},
    }
    path = stores.write(tmp_path / "in", fields, chunks={"y": 4, "x": 6}, attrs=attrs, zarr_format=2, **options)
    return [find("b", Input(store=path, variable="b")), find("A", Input(store=path, variable="A"))]


def test_output_chunks_are_the_inputs_along_tile_dimensions(tmp_path: Path) -> None:
    (target,) = lay_out(Output(store="o"), [SPEC], source(tmp_path), ("y", "x"))
    assert (target.chunks, target.shards, target.unit) == ((2, 4, 6), None, (2, 4, 6))


def test_large_default_chunks_are_halved_alike_for_all_outputs(tmp_path: Path) -> None:
    path = tmp_path / "s"
    group = zarr.create_group(path)
    group.create_array("a", shape=(70000, 3), chunks=(70000, 3), dtype="float32", dimension_names=("point", "c"))
    group.create_array("b", shape=(9000, 3), chunks=(9000, 3), dtype="float32", dimension_names=("primitive", "c"))
    found = [find(n, Input(store=path, variable=n)) for n in ("a", "b")]
    dims = ("point", "primitive")
    specs = [OutputSpec("norm", dims, (70000, 9000), "float32"), OutputSpec("status", dims, (70000, 9000), "uint8")]
    targets = lay_out(Output(store="o"), specs, found, dims)
    assert targets[0].chunks == targets[1].chunks
    assert 16 << 20 < targets[0].chunk_nbytes <= 64 << 20
    assert lay_out(Output(store="o", chunks={"point": 70000}), specs, found, dims)[0].chunks[0] == 70000


def test_a_shard_is_whole_chunks_and_no_larger_than_the_array_needs(tmp_path: Path) -> None:
    output = Output(store="o", chunks={"y": 2, "x": 5}, shards={"y": 4, "x": 100})
    (target,) = lay_out(output, [SPEC], source(tmp_path), ("y", "x"))
    assert (target.chunks, target.shards) == ((2, 2, 5), (2, 4, 15))
    with pytest.raises(DimensionError, match="got: 3 for chunks of 2"):
        lay_out(Output(store="o", chunks={"y": 2}, shards={"y": 3}), [SPEC], [], ("y", "x"))
    with pytest.raises(DimensionError, match="'z', which no output has"):
        lay_out(Output(store="o", chunks={"z": 2}), [SPEC], [], ("y", "x"))


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "3"])
def test_a_chunk_is_a_count(size: object) -> None:
    with pytest.raises(ParameterError, match="is not a size"):
        Output(store="o", chunks={"y": size})  # type: ignore[dict-item]


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc", "none", {"name": "zstd", "configuration": {"level": 9}}])
@pytest.mark.parametrize("shards", [None, {"y": 8}])
def test_a_template_keeps_what_xarray_needs(tmp_path: Path, codec: Any, shards: Any) -> None:
    sources = source(tmp_path)
    output = Output(store=str(tmp_path / "o"), codec=codec, shards=shards, attrs={"out": {"units": "1"}})
    targets = lay_out(output, [SPEC], sources, ("y", "x"))
    create(output, targets, sources, {"history": "made"})
    with xr.open_zarr(output.store, chunks=None) as opened:
        assert opened.attrs["history"] == "made"
        assert opened["out"].dims == ("p", "y", "x")
        assert opened["out"].attrs["units"] == "1"
        assert np.isnan(opened["out"].values).all()
        assert opened["y"].attrs["units"] == "degrees_north"
        assert opened["p"].values.tolist() == ["tree", "road"]
        assert opened["lat"].dims == ("y", "x")
        assert "lat" in opened.coords
        assert opened["crs"].attrs["grid_mapping_name"] == "latitude_longitude"


def test_unknown_codecs_are_named() -> None:
    from tilewise.outputs import compressors

    for codec in ("zsdt", {"name": "zstd", "configuration": {"nope": 1}}, {"level": 3}):
        with pytest.raises(UnsupportedStoreError, match="cannot be used"):
            compressors(codec)


def test_an_output_never_meets_an_input(tmp_path: Path) -> None:
    stores.write(tmp_path / "in", {"b": (("y",), np.ones(3))})
    inside, around = tmp_path / "in" / "o", tmp_path
    for path in (tmp_path / "in", inside, around, tmp_path / "x" / ".." / "in"):
        with pytest.raises(OutputExistsError, match="same store"):
            check_output(Output(store=path), [Input(store=tmp_path / "in")], overwrite=True)  # type: ignore[arg-type]


def test_only_a_zarr_store_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("photos", "file"):
        with pytest.raises(OutputExistsError, match="no Zarr store"):
            check_output(Output(store=str(tmp_path / name)), [], overwrite=True)
    stores.write(tmp_path / "o", {"b": (("y",), np.ones(3))})
    with pytest.raises(OutputExistsError, match="already exists"):
        check_output(Output(store=str(tmp_path / "o")), [], overwrite=False)
    check_output(Output(store=str(tmp_path / "o")), [], overwrite=True)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=3))
def test_write_units_cover_a_box_and_never_share_a_unit(axes: list[tuple[int, int, int]]) -> None:
    unit = [u for _, _, u in axes]
    box = [slice(a * u, a * u + n) for a, n, u in axes]
    seen = np.zeros([b.stop for b in box], dtype=int)
    for part in write_units(box, unit):
        seen[part] += 1
        assert all(p.start // u == (p.stop - 1) // u for p, u in zip(part, unit, strict=True))
    assert (seen[tuple(box)] == 1).all()
    assert seen.sum() == seen[tuple(box)].size


def test_a_box_is_read_into_the_dtype_of_its_buffer(tmp_path: Path) -> None:
    data = np.arange(60, dtype=">i2").reshape(5, 12)
    for order in ("C", "F"):
        array = zarr.create_array(
            tmp_path / order, shape=data.shape, chunks=(2, 5), dtype=data.dtype, zarr_format=2, order=order
        )
        array[...] = data
        out = np.empty((3, 7), dtype="float64")
        read_box([array], False, (slice(1, 4), slice(2, 9)), out)
        np.testing.assert_array_equal(out, data[1:4, 2:9])


def test_missing_chunks_read_as_the_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(4, 4), chunks=(2, 2), dtype="float64", fill_value=np.nan)
    out = np.zeros((4, 4))
    read_box([array], False, (slice(0, 4), slice(0, 4)), out)
    assert np.isnan(out).all()


def test_a_written_fill_value_differs_from_what_was_never_written(tmp_path: Path) -> None:
    output = Output(store=str(tmp_path / "o"), chunks={"y": 5, "x": 6})
    targets = lay_out(output, [SPEC], [], ("y", "x"))
    create(output, targets, [], {})
    array = open_target(targets[0].array)
    write_box(array, (slice(0, 2), slice(0, 5), slice(0, 12)), np.full((2, 5, 12), np.nan, "float32"))
    assert array.nchunks_initialized == 2


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=3))
def test_a_box_of_many_chunks_is_read_in_parts_along_their_edges(axes: list[tuple[int, int, int]]) -> None:
    box = [slice(a, a + n) for a, n, _ in axes]
    unit = [u for _, _, u in axes]
    seen = np.zeros([b.stop for b in box], dtype=int)
    for part in aligned_parts(box, unit, 3):
        seen[part] += 1
        assert math.prod((p.stop - 1) // u - p.start // u + 1 for p, u in zip(part, unit, strict=True)) <= 3
    assert (seen[tuple(box)] == 1).all()
    assert seen.sum() == seen[tuple(box)].size


@pytest.mark.parametrize("shards", [None, (64,)])
def test_more_chunks_than_one_request_takes_are_all_read(tmp_path: Path, shards: tuple[int, ...] | None) -> None:
    data = np.arange(3 * READ_CHUNKS + 5, dtype="float32")
    array = zarr.create_array(tmp_path / "a", shape=data.shape, chunks=(1,), shards=shards, dtype="float32")
    array[: 2 * READ_CHUNKS] = data[: 2 * READ_CHUNKS]
    out = np.empty(data.size - 7, dtype="float64")
    read_box([array], False, (slice(3, data.size - 4),), out)
    expected = np.where(np.arange(data.size) < 2 * READ_CHUNKS, data, 0)
    np.testing.assert_array_equal(out, expected[3:-4])


def test_somebody_is_asked_before_each_write_unit(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(6,), chunks=(2,), dtype="float64", fill_value=np.nan)
    asked: list[int] = []

    def before() -> None:
        asked.append(int(np.isnan(array[...]).sum()))
        if len(asked) == 3:
            raise PermissionError

    with pytest.raises(PermissionError):
        write_box(array, (slice(0, 6),), np.ones(6), before=before)
    assert asked == [6, 4, 2]
    np.testing.assert_array_equal(array[...], [1, 1, 1, 1, np.nan, np.nan])
