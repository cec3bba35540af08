"""Stored numbers to values: xarray's decoding of whole variables is the oracle."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tilewise.decoding import PANEL, Decoding, decoding
from tilewise.errors import UnsupportedStoreError

RNG = np.random.default_rng(3)


def numbers(dtype: str, *special: Any, size: int = 500) -> np.ndarray[Any, Any]:
    """Numbers over the whole range of a dtype, with the special ones among them."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        native = kind.newbyteorder("=")
        found = RNG.integers(info.min, info.max, size=size, dtype=native, endpoint=True).astype(kind)
    else:
        found = (RNG.standard_normal(size) * 1e3).astype(kind)
    found[: len(special)] = special
    return found


def oracle(stored: np.ndarray[Any, Any], attrs: dict[str, Any]) -> np.ndarray[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variable = xr.Variable(("cell",), stored, attrs)
        return np.asarray(xr.conventions.decode_cf_variable("v", variable, decode_times=False).values)


def decoded(found: Decoding | None, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    assert found is not None
    out = np.empty(stored.shape, dtype=found.dtype)
    found.decode(np.ascontiguousarray(stored.astype(found.stored)), out)
    return out


F4, F8 = np.float32, np.float64
KINDS: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {
    "signed, both": (numbers("int16", -32768), {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}),
    "signed, single precision": (numbers("int16"), {"scale_factor": F4(0.01), "add_offset": F4(20)}),
    "single precision and four bytes": (numbers("int32"), {"scale_factor": F4(0.01), "add_offset": F4(20)}),
    "negative scale": (numbers("int16"), {"scale_factor": F8(-0.0015727), "add_offset": F8(26.96875)}),
    "scale only": (numbers("uint8"), {"scale_factor": 0.5}),
    "offset only": (numbers("int8"), {"add_offset": 100.0}),
    "fill only, two bytes": (numbers("int16", -1, 0, 1), {"_FillValue": -1}),
    "fill only, four bytes": (numbers("int32", -9999), {"_FillValue": -9999}),
    "fill of zero": (numbers("uint16", 0, 0, 5), {"_FillValue": 0}),
    "unsigned in signed": (numbers("int8", -1, -128, 127), {"_Unsigned": "true", "_FillValue": -1}),
    "unsigned, scaled": (numbers("int16", -1, -2), {"_Unsigned": "true", "scale_factor": 0.1, "_FillValue": -1}),
    "unsigned, no fill": (numbers("int8", -1), {"_Unsigned": "true"}),
    "signed in unsigned": (numbers("uint8", 5, 128), {"_Unsigned": "false", "_FillValue": 5}),
    "two missing values": (numbers("int16", 7, 9), {"_FillValue": 7, "missing_value": 9}),
    "several missing values": (numbers("int16", 7, 9, 11), {"missing_value": np.array([7, 9, 11], "int16")}),
    "float fill": (numbers("float64", -9999.0), {"_FillValue": -9999.0}),
    "float fill beside NaN": (numbers("float32", -9999.0, np.nan), {"_FillValue": F4(-9999), "missing_value": np.nan}),
    "float scale": (numbers("float32", 1.0), {"scale_factor": 100.0}),
    "NaN on integers": (numbers("int16"), {"_FillValue": F8(np.nan), "scale_factor": F8(0.5), "add_offset": F8(1)}),
    "scale as an array of one": (numbers("int16"), {"scale_factor": np.array([0.25]), "add_offset": np.array([1.0])}),
    "big-endian": (numbers(">i2", -1), {"scale_factor": 0.1, "_FillValue": -1}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_dtype_are_those_of_xarray(kind: str) -> None:
    stored, attrs = KINDS[kind]
    expected = oracle(stored, attrs)
    found = decoded(decoding("v", stored.dtype, attrs), stored)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)  # the same operations in the same order: the same bits


@pytest.mark.parametrize(
    ("dtype", "attrs"),
    [
        ("float32", {}),
        ("float64", {"_FillValue": np.nan}),
        ("int16", {"_FillValue": np.nan}),
        ("int16", {"units": "m", "valid_range": [0, 1]}),
        ("bool", {"_FillValue": 1}),
        ("<U3", {"_FillValue": "x"}),
    ],
)
def test_plain_numbers_are_not_decoded(dtype: str, attrs: dict[str, Any]) -> None:
    assert decoding("v", dtype, attrs) is None


def test_a_missing_value_is_compared_in_the_stored_dtype() -> None:
    stored = np.array([1e20, 1.0], dtype="float32")
    found = decoded(decoding("v", "float32", {"_FillValue": 1e20}), stored)  # 1e20 is no float32
    np.testing.assert_array_equal(found, [np.nan, 1.0])


def test_a_missing_value_beyond_a_float_dtype_is_not_infinity() -> None:
    assert decoding("v", "float32", {"missing_value": 1e40}) is None


def test_a_whole_number_as_scale_leaves_room_for_missing_values() -> None:
    found = decoded(decoding("v", "int16", {"scale_factor": 2, "_FillValue": -1}), np.array([-1, 3], "int16"))
    np.testing.assert_array_equal(found, [np.nan, 6.0])


def test_a_scale_in_a_list_is_a_number() -> None:
    found = decoded(decoding("v", "float32", {"scale_factor": [0.5]}), np.array([3], "float32"))
    np.testing.assert_array_equal(found, [1.5])


@pytest.mark.parametrize("fill", [-9999, 0.5, 1e9, "gone"])
def test_a_missing_value_that_the_dtype_cannot_hold_marks_nothing_and_is_told(
    fill: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tilewise"):
        found = decoding("input 'x'", "uint8", {"_FillValue": fill, "scale_factor": 2.0})
    np.testing.assert_array_equal(decoded(found, np.array([0, 255], "uint8")), [0.0, 510.0])
    assert "marks nothing" in caplog.text


def test_a_missing_value_may_be_written_for_either_signedness() -> None:
    for dtype, flag, fill in (("uint8", "false", 255), ("uint8", "false", -1), ("int8", "true", 255)):
        stored = np.array([-1, 7], "int8").astype(dtype)
        found = decoded(decoding("v", dtype, {"_Unsigned": flag, "_FillValue": fill}), stored)
        np.testing.assert_array_equal(found, [np.nan, 7])


def test_panels_join() -> None:
    stored = numbers("int16", size=2 * PANEL + 17).reshape(1, -1)
    attrs = {"scale_factor": 0.1, "_FillValue": 5}
    np.testing.assert_array_equal(decoded(decoding("v", "int16", attrs), stored), oracle(stored[0], attrs)[None])


VALID: dict[str, tuple[str, dict[str, Any], list[Any], list[float]]] = {
    "range": ("int16", {"valid_range": [0, 10]}, [-1, 0, 10, 11], [np.nan, 0, 10, np.nan]),
    "least": ("float32", {"valid_min": 0.0}, [-1, 0, np.nan], [np.nan, 0, np.nan]),
    "most": ("float64", {"valid_max": 1}, [2, 1, -5], [np.nan, 1, -5]),
    "of packed numbers": ("int16", {"scale_factor": 0.5, "valid_range": [0, 10]}, [-1, 10, 11], [np.nan, 5, np.nan]),
    "of values": ("int16", {"scale_factor": 0.5, "valid_range": [0.0, 10.0]}, [-1, 20, 21], [np.nan, 10, np.nan]),
    "of unsigned": ("int8", {"_Unsigned": "true", "valid_range": [0, -56]}, [-1, -56, 5], [np.nan, 200, 5]),
    "beside a fill": ("int16", {"_FillValue": 3, "valid_max": 9}, [3, 9, 10], [np.nan, 9, np.nan]),
}


@pytest.mark.parametrize("kind", VALID)
def test_valid_ranges_are_masked_where_asked(kind: str) -> None:
    dtype, attrs, stored, expected = VALID[kind]
    found = decoded(decoding("v", dtype, attrs, "mask"), np.array(stored, dtype))
    np.testing.assert_array_equal(found, expected)


def test_a_single_number_may_be_missing() -> None:
    found = decoding("v", "int16", {"_FillValue": 3, "scale_factor": 0.5})
    assert found is not None
    out = np.zeros((), found.dtype)
    found.decode(np.array(3, "int16"), out)
    assert np.isnan(out)


@pytest.mark.parametrize(
    "attrs",
    [{"scale_factor": "a tenth"}, {"add_offset": [1.0, 2.0]}, {"scale_factor": None}, {"scale_factor": {"value": 1}}],
)
def test_attributes_that_are_no_numbers_are_refused(attrs: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedStoreError, match="cannot be decoded"):
        decoding("v", "int16", attrs)


@pytest.mark.parametrize("attrs", [{"valid_range": [1]}, {"valid_min": "low"}, {"valid_range": [1, 2, 3]}])
def test_valid_ranges_that_are_none_are_refused_only_where_asked(attrs: dict[str, Any]) -> None:
    assert decoding("v", "int16", attrs) is None
    with pytest.raises(UnsupportedStoreError, match="cannot be decoded"):
        decoding("v", "int16", attrs, "mask")
