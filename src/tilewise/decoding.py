"""From stored numbers to the values that they mean by the CF conventions: scale, offset, missing values, signedness.

The rules, and the dtype of the values, are xarray's, so that a field means the same whichever way it is opened. One
thing is done otherwise: a missing value is compared in the stored dtype, so that a float32 1e20 is missing where the
attribute holds it in double precision.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewise.coordinates import Array
from tilewise.errors import UnsupportedStoreError
from tilewise.linalg.blocks import boxes

log = logging.getLogger("tilewise")

ValidRange = Literal["ignore", "mask"]
#: Cells that are decoded at a time, so that what lies between stored numbers and values stays in cache.
PANEL = 1 << 17
#: Bytes of one panel in all its forms: stored, as values, and as masks.
PANEL_BYTES = PANEL * (8 + 16 + 4)
_MISSING = ("_FillValue", "missing_value")
#: Attributes by which a stored number differs from its value.
PACKING = ("scale_factor", "add_offset", "_Unsigned", *_MISSING)
_VALID = ("valid_range", "valid_min", "valid_max")


@dataclass(frozen=True)
class Decoding:
    """How the stored numbers of one array become values.

    Attributes
    ----------
    attrs
        The CF attributes that say so.
    stored, dtype
        Dtype of the stored numbers, in native byte order, and of the values.
    unsigned
        Dtype that the stored bits stand for, where `_Unsigned` says so.
    missing
        Stored numbers that stand for a missing value.
    least, most
        Bounds outside which a value is missing; in stored numbers where `packed_bounds`, else in values.
    """

    attrs: Mapping[str, Any]
    stored: str
    dtype: str
    unsigned: str | None = None
    missing: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None
    packed_bounds: bool = True

    def decode(self, stored: Array, out: Array) -> None:
        """Fill `out` with the values of an array of stored numbers of the same shape."""
        stored, out = np.atleast_1d(stored, out)  # views: a single number is a panel too
        for box in boxes(stored.shape, PANEL):
            out[box] = self._panel(stored[box])

    def _panel(self, stored: Array) -> Array:
        stored = stored.view(self.unsigned) if self.unsigned else stored
        mask = self._outside(stored) if self.packed_bounds else np.zeros(stored.shape, dtype=bool)
        for missing in self.missing:
            mask |= stored == missing
        values = stored.astype(self.dtype)
        # Overflow of a wrong scale is the data's; it shows as an infinity and is flagged as one.
        with np.errstate(over="ignore", invalid="ignore"):
            if "scale_factor" in self.attrs:
                values *= _number(self.attrs["scale_factor"])
            if "add_offset" in self.attrs:
                values += _number(self.attrs["add_offset"])
        if not self.packed_bounds:
            mask |= self._outside(values)
        if mask.any():
            values[mask] = np.nan
        return values

    def _outside(self, numbers: Array) -> Array:
        mask = np.zeros(numbers.shape, dtype=bool)
        if self.least is not None:
            mask |= numbers < self.least
        if self.most is not None:
            mask |= numbers > self.most
        return mask


def decoding(where: str, dtype: Any, attrs: Mapping[str, Any], valid_range: ValidRange = "ignore") -> Decoding | None:
    """How an array with these attributes is decoded; None where its stored numbers are its values.

    Parameters
    ----------
    where
        The array, as messages name it.
    dtype
        Dtype of the stored numbers.
    valid_range
        "mask" makes values outside `valid_range`, `valid_min` and `valid_max` missing; "ignore" leaves them alone,
        as xarray does.

    Raises
    ------
    UnsupportedStoreError
        The attributes are not what the conventions allow.

    >>> found = decoding("t", "int16", {"scale_factor": 0.5, "_FillValue": -1})
    >>> out = np.empty(3)
    >>> found.decode(np.array([-1, 0, 3], "int16"), out)
    >>> found.dtype, out.tolist()
    ('float64', [nan, 0.0, 1.5])
    """
    if getattr(dtype, "kind", np.dtype(dtype).kind) not in "iufc":
        return None
    stored = np.dtype(dtype).newbyteorder("=")
    used = {key: attrs[key] for key in PACKING if key in attrs}
    bounds = {key: attrs[key] for key in _VALID if key in attrs} if valid_range == "mask" else {}
    if not used and not bounds:
        return None
    _check_numbers(where, {**used, **bounds})
    unsigned = _unsigned(stored, used.get("_Unsigned"))
    meant = unsigned or stored
    missing = tuple(_missing(where, stored, meant, used))
    least, most = _bounds(bounds)
    values = _values_dtype(where, stored, used, missing, masked=bool(bounds))
    if values == stored and not missing and least is None and most is None and not {*_SCALING} & {*used}:
        return None  # a float whose missing value is NaN
    return Decoding(
        attrs={**used, **bounds},
        stored=str(stored),
        dtype=str(values),
        unsigned=str(unsigned) if unsigned is not None else None,
        missing=missing,
        least=_bits(least, stored, meant),
        most=_bits(most, stored, meant),
        packed_bounds=not _are_values(bounds, stored, used),
    )


_SCALING = ("scale_factor", "add_offset")


def _check_numbers(where: str, attrs: Mapping[str, Any]) -> None:
    for key, value in attrs.items():
        if key == "_Unsigned" or key in _MISSING:
            continue
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iuf" or numbers.size != (2 if key == "valid_range" else 1):
            raise UnsupportedStoreError(
                f"{where} cannot be decoded by its CF attributes",
                got=f"{key}={value!r}",
                expected="two numbers" if key == "valid_range" else "one number",
                do="mend the attribute, or set mask_and_scale to false to read the stored numbers",
            )


def _number(value: Any) -> Any:
    """A scalar attribute: NetCDF may hold it as an array of one."""
    return np.asarray(value).item() if value is not None and np.ndim(value) > 0 else value


def _unsigned(stored: np.dtype[Any], flag: Any) -> np.dtype[Any] | None:
    """The dtype that the bits stand for, where it is not the stored one."""
    if stored.kind == "i" and str(flag).lower() == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and str(flag).lower() == "false":
        return np.dtype(f"i{stored.itemsize}")
    return None


def _missing(where: str, stored: np.dtype[Any], meant: np.dtype[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Missing values as they lie in the array; one that its dtype cannot hold is in no cell of it."""
    found: list[Any] = []
    for key in _MISSING:
        for value in np.ravel(attrs.get(key, ())).tolist():
            cell = _cell(value, stored, meant)
            if cell is None:
                log.warning("%s: %s %r is no %s and marks nothing", where, key, value, meant)
            elif cell == cell and cell not in found:  # NaN is missing already
                found.append(cell)
    return found


