"""Which attributes survive a computation, what packing means, and where an output came from.

A computed field is no longer what its input was: units, standard names, valid ranges, cell methods and packing are
dropped unless the kernel or the job declares them anew.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tilewise._version import __version__
from tilewise.errors import UnsupportedStoreError

#: Attributes by which a stored number differs from the value that it means.
_PACKING = ("scale_factor", "add_offset", "_Unsigned")
_MISSING = ("_FillValue", "missing_value")
#: Attributes that describe how an array is stored or grouped, not what it is.
STORAGE_ATTRS = ("_ARRAY_DIMENSIONS", "_FillValue", "coordinates", "grid_mapping")


def refuse_packed(name: str, where: str, attrs: Mapping[str, Any]) -> None:
    """Refuse a variable whose stored numbers are not its values.

    Raises
    ------
    UnsupportedStoreError
        The variable has a scale, an offset, or a missing value other than NaN: reading it raw would be wrong.
    """
    packing = [key for key in _PACKING if key in attrs]
    packing += [key for key in _MISSING if key in attrs and not _is_nan(attrs[key])]
    if packing:
        raise UnsupportedStoreError(
            f"input {name!r} ({where}) is packed by the CF attributes {', '.join(packing)}",
            got=", ".join(f"{key}={attrs[key]!r}" for key in packing),
            expected="plain values, with NaN for what is missing",
            do="decode it once: xarray.open_zarr(...).drop_encoding().to_zarr(...)",
        )


def _is_nan(value: object) -> bool:
    """Whether an attribute is NaN as a number, as text, or as the base64 of its eight bytes that xarray writes."""
    if isinstance(value, float):
        return math.isnan(value)
    return value in ("NaN", "nan", "AAAAAAAA+H8=", "AADAfw==", "AH4=")


def kept_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a coordinate that are copied beside it: all but those of its storage."""
    return {key: value for key, value in attrs.items() if key not in STORAGE_ATTRS}


def provenance(description: Mapping[str, object], run: str) -> dict[str, Any]:
    """Attributes of an output group: CF history, and the job that made it as JSON."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kernel = description.get("kernel")
    name = kernel.get("name") if isinstance(kernel, Mapping) else kernel
    return {
        "Conventions": "CF-1.11",
        "history": f"{now}: tilewise {__version__} {name}",
        "tilewise": {
            "version": __version__,
            "run": run,
            "job": json.loads(to_json(description)),
            "libraries": library_versions(),
        },
    }


def to_json(value: object) -> str:
    """JSON that every parser reads: infinities and NaN, which it has no form for, become text.

    >>> print(to_json({"ord": math.inf, "tiles": (1, 2.5)}))
    {
      "ord": "inf",
      "tiles": [
        1,
        2.5
      ]
    }
    """
    return json.dumps(_finite(value), indent=2, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def library_versions() -> dict[str, str]:
    """Versions of everything that can change a bit of the result or a byte of the memory."""
    names = ("torch", "numpy", "zarr", "numcodecs", "xarray", "dask", "distributed")
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), **found}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
