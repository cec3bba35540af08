"""Nodes that lie deeper than the root of a store: a folder of stores, or an archive of one, has no node at its root."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import zarr
import zarr.errors
from zarr.abc.store import Store
from zarr.core.sync import sync

from tilewise import access

_MARKS = ("zarr.json", ".zgroup", ".zarray")
#: Folders that are looked into for nodes.
_LOOKS = 64


def first_on_the_way(store: str, path: str) -> zarr.Array[Any] | zarr.Group | None:
    """The node nearest to the root on the way down to a path; None where there is none."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        found = _open("/".join(parts[:count]), access.zarr_store(store, read_only=True))
        if found is not None:
            return found
    return None


def _open(path: str, store: Store) -> zarr.Array[Any] | zarr.Group | None:
    """The node at a path; what consolidated metadata says of others may be no business of its readers."""
    try:
        return zarr.open_array(store, path=path, mode="r")
    except (FileNotFoundError, zarr.errors.NodeNotFoundError, zarr.errors.NodeTypeValidationError):
        pass
    try:
        return zarr.open_group(store, path=path, mode="r", use_consolidated=False)
    except (FileNotFoundError, zarr.errors.NodeNotFoundError):
        return None


def uppermost(store: str) -> list[str]:
    """Paths of the nodes that lie under no other, sorted; a bounded number of folders is looked into."""
    return sorted(sync(_uppermost(access.zarr_store(store, read_only=True))))


async def _uppermost(store: Store) -> list[str]:
    await store._ensure_open()
    found, folders = [], [""]
    for folder in folders:
        names = [name async for name in _children(store, folder)]
        if folder and any(name in _MARKS for name in names):
            found.append(folder)
        elif len(folders) < _LOOKS:
            folders += [f"{folder}/{name}".lstrip("/") for name in names][: _LOOKS - len(folders)]
    return found


async def _children(store: Store, folder: str) -> AsyncIterator[str]:
    try:
        async for name in store.list_dir(folder):
            if name.strip("/"):
                yield name.strip("/")
    except NotADirectoryError:
        return
