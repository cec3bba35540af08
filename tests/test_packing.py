"""Packed outputs: within half a quantum when read back by xarray, and nothing ever wraps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import stores
import tilewise
import tilewise.config
from faults import Copy
from tilewise.errors import DTypeError, ParameterError
from tilewise.packing import Encoding
from user_kernels import Total

DIMS = ("band", "y", "x")
RNG = np.random.default_rng(5)


def run(tmp_path: Path, data: np.ndarray[Any, Any], encoding: Any, kernel: Any = None, **options: Any) -> Any:
    path = stores.write(tmp_path / "in.zarr", {"x": (DIMS, data)}, chunks={"y": 4, "x": 4})
    output = tilewise.Output(store=tmp_path / "out.zarr", encoding=encoding, **options)
    job = tilewise.Job(kernel=kernel or Copy(dim="band"), inputs={"x": path}, output=output)
    return tilewise.run(job)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("sharded", [False, True])
def test_values_are_read_back_by_xarray_within_half_a_quantum(tmp_path: Path, dtype: str, sharded: bool) -> None:
    info = np.iinfo(dtype)
    scale, offset = 0.37, -11.0
    least = 1 if info.min < 0 else 0  # the missing value is the least signed, and the largest unsigned number
    values = (RNG.uniform(info.min + least, info.max - 1 + least, (2, 10, 9)) * scale + offset).astype("float64")
    values[0, 0, 0] = np.nan
    options: dict[str, Any] = {"chunks": {"y": 2, "x": 3}}
    options |= {"shards": {"y": 4, "x": 6}} if sharded else {}
    encoding = {"copy": {"dtype": dtype, "scale_factor": scale, "add_offset": offset}}
    assert run(tmp_path, values, encoding, **options).misfits == 0
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None, mask_and_scale=False) as stored:
        assert stored["copy"].dtype == dtype
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        found = result["copy"].values
    # Half a quantum, and the rounding of stored * scale + offset in float64: each of the two operations is within
    # half an ulp of its result, so that an ulp of the largest term holds both; as much again for packing.
    bound = scale / 2 + 4 * np.finfo("float64").eps * (np.abs(values) + 2 * abs(offset))
    assert np.isnan(found[0, 0, 0])
    assert np.nanmax(np.abs(found - values) - bound) <= 0


@pytest.mark.parametrize("fill", [None, -32768, 0, 32767])
@pytest.mark.parametrize("dtype", ["int16", "uint8"])
def test_what_does_not_fit_is_missing_and_counted_and_never_wraps(tmp_path: Path, dtype: str, fill: Any) -> None:
    if fill is not None and not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        pytest.skip("no number of this dtype")
    info, missing = np.iinfo(dtype), Encoding(dtype=dtype, _FillValue=fill).fill
    bad = [info.max + 1.0, info.min - 1.0, 1e300, -1e300, np.inf, -np.inf, float(missing), missing + 0.4]
    values = np.ones((1, 4, 4))
    values.reshape(-1)[: len(bad)] = bad
    report = run(tmp_path, values, {"copy": {"dtype": dtype, "_FillValue": fill}})
    assert report.misfits == len(bad)
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        found = result["copy"].values.reshape(-1)
    np.testing.assert_array_equal(found, [np.nan] * len(bad) + [1.0] * (16 - len(bad)))


def test_the_status_of_a_pixel_that_does_not_fit_is_non_finite(tmp_path: Path) -> None:
    values = np.ones((2, 3, 3))
    values[:, 1, 2] = 1e6
    report = run(tmp_path, values, {"total": {"dtype": "int8"}}, Total(dim="band"))
    status = stores.read(tmp_path / "out.zarr", "status")
    assert report.misfits == 1
    assert report.statuses == {"ok": 8, "non_finite": 1}
    assert np.argwhere(status).tolist() == [[1, 2]]
    assert status[1, 2] == 7


@pytest.mark.parametrize(("value", "misfits"), [(2.0, 0), (1e9, 1)])
@pytest.mark.parametrize("encoding", [{"dtype": "int16"}, {"dtype": "float16"}])
def test_an_output_of_a_single_value_is_packed(tmp_path: Path, encoding: dict, value: float, misfits: int) -> None:
    path = stores.write(tmp_path / "in.zarr", {"x": (("band",), np.array([value, 1.0]))})
    output = tilewise.Output(store=tmp_path / "out.zarr", encoding={"total": encoding})
    report = tilewise.run(tilewise.Job(kernel=Total(dim="band"), inputs={"x": path}, output=output))
    assert report.misfits == misfits
    assert report.statuses == ({"non_finite": 1} if misfits else {"ok": 1})
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        np.testing.assert_array_equal(result["total"].values, np.nan if misfits else value + 1)


def test_one_unknown_that_does_not_fit_leaves_the_others(tmp_path: Path) -> None:
    A = np.eye(2)
    b = np.array([[1.0, 1e9], [2.0, 3.0]])
    path = stores.write(tmp_path / "in.zarr", {"A": (("e", "u"), A), "b": (("e", "x"), b)})
    output = tilewise.Output(store=tmp_path / "out.zarr", encoding={"solution": Encoding(dtype="int16")})
    job = tilewise.Job(kernel=tilewise.Lstsq(dim="e"), inputs={"A": path, "b": path}, output=output)
    assert tilewise.run(job).misfits == 1
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        np.testing.assert_array_equal(result["solution"].values, [[1.0, np.nan], [2.0, 3.0]])
        np.testing.assert_array_equal(result["status"].values, [0, 7])


def test_a_float_encoding_keeps_infinities_and_flags_what_overflows(tmp_path: Path) -> None:
    values = np.array([1.5, np.inf, -np.inf, np.nan, 1e39, -9999.0]).reshape(1, 2, 3)
    report = run(tmp_path, values, {"copy": {"dtype": "float32", "_FillValue": -9999.0}})
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        found = result["copy"].values.reshape(-1)
        assert result["copy"].dtype == "float32"
    np.testing.assert_array_equal(found, [1.5, np.inf, -np.inf, np.nan, np.nan, np.nan])
    assert report.misfits == 2


def test_what_is_not_computed_reads_as_missing(tmp_path: Path) -> None:
    run(tmp_path, np.ones((1, 4, 4)), {"copy": {"dtype": "int16", "scale_factor": 0.1}})
    for chunk in (tmp_path / "out.zarr" / "copy" / "c").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
    with xr.open_zarr(tmp_path / "out.zarr", chunks=None) as result:
        assert np.isnan(result["copy"].values).all()


@given(
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32"]),
    st.floats(1e-6, 1e6),
    st.floats(-1e6, 1e6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20),
)
def test_a_value_is_stored_near_itself_or_is_missing(dtype: str, scale: float, offset: float, values: list) -> None:
    packing = Encoding(dtype=dtype, scale_factor=scale, add_offset=offset)
    given_values = np.array(values)
    stored, misfits = packing.pack(given_values), packing.misfits(given_values)
    missing = stored == packing.fill
    np.testing.assert_array_equal(missing, misfits | np.isnan(given_values))
    back = stored.astype("float64") * scale + offset
    # As above, with the size of the terms: the stored number times the scale, and the offset.
    slack = 4 * np.finfo("float64").eps * (np.abs(back) + 2 * abs(offset) + scale)
    with np.errstate(invalid="ignore"):
        assert np.all(missing | (np.abs(back - given_values) <= scale / 2 + slack))


@pytest.mark.parametrize(
    ("encoding", "error", "text"),
    [
        ({"dtype": "int64"}, DTypeError, "cannot be packed as 'int64'"),
        ({"dtype": "complex64"}, DTypeError, "cannot be packed"),
        ({"scale_factor": 1.0}, ParameterError, "names no dtype"),
        ({"dtype": "int16", "zlib": True}, ParameterError, "unknown key 'zlib'"),
        ({"dtype": "int16", "scale_factor": 0.0}, ParameterError, "make no numbers"),
        ({"dtype": "int16", "add_offset": np.inf}, ParameterError, "make no numbers"),
        ({"dtype": "int16", "_FillValue": np.nan}, ParameterError, "is no int16"),
        ({"dtype": "uint8", "_FillValue": -1}, ParameterError, "is no uint8"),
        ({"dtype": "uint8", "_FillValue": 0.5}, ParameterError, "is no uint8"),
        ({"dtype": "float32", "_FillValue": 1e40}, ParameterError, "is no float32"),
        ({"dtype": "int16", "scale_factor": "a"}, ParameterError, "is no number"),
        ({"dtype": "int16", "scale_factor": True}, ParameterError, "is no number"),
        (3, ParameterError, "is no mapping"),
    ],
)
def test_encodings_that_cannot_be_are_refused_when_they_are_made(encoding: dict, error: Any, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        tilewise.Output(store="o.zarr", encoding={"copy": encoding})
    assert caught.value.do


@pytest.mark.parametrize(
    ("encoding", "error", "text"),
    [
        ({"cpoy": {"dtype": "int16"}}, ParameterError, "'cpoy', which is no output"),
        ({"status": {"dtype": "int16"}}, DTypeError, "status.*cannot be packed"),
    ],
)
def test_encodings_of_other_outputs_are_refused_before_anything_is_written(
    tmp_path: Path, encoding: dict, error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        run(tmp_path, np.ones((1, 2, 2)), encoding, Total(dim="band"))
    assert not (tmp_path / "out.zarr").exists()


def test_a_job_file_says_encodings(tmp_path: Path) -> None:
    text = """
    kernel: {name: norm, dim: band}
    inputs: {x: a.zarr}
    output: {store: b.zarr, encoding: {norm: {dtype: int16, scale_factor: 1e-2, _FillValue: -1}}}
    """
    job = tilewise.config.loads(text)
    assert job.output.encoding["norm"] == Encoding(dtype="int16", scale_factor=0.01, _FillValue=-1)
    assert tilewise.config.loads(tilewise.config.dump(job)) == job
