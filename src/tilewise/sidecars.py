"""The sidecar of a job: which records lie in it, and what earlier runs have left there and beside."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewise import cf, places
from tilewise.errors import OutputExistsError
from tilewise.failures import FAILURES
from tilewise.folders import Folder, is_partial, remove_partials
from tilewise.job import Job
from tilewise.ledger import LEDGER
from tilewise.locking import Lock, hold, is_lock_file
from tilewise.replacing import REMOVED, refuse_overlap, sweep
from tilewise.runfile import RUN_FILE

log = logging.getLogger("tilewise")

#: Files and folders of a sidecar.
RECORDS = ("job.json", "plan.json", "report.json", RUN_FILE, FAILURES, LEDGER)
#: What the folder of a run's scratch data begins with; the run's name follows.
SCRATCH = "scratch-"


def check_sidecar(job: Job) -> None:
    """Refuse a sidecar that would mix with something else: its folder holds records of runs and nothing more.

    Raises
    ------
    OutputExistsError
        It is an input or the output, or lies inside one or around one; or it holds something else.
    """
    folder = job.sidecar_folder
    refuse_overlap("sidecar", folder.place, job.inputs.values())
    if places.overlap(folder.place, job.output.store):
        raise OutputExistsError(
            "sidecar and output.store are the same place, or one lies inside the other",
            got=f"{folder}, {job.output.store}",
            do="set sidecar to another place",
        )
    if folder.is_file():
        raise OutputExistsError(
            "the sidecar of the job is to be a folder, and a file is there", got=folder, do="set sidecar"
        )
    others = [name for name in folder.names() if not _is_record(name)]
    if others:
        raise OutputExistsError(
            "the sidecar of the job is a folder that holds something else",
            got=f"{folder} with {others[0]}",
            expected="an empty or new folder, or the sidecar of another run",
            do="set sidecar to one",
        )


def _is_record(name: str) -> bool:
    # What begins with a dot is left by file managers and network file systems.
    return name in RECORDS or name.startswith((SCRATCH, REMOVED, ".")) or is_lock_file(name) or is_partial(name)


def scratch_of(job: Job, run: str) -> Folder:
    """Where a run keeps its scratch data."""
    return job.sidecar_folder.child(SCRATCH + run)


def remove_scratch(job: Job) -> None:
    """Remove scratch data of runs and probes that were killed: whoever holds the lock is alone."""
    sidecar = job.sidecar_folder
    for name in sidecar.names():
        if name.startswith(SCRATCH):
            sidecar.child(name).remove()


def tidy(job: Job) -> None:
    """Remove what runs that were killed have left, as `remove_scratch` does, and what they were writing."""
    remove_scratch(job)
    sidecar = job.sidecar_folder
    sweep(sidecar)
    remove_partials(sidecar)
    remove_partials(Folder(job.output.store))


@contextmanager
def locked(job: Job, run: str, *, force: bool) -> Iterator[tuple[Lock, Lock]]:
    """Hold the lock of an output, which tiles ask, and that of the records, which are one and the same beside it.

    Raises
    ------
    LockedError
        Another run is at work on the output, or keeps its records there.
    StoreAccessError, StoreFullError
        A lock cannot be written.
    """
    output = places.absolute(job.output.store)
    with hold(job.locked_folder, run, output=output, force=force) as first:
        if places.identity(job.sidecar_folder.place) == places.identity(job.locked_folder.place):
            yield first, first
            return
        with hold(job.sidecar_folder, run, output=output, force=force) as second:
            yield first, second


def write_records(job: Job, documents: Mapping[str, Any]) -> None:
    """Write documents as JSON, by name."""
    for name, document in documents.items():
        job.sidecar_folder.write_text(f"{name}.json", cf.to_json(document) + "\n")


def clean(job: Job, run: str) -> None:
    """Remove the scratch data of a run, and its sidecar where it was refused before anything else was in it."""
    sidecar = job.sidecar_folder
    try:
        scratch_of(job, run).remove()
        sidecar.remove_if_empty()
    except OSError as error:  # what the run itself raises says more
        log.warning("scratch data may be left in %s: %s", sidecar, error)
