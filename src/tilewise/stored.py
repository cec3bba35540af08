"""The arrays of an output as they are stored: outputs, coordinates, and what is not as it was laid out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewise import places
from tilewise.coordinates import ArrayRef
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.outputs import Target
from tilewise.units import Units

_FILE = "zarr.json"


@dataclass(frozen=True)
class Stored:
    """The arrays of an output.

    Attributes
    ----------
    outputs
        Those that tiles are written to, by name.
    coordinates
        All others.
    problems
        Name of an array, and what is not as the run laid it out; "" for the whole group.
    """

    outputs: Mapping[str, Units]
    coordinates: Mapping[str, Units]
    problems: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, output: str, grid: TileGrid, targets: Sequence[Target] | None = None) -> Stored:
        """Find the arrays of an output.

        Its consolidated metadata, which the run has written before its first tile, tells which arrays there were.

        Parameters
        ----------
        targets
            The outputs as the job lays them out, where that is known.
        """
        folder = Folder(output)
        listed = _json(folder, _FILE).get("consolidated_metadata") or {}
        laid_out = {n: m for n, m in listed.get("metadata", {}).items() if m.get("node_type") == "array"}
        problems = {} if laid_out else {"": "the group is not there, or has lost its consolidated metadata"}
        problems |= {name: text for name, was in laid_out.items() if (text := _unlike(folder.child(name), was))}
        found = {n: Units(ArrayRef(places.absolute(output), n)) for n in laid_out if n not in problems}
        for target in targets or () if laid_out else ():
            name = target.spec.name
            if name not in problems:
                text = found[name].other_than(target) if name in found else "there is no such array"
                problems |= {name: text} if text else {}
        names = [name for name in laid_out if _is_output(name, grid, laid_out)]
        return cls(
            outputs={name: found[name] for name in names if name in found and name not in problems},
            coordinates={name: units for name, units in found.items() if name not in names},
            problems=tuple(problems.items()),
        )


def _json(folder: Folder, name: str) -> dict[str, Any]:
    try:
        found = json.loads(folder.read_text(name) or "{}")
    except ValueError:
        return {}  # what is no metadata is not there
    return found if isinstance(found, dict) else {}


def _unlike(folder: Folder, was: Mapping[str, Any]) -> str:
    """How the metadata of an array is not what it was; attributes may have been edited."""
    now = _json(folder, _FILE)
    if not now:
        return "its metadata is not there, or is no JSON"
    keys = [key for key in was if key not in ("attributes", "consolidated_metadata") and now.get(key) != was[key]]
    return ", ".join(f"{key} is {json.dumps(now.get(key))}, not {json.dumps(was[key])}" for key in keys)


def _is_output(name: str, grid: TileGrid, others: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether tiles are written to an array: it has every tile dimension, and no other names it as a coordinate."""
    dims = others[name].get("dimension_names") or []
    named = [other.get("attributes", {}) for other in others.values()]
    words = {word for attrs in named for key in ("coordinates", "grid_mapping") for word in str(attrs.get(key)).split()}
    return set(grid.dims) <= set(dims) and dims != [name] and name not in words
