"""Packed outputs: values written as scaled numbers of a smaller dtype, by the CF conventions.

A value that has no stored number of its own becomes the missing value and is counted; nothing wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilewise.coordinates import Array
from tilewise.errors import DTypeError, ParameterError
from tilewise.fields import OutputSpec, is_complex, is_floating

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_FLOATS = ("float16", "float32", "float64")
#: Values that are packed at a time, so that what lies between them and stored numbers stays in cache.
PANEL = 1 << 16
#: Bytes of one panel in all its forms.
PANEL_BYTES = PANEL * (8 * 3 + 8)


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How an output is packed: a value v is stored as (v - add_offset) / scale_factor, rounded to nearest.

    Attributes
    ----------
    dtype
        Of the stored numbers: int8 to int32, uint8 to uint32, or float16 to float64.
    scale_factor, add_offset
        In units of the output; what is read back is stored * scale_factor + add_offset.
    _FillValue
        Stored number of a missing value; unless given NaN for floats, the least number of a signed dtype and the
        largest of an unsigned one. No value is stored as it.

    >>> packed = Encoding(dtype="int16", scale_factor=0.5)
    >>> packed.pack(np.array([1.26, np.nan, 1e9])).tolist(), packed.misfits(np.array([1.26, np.nan, 1e9])).tolist()
    ([3, -32768, -32768], [False, False, True])
    """

    dtype: str
    scale_factor: float = 1.0
    add_offset: float = 0.0
    _FillValue: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be stored."""
        if self.dtype not in (*_INTEGERS, *_FLOATS):
            raise DTypeError(
                f"an output cannot be packed as {self.dtype!r}",
                expected="one of " + ", ".join((*_INTEGERS, *_FLOATS)),
                do="mend dtype of output.encoding",
            )
        self._check_numbers()
        if not math.isfinite(self.scale_factor) or self.scale_factor == 0 or not math.isfinite(self.add_offset):
            raise ParameterError(
                "scale_factor and add_offset of output.encoding make no numbers",
                got=f"scale_factor {self.scale_factor}, add_offset {self.add_offset}",
                expected="finite numbers, and a scale_factor that is not zero",
                do="mend them",
            )
        if self._FillValue is not None:
            self._check_fill(self._FillValue)

    def _check_numbers(self) -> None:
        for name in ("scale_factor", "add_offset", "_FillValue"):
            value = getattr(self, name)
            absent = name == "_FillValue" and value is None
            if not absent and (isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating))):
                raise ParameterError(
                    f"{name} of output.encoding is no number", got=repr(value), do=f"write {name} as a number"
                )

    def _check_fill(self, fill: float) -> None:
        if self.dtype in _FLOATS:
            if math.isfinite(fill) and abs(fill) > float(np.finfo(self.dtype).max):
                raise ParameterError(
                    f"_FillValue of output.encoding is no {self.dtype}", got=fill, do="leave it out, or take NaN"
                )
            return
        info = np.iinfo(self.dtype)
        if not math.isfinite(fill) or fill != int(fill) or not info.min <= fill <= info.max:
            raise ParameterError(
                f"_FillValue of output.encoding is no {self.dtype}",
                got=fill,
                expected=f"a whole number from {info.min} to {info.max}",
                do="mend _FillValue, or leave it out",
            )

    @property
    def fill(self) -> Any:
        """Stored number of a missing value."""
        kind = np.dtype(self.dtype)
        if kind.kind == "f":
            return math.nan if self._FillValue is None else float(kind.type(self._FillValue))
        if self._FillValue is not None:
            return int(self._FillValue)
        return int(np.iinfo(kind).min if kind.kind == "i" else np.iinfo(kind).max)

    @property
    def attrs(self) -> dict[str, Any]:
        """CF attributes that say how to read the stored numbers; `_FillValue` is left to who writes them."""
        found = {"scale_factor": float(self.scale_factor), "add_offset": float(self.add_offset)}
        return found if found != {"scale_factor": 1.0, "add_offset": 0.0} else {}

    def misfits(self, values: Array) -> Array:
        """Where a value that is not missing has no stored number."""
        scaled = self._scaled(values)
        return self._outside(scaled) & ~np.isnan(values)

    def pack(self, values: Array) -> Array:
        """Stored numbers of values; NaN, and what has no number, is the missing value."""
        scaled = self._scaled(values)
        gone = self._outside(scaled)
        scaled[gone] = 0
        stored = scaled.astype(self.dtype)
        stored[gone] = self.fill
        return stored

    def _scaled(self, values: Array) -> Array:
        scaled = values.astype("float64")
        with np.errstate(over="ignore", invalid="ignore"):
            scaled -= self.add_offset
            scaled /= self.scale_factor
        if self.dtype in _INTEGERS:
            np.rint(scaled, out=scaled)
        return scaled

    def _outside(self, scaled: Array) -> Array:
        """Where a scaled value is missing, out of range, or would look like the missing value."""
        if self.dtype in _INTEGERS:
            info = np.iinfo(self.dtype)
            beyond = ~((scaled >= info.min) & (scaled <= info.max))  # true of NaN too
        else:
            with np.errstate(over="ignore"):
                scaled, before = scaled.astype(self.dtype), scaled
            beyond = np.isnan(before) | (np.isfinite(before) & ~np.isfinite(scaled))
        return np.asarray(beyond | (scaled == self.fill))


def encoding(given: Encoding | Mapping[str, Any], name: str) -> Encoding:
    """An encoding from a mapping with xarray's keys.

    Raises
    ------
    ParameterError
        A key is unknown; chunks, shards and codec are keys of the output itself.
    """
    if isinstance(given, Encoding):
        return given
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"output.encoding of {name!r} is no mapping",
            got=repr(given),
            expected="such as {'dtype': 'int16'}",
            do=f"mend output.encoding.{name}",
        )
    known = [f.name for f in fields(Encoding)]
    unknown = [key for key in given if key not in known]
    if unknown or "dtype" not in given:
        raise ParameterError(
            f"output.encoding of {name!r} " + (f"has the unknown key {unknown[0]!r}" if unknown else "names no dtype"),
            got=", ".join(map(str, given)),
            expected=", ".join(known),
            do="chunks, shards and codec are keys of the output itself" if unknown else "add dtype",
        )
    return Encoding(**given)


def check_packable(spec: OutputSpec) -> None:
    """Refuse to pack what is not a real floating output.

    Raises
    ------
    DTypeError
        The output is whole, such as a status, or complex.
    """
    if not is_floating(spec.dtype) or is_complex(spec.dtype):
        raise DTypeError(
            f"output {spec.name!r} is {spec.dtype} and cannot be packed",
            expected="a real floating output",
            do=f"remove output.encoding.{spec.name}",
        )
