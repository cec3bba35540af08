"""The Zarr group of a ledger: how it is made and opened, and what is said of one that is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from tilewise import access, cf
from tilewise.errors import ResumeError, TilewiseError
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.ledger_rows import CODES, PHASES, Column, Rows, columns, meaning

VERSION = 1
#: Values of a coordinate that are written at a time.
PIECE = 1 << 16
_OPTIONS: dict[str, Any] = {"compressors": ZstdCodec(level=1, checksum=True)}


def create_group(folder: Folder, grid: TileGrid, attrs: Mapping[str, Any]) -> None:
    """A ledger in which every tile is pending; what was there is removed."""
    folder.remove()
    head = {"ledger": VERSION, "dims": grid.dims, "size": grid.size, "tile_shape": grid.tile_shape, "attrs": attrs}
    with access.reaching(folder.place), access.quiet():
        group = zarr.create_group(
            access.zarr_store(folder.place, read_only=False),
            zarr_format=3,
            attributes={"Conventions": "CF-1.11", "title": "tiles of a run", "tilewise": json.loads(cf.to_json(head))},
        )
        table = columns(grid)
        taken = {name for column in table for name in (column.name, *(dim for dim, _ in column.lead))}
        dims = [f"{dim}_of_grid" if dim in taken else dim for dim in grid.dims]
        for column in table:
            _create_array(group, column, grid, dims)
        for dim, count, cells in zip(dims, grid.shape, grid.tile_shape, strict=True):
            _create_starts(group, dim, count, cells)
        _create_flags(group, "phase", range(len(PHASES)), PHASES)
        _create_flags(group, "code", CODES, [meaning(code) for code in CODES])
        zarr.consolidate_metadata(group.store)


def _create_array(group: zarr.Group, column: Column, grid: TileGrid, dims: Sequence[str]) -> None:
    sizes = [size for _, size in column.lead]
    group.create_array(
        column.name,
        shape=(*sizes, *grid.shape),
        chunks=(*sizes, *Rows(grid.shape).chunk),
        dtype=column.dtype,
        fill_value=0,
        dimension_names=(*(dim for dim, _ in column.lead), *dims),
        attributes=column.attrs,
        **_OPTIONS,
    )


def _create_starts(group: zarr.Group, dim: str, count: int, cells: int) -> None:
    """The coordinate of a dimension of the grid: where each tile begins, in cells."""
    attrs: dict[str, Any] = {"long_name": f"first cell of the tile along {dim}"}
    array = group.create_array(
        dim,
        shape=(count,),
        chunks=(min(count, PIECE),),
        dtype="int64",
        dimension_names=(dim,),
        attributes=attrs,
        **_OPTIONS,
    )
    for first in range(0, count, PIECE):
        array[first : first + PIECE] = np.arange(first, min(count, first + PIECE), dtype=np.int64) * cells


def _create_flags(group: zarr.Group, dim: str, values: Any, meanings: Any) -> None:
    """The coordinate of phases or codes, whose names are CF flags: texts are no dtype that every reader knows."""
    numbers = np.array(list(values), dtype=np.uint8)
    attrs = {"flag_values": numbers.tolist(), "flag_meanings": " ".join(meanings)}
    array = group.create_array(
        dim,
        shape=numbers.shape,
        chunks=numbers.shape,
        dtype="uint8",
        dimension_names=(dim,),
        attributes=attrs,
        **_OPTIONS,
    )
    array[:] = numbers


def open_group(folder: Folder, *, write: bool) -> tuple[dict[str, zarr.Array[Any]], TileGrid, dict[str, Any]]:
    """Arrays, grid and attributes of a ledger.

    Raises
    ------
    ResumeError
        It is damaged, or of a version that is not known.
    """
    with access.reaching(folder.place), damage_named(folder.place):
        group = zarr.open_group(access.zarr_store(folder.place, read_only=not write), mode="r+" if write else "r")
        head: Any = group.attrs["tilewise"]
        if head["ledger"] != VERSION:
            raise ResumeError(
                "the records of the run are of another version of tilewise",
                got=f"version {head['ledger']} of {folder}",
                expected=f"version {VERSION}",
                do="resume it with that version, or run again with --overwrite",
            )
        grid = TileGrid(tuple(head["dims"]), tuple(head["size"]), tuple(head["tile_shape"]))
        arrays = {column.name: _opened(group, column, grid) for column in columns(grid)}
        return arrays, grid, dict(head["attrs"])


def _opened(group: zarr.Group, column: Column, grid: TileGrid) -> zarr.Array[Any]:
    array = group[column.name]
    expected = (*(size for _, size in column.lead), *grid.shape)
    if not isinstance(array, zarr.Array) or array.shape != expected or array.dtype != column.dtype:
        raise ValueError(f"array {column.name!r} is not {column.dtype} of shape {expected}")
    return array


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Say that a ledger cannot be understood, whatever zarr says of it; what is about reaching it passes.

    Raises
    ------
    ResumeError
        A chunk or metadata cannot be decoded, or does not fit the rest.
    """
    try:
        yield
    except TilewiseError:
        raise
    except (ValueError, TypeError, KeyError, RuntimeError, EOFError, FileNotFoundError) as error:
        raise damaged(where, f"{type(error).__name__}: {error}") from error


def damaged(where: str, got: str) -> ResumeError:
    """A ledger that cannot be understood, as an error."""
    return ResumeError(
        "the record of the tiles of the run is damaged",
        got=f"{got[:300]} in {where}",
        do="run again with --overwrite",
    )
