"""Stores as they are found in the wild: every form is read, or refused by name."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import shared_data
import stores
import tilewise
from tilewise.errors import DTypeError, MissingVariableError, TilewiseError, UnsupportedStoreError
from tilewise.members import cf_attrs, decoded_fill, open_members
from tilewise.sources import Input, Source, find
from tilewise.store import read_box

DIMS = ("band", "y", "x")
CUBE = np.arange(24.0).reshape(2, 3, 4)


def everything(source: Source, dtype: Any = None) -> np.ndarray[Any, Any]:
    """All of an input, as a run reads it."""
    out = np.empty(source.spec.shape, dtype=dtype or source.spec.dtype)
    opened = [ref.open() for ref in source.arrays]
    read_box(opened, source.stacked, [slice(0, n) for n in out.shape], out, source.decodings)
    return out


def wild() -> list[dict[str, Any]]:
    index = Path(__file__).resolve().parents[2] / "shared" / "data" / "zarr_stores" / "index.json"
    return json.loads(index.read_text())["arrays"] if index.exists() else []


def path_of(entry: dict[str, Any]) -> Path:
    return Path(shared_data.shared("data/zarr_stores")) / entry["path"]


def as_input(entry: dict[str, Any]) -> Input:
    """The array as a variable of the store that it is in, or as a bare array; raw numbers, axes named by number."""
    path = path_of(entry)
    root = next((p for p in reversed(path.parents) if is_group(p)), None)
    dims = tuple(f"d{i}" for i in range(len(entry.get("shape", (10, 10)))))
    if root is None:
        return Input(store=path, dims=dims, mask_and_scale=False)
    return Input(store=root, variable=str(path.relative_to(root)), dims=dims, mask_and_scale=False)


def is_group(path: Path) -> bool:
    if (path / ".zgroup").exists():
        return True
    return (path / "zarr.json").exists() and json.loads((path / "zarr.json").read_text())["node_type"] == "group"


@pytest.mark.parametrize("entry", wild() or [{}], ids=lambda e: e.get("path", "absent"))
def test_an_array_written_by_others_has_its_checksum_or_is_refused_by_name(entry: dict[str, Any]) -> None:
    shared_data.shared("data/zarr_stores")
    if "zarr_python_error" in entry:  # what zarr itself cannot decode here
        with pytest.raises(UnsupportedStoreError, match="cannot be opened") as caught:
            find("x", as_input(entry))
        assert entry["zarr_python_error"].split(":")[0] in str(caught.value)
        return
    if "sha256_le_C" not in entry:  # text
        with pytest.raises(DTypeError, match="not numeric"):
            find("x", as_input(entry))
        return
    source = find("x", as_input(entry))
    assert source.spec.shape == tuple(entry["shape"])
    assert source.spec.dtype == np.dtype(entry["dtype"]).newbyteorder("=")
    assert source.chunks == tuple(entry["chunks"])
    found = everything(source).astype(np.dtype(entry["dtype"]).newbyteorder("<"))
    assert hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest()[:16] == entry["sha256_le_C"]


def test_the_image_in_an_old_store_is_the_picture_beside_it() -> None:
    folder = shared_data.shared("data/zarr_stores")
    source = find("x", Input(store=folder / "zarr_implementations_v2_blosc.zarr", dims=("y", "x", "c")))
    assert source.decodings == ()  # the fill value 0 of a store that xarray did not write is a number like others
    assert everything(source).sum() == 90124324


def test_a_store_without_any_chunk_is_all_fill_and_costs_nothing(tmp_path: Path) -> None:
    folder = shared_data.shared("data/zarr_stores")
    variables = sorted(
        str(p.parent.relative_to(folder / "zarrs_hierarchy.zarr"))
        for p in folder.glob("zarrs_hierarchy.zarr/**/zarr.json")
        if json.loads(p.read_text())["node_type"] == "array"
    )
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="x"),
        inputs={"x": Input(store=folder / "zarrs_hierarchy.zarr", variable=variables[0], dims=("y", "x"))},
        output=tmp_path / "out.zarr",
    )
    tilewise.run(job)
    assert np.isnan(stores.read(job.output.store, "norm")).all()


# --- what xarray writes is what is read


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "packed": ("float64", {"dtype": "int16", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -32768}),
    "packed unsigned": ("float64", {"dtype": "uint8", "scale_factor": 0.5, "_FillValue": 255}),
    "fill only": ("float32", {"dtype": "float32", "_FillValue": -9999.0}),
    "fill only, integers": ("float64", {"dtype": "int32", "_FillValue": -1}),
    "fill of zero": ("float64", {"dtype": "int16", "_FillValue": 0}),
    "NaN": ("float64", {"dtype": "float64", "_FillValue": np.nan}),
    "plain": ("float32", {"dtype": "float32", "_FillValue": None}),
    "unsigned in signed": ("float64", {"dtype": "int8", "_Unsigned": "true", "_FillValue": -1}),
}


@pytest.mark.parametrize("form", ["v2", "v2 consolidated", "v3", "v3 sharded", "netcdf4", "netcdf3"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_means_what_it_means_to_xarray(tmp_path: Path, form: str, kind: str) -> None:
    dtype, encoding = KINDS[kind]
    values = (np.arange(1, 8 * 9 * 10 + 1).reshape(8, 9, 10) % 50).astype(dtype)  # ragged against chunks of 4
    if encoding["_FillValue"] is not None and kind != "NaN":
        values[0, 0, :2] = np.nan
    data = xr.Dataset({"x": (DIMS, values)}, coords={"y": ("y", np.arange(9) * 0.5, {"units": "m"})})
    path, opened = written(data, tmp_path, form, encoding)
    with opened as expected:
        source = find("x", Input(store=path))
        found = everything(source)
        assert found.dtype == expected["x"].dtype
        np.testing.assert_array_equal(found, expected["x"].values)
        np.testing.assert_array_equal(source.coordinates["y"].values(), expected["y"].values)


def written(data: xr.Dataset, folder: Path, form: str, encoding: dict[str, Any]) -> tuple[Path, Any]:
    """The dataset in a file or store, and as xarray opens it again."""
    if form.startswith("netcdf"):
        netcdf3 = form == "netcdf3"
        if netcdf3 and encoding["dtype"].startswith("u"):
            pytest.skip("netCDF-3 has no unsigned numbers")
        path = folder / "s.nc"
        chunks = {} if netcdf3 else {"chunksizes": (8, 4, 4)}
        data.to_netcdf(
            path, format="NETCDF3_64BIT" if netcdf3 else "NETCDF4", engine="netcdf4", encoding={"x": encoding | chunks}
        )
        return path, xr.open_dataset(path)
    path = folder / "s.zarr"
    more: dict[str, Any] = {"chunks": (8, 4, 4)}
    if form == "v3 sharded":
        more["shards"] = (8, 8, 8)
    consolidated = form == "v2 consolidated"
    zarr_format: Any = 2 if form.startswith("v2") else 3
    data.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated, encoding={"x": encoding | more})
    return path, xr.open_zarr(path, consolidated=consolidated, chunks=None)


# --- what is kept where

NAN = "AAAAAAAA+H8="


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-1, -1),
        ("NaN", np.nan),
        ("AAAAAAAA+H8=", np.nan),
        ("AAAAAACHw8A=", -9998.0),
        (["AAAAAAAA8D8=", 0], 1),
        ("?", "?"),
    ],
)
def test_fill_values_of_format_3_are_numbers_in_any_form(value: Any, expected: Any) -> None:
    np.testing.assert_equal(decoded_fill(value), expected)


def test_a_fill_value_of_format_2_is_missing_only_where_xarray_names_the_dimensions(tmp_path: Path) -> None:
    named = zarr.create_array(tmp_path / "a", shape=(2,), dtype="i2", zarr_format=2, fill_value=0)
    assert "_FillValue" not in cf_attrs(named)
    named.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    assert cf_attrs(named)["_FillValue"] == 0


def test_stored_numbers_are_read_where_asked(tmp_path: Path) -> None:
    attrs = {"x": {"scale_factor": 0.5, "_FillValue": 3}}
    path = stores.write(tmp_path / "s", {"x": (DIMS, CUBE.astype("int16"))}, attrs=attrs)
    raw = find("x", Input(store=path, mask_and_scale=False))
    assert (raw.spec.dtype, raw.decodings) == ("int16", ())
    np.testing.assert_array_equal(everything(raw), CUBE)


def test_each_stacked_variable_has_its_own_packing(tmp_path: Path) -> None:
    fields = {"u": (("y", "x"), np.array([[1, 2]], "int16")), "v": (("y", "x"), np.array([[3, 4]], "int8"))}
    attrs = {"u": {"scale_factor": 0.1}, "v": {"add_offset": 0.5, "_FillValue": 4}}
    source = find("x", Input(store=stores.write(tmp_path / "s", fields, attrs=attrs), variables=("u", "v"), stack="c"))
    assert source.spec.dtype == "float64"
    np.testing.assert_array_equal(everything(source), [[[1 * 0.1, 2 * 0.1]], [[3.5, np.nan]]])


def test_consolidated_metadata_and_none_say_the_same(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        path = stores.write(tmp_path / str(zarr_format), {"x": (DIMS, CUBE)}, zarr_format=zarr_format)
        plain = find("x", Input(store=path))
        with pytest.warns() if zarr_format == 3 else warnings_as_they_are():
            zarr.consolidate_metadata(path)
        assert find("x", Input(store=path)) == plain


def warnings_as_they_are() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_separators_and_orders_of_format_2(tmp_path: Path, separator: str, order: str) -> None:
    data = CUBE.astype(">f4")
    array = zarr.create_array(
        tmp_path / "a",
        shape=data.shape,
        dtype=data.dtype,
        chunks=(1, 2, 3),
        zarr_format=2,
        order=order,
        chunk_key_encoding={"name": "v2", "separator": separator},
    )
    array[...] = data
    found = everything(find("x", Input(store=tmp_path / "a", dims=DIMS)))
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found, data)


def test_a_coordinate_that_cannot_be_read_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(stores.write(tmp_path / "s", {"x": (DIMS, CUBE), "y": (("y",), np.arange(3))}))
    metadata = path / "y" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"zstd"', '"nosuchcodec"'))
    with caplog.at_level(logging.WARNING, "tilewise"):
        assert "y" not in find("x", Input(store=path, variable="x")).coordinates
    assert "coordinate 'y'" in caplog.text
    assert "nosuchcodec" in caplog.text


@pytest.mark.parametrize("metadata", ["[]", "{}", "null", "{", '{"zarr_format": 9, "node_type": "group"}', ""])
def test_broken_metadata_is_refused_by_name(tmp_path: Path, metadata: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "zarr.json").write_text(metadata)
    with pytest.raises(TilewiseError) as caught:
        find("x", Input(store=tmp_path / "s"))
    assert str(tmp_path / "s") in str(caught.value)


def test_bounds_are_no_variables_of_their_own(tmp_path: Path) -> None:
    fields = {"data": (DIMS, CUBE), "y": (("y",), np.arange(3.0)), "y_bnds": (("y", "two"), np.zeros((3, 2)))}
    attrs = {"y": {"bounds": "y_bnds"}}
    source = find("x", Input(store=stores.write(tmp_path / "s", fields, attrs=attrs)))
    assert source.arrays[0].path == "data"


def test_an_output_names_the_map_projection_of_its_input(tmp_path: Path) -> None:
    fields = {"data": (DIMS, CUBE), "crs": ((), np.int32(0)), "x": (("x",), np.arange(4.0))}
    attrs = {"data": {"grid_mapping": "crs", "units": "m"}, "crs": {"epsg_code": "EPSG:32633"}}
    path = stores.write(tmp_path / "s", fields, attrs=attrs)
    tilewise.run(tilewise.Job(kernel=tilewise.Norm(dim="band"), inputs={"x": path}, output=tmp_path / "out.zarr"))
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        assert result["norm"].attrs["grid_mapping"] == "crs"
        assert "units" not in result["norm"].attrs
        assert result.coords["crs"].attrs == {"epsg_code": "EPSG:32633"}


# --- files that xarray opens


@pytest.fixture
def netcdf(tmp_path: Path) -> Path:
    """A NetCDF file with a group, text and a coordinate in two dimensions."""
    path = tmp_path / "s.nc"
    coords = {"lat": (("y", "x"), CUBE[0], {"units": "degrees_north"}), "time": ((), 3.0)}
    data = xr.Dataset({"v": (DIMS, CUBE), "label": (("y",), np.array(["a", "b", "c"]))}, coords=coords)
    data.to_netcdf(path, engine="netcdf4")
    xr.Dataset({"z": (DIMS, CUBE + 1)}).to_netcdf(path, mode="a", group="deep/er", engine="netcdf4")
    return path


def test_groups_of_a_file_are_paths(netcdf: Path) -> None:
    np.testing.assert_array_equal(everything(find("x", Input(store=netcdf, variable="deep/er/z"))), CUBE + 1)


def test_a_file_streams_with_its_coordinates(tmp_path: Path, netcdf: Path) -> None:
    for kind in ("threads", "processes"):
        job = tilewise.Job(
            kernel=tilewise.Norm(dim="band"),
            inputs={"x": Input(store=netcdf, variable="v")},
            output=tilewise.Output(store=tmp_path / f"{kind}.zarr", chunks={"y": 1}),
            cluster=tilewise.Cluster(kind=kind, workers=2),
            tile={"y": 1},
        )
        tilewise.run(job)
        with xr.open_zarr(job.output.store, chunks=None) as result:
            np.testing.assert_allclose(result["norm"].values, np.hypot(*CUBE), rtol=2**-50)
            np.testing.assert_array_equal(result["lat"].values, CUBE[0])
            assert result["lat"].attrs == {"units": "degrees_north"}
            assert result["time"].item() == 3.0


@pytest.mark.parametrize(
    ("variable", "error", "text"),
    [
        ("nothing", MissingVariableError, "has no variable 'nothing'; expected: one of"),
        ("label", DTypeError, "not numeric"),
        ("deep/none", MissingVariableError, "has no variable"),
        ("nowhere/z", UnsupportedStoreError, "xarray cannot open group 'nowhere'"),
    ],
)
def test_what_a_file_does_not_hold_is_refused_by_name(netcdf: Path, variable: str, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        find("x", Input(store=netcdf, variable=variable))


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\x89HDF\r\n\x1a\n cut off", b"text"])
def test_a_file_that_nothing_opens_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.nc"
    path.write_bytes(content)
    with pytest.raises(UnsupportedStoreError, match="file.nc is no Zarr store, and xarray cannot open it") as caught:
        open_members("x", str(path))
    assert caught.value.do.startswith("check that inputs.x.store is whole")


def test_a_file_without_variables_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file.nc").write_bytes(b"CDF\x01 cut off")  # which netCDF-C takes for an empty file
    with pytest.raises(TilewiseError, match="file.nc"):
        find("x", Input(store=tmp_path / "file.nc"))
