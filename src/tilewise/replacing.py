"""What an output may replace, where it may not lie at all, and how what was there goes.

What goes is never seen half: it leaves in one rename, or, where that cannot be, its metadata goes first, under a mark
that says which run removes it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tilewise import places
from tilewise.errors import OutputExistsError, ParameterError, ResumeError
from tilewise.folders import Folder, is_partial
from tilewise.outputs import Output
from tilewise.runfile import RunRecord
from tilewise.sources import Input

#: What the folder of a sidecar begins with to which an old output goes; the run that replaces it follows.
REMOVED = "removed-"
#: File within an output that is removed piece by piece: it names the run that does.
_GOING = "tilewise-removing.json"


def check_output(
    output: Output,
    inputs: Iterable[Input],
    *,
    overwrite: bool,
    resume: bool = False,
    record: RunRecord | None = None,
) -> None:
    """Refuse to write over an input, or over anything at all unless asked to; or to resume what is not there.

    What a run was still creating when it was killed may be replaced without a word.

    Parameters
    ----------
    overwrite
        Whether a Zarr store that is there may be replaced.
    resume
        Whether an earlier run on the same output is to be gone on with; where there is neither, one may begin.
    record
        What the sidecar says of the last run.

    Raises
    ------
    OutputExistsError
        The output is an input, lies inside one or around one, exists, or is no Zarr store.
    ParameterError
        `overwrite` and `resume` contradict each other.
    ResumeError
        There is no run to resume, or its output is not there any more.
    StoreAccessError
        Its remote place cannot be reached.
    """
    if overwrite and resume:
        raise ParameterError(
            "a run cannot both replace the output and go on with it",
            got="overwrite and resume",
            do="keep --resume to go on, or --overwrite to start again",
        )
    refuse_overlap("output.store", output.store, inputs)
    folder = Folder(output.store)
    if folder.path is not None:
        _check_permission(folder.path)
    if record is not None and not overwrite and not resume:
        _check_unfinished(output, record)
    if record is not None and record.is_creating(output.store) and _is_half_made(folder, record):
        return
    if resume and (record is not None or folder.exists()):
        _check_resume(folder, record)
    elif folder.exists():
        _check_replaceable(folder, overwrite, record)


def _check_unfinished(output: Output, record: RunRecord) -> None:
    """Refuse to forget what an unfinished run on another output has done."""
    if not record.is_for(output.store) and record.stage != "finished":
        raise OutputExistsError(
            "the sidecar holds the records of an unfinished run on another output",
            got=record.output,
            expected=places.absolute(output.store),
            do="set sidecar to another place, or pass --overwrite (in Python: overwrite=True) to forget that run",
        )


def _check_replaceable(folder: Folder, overwrite: bool, record: RunRecord | None) -> None:
    if not overwrite:
        unfinished = record is not None and record.stage != "finished" and made_by(folder, record)
        go_on = "pass --resume (in Python: resume=True) to go on with it, " if unfinished else ""
        raise OutputExistsError(
            f"{folder} already exists",
            do=f"{go_on}choose another output.store, or pass --overwrite (in Python: overwrite=True)",
        )
    if not _is_store(folder):
        raise OutputExistsError(
            f"{folder} exists and is no Zarr store, or holds other files, so it is not overwritten",
            do="choose another output.store",
        )


def _check_resume(folder: Folder, record: RunRecord | None) -> None:
    again = "leave --resume out, with --overwrite where an output is to be replaced"
    if record is None:
        raise ResumeError(
            f"there is no run of {folder} to resume",
            got="no record of one in the sidecar",
            do=f"{again}, or mend sidecar",
        )
    if record.is_creating(folder.place):
        raise ResumeError(
            f"the run of {folder} ended before it replaced what was there", got=f"run {record.run}", do=again
        )
    if not record.is_resumable(folder.place):
        raise ResumeError(
            "the sidecar is that of another output",
            got=record.output,
            expected=places.absolute(folder.place),
            do=f"move it back there if it was moved, mend output.store or sidecar, or {again}",
        )
    if not made_by(folder, record):
        raise ResumeError(
            f"{folder} is not the output that the run has made",
            got=f"run {_run_of(folder)}" if _run_of(folder) else "none, or one of something else",
            expected=" or ".join(f"run {run}" for run in record.runs[:1]),
            do=again,
        )


def _is_half_made(folder: Folder, record: RunRecord) -> bool:
    """Whether what is there, or nothing, is all of that run's making: a template, or what it has not yet removed."""
    names = [name for name in folder.names() if not is_partial(name)]
    if folder.is_file():
        return False
    if any(name in _MARKS for name in names):
        return made_by(folder, record)
    return not names or _run_that_removes(folder) in record.runs


def made_by(folder: Folder, record: RunRecord) -> bool:
    """Whether the output that is there is one of the runs of a record."""
    return _run_of(folder) in record.runs


def untouched(folder: Folder, record: RunRecord) -> RunRecord:
    """The record of what is there: a run that was killed before it replaced an output has changed nothing of it."""
    before = record.before
    if before is None or record.stage != "creating" or not before.is_resumable(folder.place):
        return record
    return before if made_by(folder, before) and not _run_that_removes(folder) else record


def _run_of(folder: Folder) -> str:
    """The run that has made a store, by the attributes of its root; "" where none has."""
    try:
        found = json.loads(folder.read_text("zarr.json") or "{}")
        return str(found.get("attributes", {}).get("tilewise", {}).get("run", ""))
    except (ValueError, AttributeError):  # it is of something else
        return ""


def _run_that_removes(folder: Folder) -> str:
    try:
        return str(json.loads(folder.read_text(_GOING) or "{}").get("run", ""))
    except (ValueError, AttributeError):
        return ""


def clear(folder: Folder, sidecar: Folder, run: str) -> None:
    """Take away what is at the place of an output, so that it is never seen half; nothing where there is nothing.

    A local folder goes into the sidecar in one rename and is removed there; `sweep` removes what a kill leaves of it.
    Behind a URL, and where the sidecar is on another file system, it is removed where it lies, its metadata first.

    Raises
    ------
    StoreAccessError
        It may not be removed, or cannot be reached.
    """
    if not folder.exists():
        return
    if folder.path is None or sidecar.path is None or not _moved(folder.path, sidecar.path / (REMOVED + run)):
        _remove_in_place(folder, run)
    sweep(sidecar)


def _moved(path: Path, to: Path) -> bool:
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EBUSY, errno.EACCES, errno.EPERM, errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _remove_in_place(folder: Folder, run: str) -> None:
    folder.write_text(_GOING, json.dumps({"run": run}) + "\n")
    names = folder.names()
    for name in (n for n in _METADATA if n in names):
        folder.remove_text(name)
    for name in (n for n in names if n not in (*_METADATA, _GOING)):
        child = folder.child(name)
        # Behind a URL a name may be a file, a folder, or both.
        if not child.is_file() and not (child.path and child.path.is_symlink()):
            child.remove()
        folder.remove_text(name)
    folder.remove_text(_GOING)
    folder.remove_if_empty()


def sweep(sidecar: Folder) -> None:
    """Remove what is left in a sidecar of outputs that were replaced."""
    for name in sidecar.names():
        if name.startswith(REMOVED):
            sidecar.child(name).remove()


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
    if not names or _GOING in names:
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
    return all(n in _METADATA or is_partial(n) or _is_node(folder.child(n)) for n in names)


def _is_node(folder: Folder) -> bool:
    return any(folder.read_text(mark) is not None for mark in _MARKS)
