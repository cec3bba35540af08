from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import stores
from tilewise.coordinates import check_coordinates
from tilewise.errors import (
    CoordinateError,
    DimensionError,
    DTypeError,
    MissingStoreError,
    MissingVariableError,
    TilewiseError,
    UnsupportedStoreError,
)
from tilewise.sources import Input, find

CUBE = np.arange(24.0).reshape(2, 3, 4)
DIMS = ("band", "y", "x")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_of_either_format_is_described_without_its_data(tmp_path: Path, zarr_format: int) -> None:
    path = stores.write(tmp_path / "s", {"b": (DIMS, CUBE)}, chunks={"y": 2}, zarr_format=zarr_format)
    source = find("b", Input(store=path))
    assert (source.spec.dims, source.spec.shape, source.spec.dtype) == (DIMS, (2, 3, 4), "float64")
    assert source.chunks == (2, 2, 4)


def test_sharding_is_seen(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "s", {"b": (DIMS, CUBE)}, chunks={"x": 2}, shards={"x": 4})
    source = find("b", Input(store=path))
    assert (source.chunks, source.shard) == ((2, 3, 2), (2, 3, 4))
    assert (source.chunk_nbytes, source.shard_nbytes) == (96, 192)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_bare_array_takes_its_names_from_the_job(tmp_path: Path, zarr_format: int) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(2, 3), dtype=">f4", zarr_format=zarr_format)
    source = find("b", Input(store=tmp_path / "a", dims=["band", "y"]))
    assert (source.spec.dims, source.spec.dtype) == (("band", "y"), "float32")
    with pytest.raises(DimensionError, match="no dimension names"):
        find("b", Input(store=tmp_path / "a"))
    with pytest.raises(DimensionError, match="2 axes and 1 dimension names"):
        find("b", Input(store=tmp_path / "a", dims=["band"]))
    with pytest.raises(MissingVariableError, match="bare array"):
        find("b", Input(store=tmp_path / "a", variable="b"))
    assert array.ndim == 2


def test_names_in_the_job_replace_those_of_the_store_and_of_its_coordinates(tmp_path: Path) -> None:
    path = stores.write(tmp_path / "s", {"b": (DIMS, CUBE), "y": (("y",), np.arange(3))})
    source = find("b", Input(store=path, variable="b", dims=("band", "row", "x")))
    assert source.spec.dims == ("band", "row", "x")
    assert source.coordinates["row"].dims == ("row",)


def test_the_variable_may_be_left_out_where_only_one_is_meant(tmp_path: Path) -> None:
    fields = {"data": (DIMS, CUBE), "y": (("y",), np.arange(3)), "lat": (("y", "x"), np.ones((3, 4)))}
    path = stores.write(tmp_path / "s", fields, attrs={"data": {"coordinates": "lat"}})
    source = find("b", Input(store=path))
    assert source.arrays[0].path == "data"
    assert {c.name: c.dims for c in source.coordinates.values()} == {"y": ("y",), "lat": ("y", "x")}


def test_a_nested_group_is_a_path(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "root")
    stores.write(tmp_path / "root" / "inner", {"b": (DIMS, CUBE), "y": (("y",), np.arange(3))})
    assert find("b", Input(store=tmp_path / "root", variable="inner/b")).coordinates["y"].values().tolist() == [0, 1, 2]
    assert find("b", Input(store=tmp_path / "root" / "inner")).spec.shape == (2, 3, 4)


def test_variables_stack_along_a_new_dimension(tmp_path: Path) -> None:
    fields = {"u": (("y", "x"), np.ones((3, 4), "float32")), "v": (("y", "x"), np.ones((3, 4), "int16"))}
    path = stores.write(tmp_path / "s", fields)
    source = find("x", Input(store=path, variables=["u", "v"], stack="component"))
    assert (source.spec.dims, source.spec.shape) == (("component", "y", "x"), (2, 3, 4))
    assert source.spec.dtype == "float32"
    assert source.chunks == (1, 3, 4)