def _cell(value: Any, stored: np.dtype[Any], meant: np.dtype[Any]) -> Any:
    """The number of dtype `meant` that a missing value stands for, None where there is none."""
    if not isinstance(value, (int, float, complex)):
        return None
    if meant.kind in "fc":
        with np.errstate(over="ignore"):
            cell = meant.type(value)
        return cell if np.isfinite(cell) or not np.isfinite(value) else None
    if isinstance(value, complex) or not math.isfinite(value) or value != int(value):
        return None
    cell = _bits(int(value), stored, meant)
    return meant.type(cell) if np.iinfo(meant).min <= cell <= np.iinfo(meant).max else None


def _bits(value: Any, stored: np.dtype[Any], meant: np.dtype[Any]) -> Any:
    """A whole number written for the stored dtype, as the dtype that its bits stand for has it."""
    if value is None or stored == meant or value != int(value):
        return value
    span = 1 << (8 * stored.itemsize)
    if meant.kind == "u" and -(span >> 1) <= value < 0:
        return int(value) + span
    if meant.kind == "i" and span >> 1 <= value < span:
        return int(value) - span
    return value


def _bounds(attrs: Mapping[str, Any]) -> tuple[Any, Any]:
    if "valid_range" not in attrs:
        return _number(attrs.get("valid_min")), _number(attrs.get("valid_max"))
    least, most = np.ravel(attrs["valid_range"]).tolist()
    return least, most


def _are_values(bounds: Mapping[str, Any], stored: np.dtype[Any], attrs: Mapping[str, Any]) -> bool:
    """Whether bounds speak of values: those of packed integers do where they are floating themselves."""
    packed = stored.kind in "iu" and bool({*_SCALING} & {*attrs})
    return packed and any(np.asarray(value).dtype.kind == "f" for value in bounds.values())


def _values_dtype(
    where: str, stored: np.dtype[Any], attrs: Mapping[str, Any], missing: tuple[Any, ...], *, masked: bool
) -> np.dtype[Any]:
    """The dtype that xarray gives the values; missing values make integers floating."""
    # A missing value that marks nothing changes nothing.
    used = {key: _number(value) if key in _SCALING else value for key, value in attrs.items() if key not in _MISSING}
    if missing and stored.kind in "iu":
        used["_FillValue"] = stored.type(0)
    found = _decoded_dtype(where, stored, used) if used else stored
    if (masked or missing) and found.kind in "iu":  # by a whole number as its scale
        return np.dtype("float32" if found.itemsize <= 2 else "float64")
    return found


def _decoded_dtype(where: str, stored: np.dtype[Any], used: Mapping[str, Any]) -> np.dtype[Any]:
    import xarray as xr  # 0.7 s and 50 MB: floats that are not packed do without

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xr.SerializationWarning)
        one = xr.Variable(("cell",), np.zeros(1, stored), used)
        decoded = xr.conventions.decode_cf_variable(where, one, decode_times=False, decode_timedelta=False)
    found: np.dtype[Any] = decoded.dtype
    return found
