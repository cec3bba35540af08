"""What an output may replace, and where it may not lie at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from tilewise import places
from tilewise.errors import OutputExistsError, UnsupportedStoreError
from tilewise.folders import Folder
from tilewise.outputs import Output
from tilewise.sources import Input


def check_output(output: Output, inputs: Iterable[Input], *, overwrite: bool) -> None:
    """Refuse to write over an input, or over anything at all unless asked to.

    Raises
    ------
    OutputExistsError
        The output is an input, lies inside one or around one, exists, or is no Zarr store.
    StoreAccessError
        Its remote place cannot be reached.
    """
    if not output.store:
        raise UnsupportedStoreError("output.store is empty", expected="a path", do="name a folder to write to")
    refuse_overlap("output.store", output.store, inputs)
    folder = Folder(output.store)
    if folder.path is not None:
        _check_permission(folder.path)
    if not folder.exists():
        return
    if not overwrite:
        raise OutputExistsError(
            f"{output.store} already exists",
            do="choose another output.store, or pass --overwrite (in Python: overwrite=True)",
        )
    if not _is_store(folder):
        raise OutputExistsError(
            f"{output.store} exists and is no Zarr store, or holds other files, so it is not overwritten",
            do="choose another output.store",
        )


def _check_permission(path: Path) -> None:
    parent = next(folder for folder in path.resolve().parents if folder.exists())
    if not os.access(parent, os.W_OK) or path.is_symlink():
        raise OutputExistsError(
            f"{path} cannot be written",
            got=f"{parent}",
            expected="a folder to write in, and no link",
            do="choose another output.store",
        )


def refuse_overlap(key: str, store: str, inputs: Iterable[Input]) -> None:
    """Refuse a folder, set by a key of the job, that is an input, or lies inside one or around one."""
    for source in inputs:
        if isinstance(source.store, str) and places.overlap(store, source.store):
            raise OutputExistsError(
                f"{key} and an input are the same store, or one lies inside the other",
                got=f"{store}, input {source.store}",
                do=f"set {key} to another place",
            )


_MARKS = ("zarr.json", ".zgroup", ".zarray")
_METADATA = (*_MARKS, ".zattrs", ".zmetadata")


def _is_store(folder: Folder) -> bool:
    """Whether a folder is empty, or a Zarr store with nothing beside it."""
    if folder.is_file():
        return False
    names = folder.names()
    if not names:
        return True
    mark = next((name for name in _MARKS if name in names), None)
    if mark is None:
        return False
    try:
        found = json.loads(folder.read_text(mark) or "")
    except ValueError:
        return False
    if not isinstance(found, dict) or "zarr_format" not in found:
        return False
    if mark == ".zarray" or found.get("node_type") == "array":
        return True
    return all(n in _METADATA or _is_node(folder.child(n)) for n in names)


def _is_node(folder: Folder) -> bool:
    return any(folder.read_text(mark) is not None for mark in _MARKS)
