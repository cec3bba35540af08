"""Which attributes survive a computation, and where an output came from.

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

#: Attributes that describe how an array is stored or grouped, not what it is.
STORAGE_ATTRS = ("_ARRAY_DIMENSIONS", "_FillValue", "coordinates", "grid_mapping")


def kept_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a coordinate that are copied beside it, as JSON holds them: all but those of its storage."""
    return {key: _plain(value) for key, value in attrs.items() if key not in STORAGE_ATTRS}


def _plain(value: Any) -> Any:
    """A value of JSON: NetCDF keeps attributes as numpy's scalars and arrays."""
    return value.tolist() if hasattr(value, "tolist") else value


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
    value = _plain(value)
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