def bad_inputs(tmp_path: Path) -> dict[str, tuple[Input, type[TilewiseError], str]]:
    good = stores.write(tmp_path / "good", {"p": (DIMS, CUBE), "q": (DIMS, CUBE)})
    text = stores.write(tmp_path / "text", {"b": (("y",), np.array(["a", "bc"], dtype="<U2"))}, zarr_format=2)
    ragged = stores.write(tmp_path / "ragged", {"u": (("y",), np.ones(3)), "v": (("y",), np.ones(4))})
    twice = stores.write(tmp_path / "twice", {"b": (("y", "y"), np.ones((2, 2)))})
    packed = stores.write(tmp_path / "packed", {"b": (DIMS, CUBE)}, attrs={"b": {"scale_factor": "a tenth"}})
    (tmp_path / "folder").mkdir()
    zarr.create_group(tmp_path / "empty")
    return {
        "missing": (Input(store=tmp_path / "none"), MissingStoreError, "not there"),
        "folder": (Input(store=tmp_path / "folder"), MissingStoreError, "not a Zarr store"),
        "empty": (Input(store=tmp_path / "empty"), MissingVariableError, "0 variables"),
        "variable": (Input(store=good, variable="r"), MissingVariableError, "one of p, q"),
        "ambiguous": (Input(store=good), MissingVariableError, "got: p, q"),
        "text": (Input(store=text), DTypeError, "not numeric"),
        "ragged": (Input(store=ragged, variables=("u", "v"), stack="c"), DimensionError, "differ in shape"),
        "twice": (Input(store=twice), DimensionError, "repeats"),
        "packed": (Input(store=packed), UnsupportedStoreError, "scale_factor='a tenth'"),
    }


BAD = ["missing", "folder", "empty", "variable", "ambiguous", "text", "ragged", "twice", "packed"]


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, case: str) -> None:
    source, error, text = bad_inputs(tmp_path)[case]
    with pytest.raises(error, match=text) as caught:
        find("b", source)
    assert caught.value.do


def test_a_codec_that_zarr_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    stores.write(path, {"b": (DIMS, CUBE)})
    metadata = path / "b" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"zstd"', '"nosuchcodec"'))
    with pytest.raises(UnsupportedStoreError, match="nosuchcodec"):
        find("b", Input(store=path))


def test_a_nan_fill_written_by_xarray_is_no_packing(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        for dtype in ("float32", "float64"):
            path = tmp_path / f"{zarr_format}{dtype}"
            xr.Dataset({"b": (DIMS, CUBE.astype(dtype))}).to_zarr(path, zarr_format=zarr_format, consolidated=False)
            assert find("b", Input(store=path)).spec.dtype == dtype


def test_contradictory_inputs_are_refused_when_they_are_made() -> None:
    with pytest.raises(DimensionError, match="both one variable and several"):
        Input(store="s", variable="u", variables=("u",), stack="c")
    with pytest.raises(DimensionError, match="stacked along"):
        Input(store="s", variables=("u", "v"))


def coordinates_of(tmp_path: Path, name: str, values: object, **attrs: object) -> list[object]:
    array = np.asarray(values)
    path = stores.write(tmp_path / name, {"b": (("t",), np.ones(array.size)), "t": (("t",), array)}, attrs={"t": attrs})
    return list(find("b", Input(store=path)).coordinates.values())


def test_unequal_coordinates_are_refused_with_the_first_place(tmp_path: Path) -> None:
    a, b = coordinates_of(tmp_path, "a", [0, 1, 2.0]), coordinates_of(tmp_path, "b", [0, 1, 3.0])
    with pytest.raises(CoordinateError, match="along 't'; got: 2.0 and 3.0 at index 2"):
        check_coordinates({"A": a, "b": b})


def test_equal_times_counted_from_different_days_are_equal(tmp_path: Path) -> None:
    a = coordinates_of(tmp_path, "a", [0, 24], units="hours since 2000-01-01")
    b = coordinates_of(tmp_path, "b", [1, 2], units="days since 1999-12-31")
    check_coordinates({"A": a, "b": b})


def test_nan_coordinates_equal_themselves(tmp_path: Path) -> None:
    a, b = coordinates_of(tmp_path, "a", [0, np.nan]), coordinates_of(tmp_path, "b", [0, np.nan])
    check_coordinates({"A": a, "b": b})
