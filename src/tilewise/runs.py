"""The run of a job, from its inputs to its output: the Python door."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewise import access
from tilewise.baseline import measure_baseline, remember
from tilewise.clients import reach
from tilewise.cluster import Layout
from tilewise.errors import ParameterError
from tilewise.folders import Folder
from tilewise.job import Job
from tilewise.limits import Probe
from tilewise.locking import PROBE
from tilewise.memory import Workload
from tilewise.outcome import OnProgress, Report, Tally
from tilewise.plans import Plan
from tilewise.replacing import check_output
from tilewise.resuming import Earlier, check_device, earlier_runs, last_plan, last_record
from tilewise.scratch import describe, spill
from tilewise.sidecars import check_sidecar, clean, locked, remove_scratch, scratch_of, tidy, write_records
from tilewise.sources import Source, find
from tilewise.streaming import Run, Stream
from tilewise.surveys import (
    bytes_for_processes,
    check_job,
    check_reach,
    described,
    known_baseline,
    plan_of,
    remote,
    workload,
)
from tilewise.workers import Workers


def run(
    job: Job,
    *,
    overwrite: bool = False,
    resume: bool = False,
    force_unlock: bool = False,
    redo: Iterable[int] = (),
    progress: OnProgress | None = None,
    client: Any = None,
    hurry: Callable[[int], None] | None = None,
) -> Report:
    """Run a job from its inputs to its output.

    Everything that can be refused is refused before the output is touched: metadata, coordinates, budget, and the
    kernel itself on one pixel. A run that stops, for whatever reason, can be resumed: what is done is recorded beside
    the output. SIGINT and SIGTERM stop it when what is in work is done.

    Parameters
    ----------
    overwrite
        Replace an output that exists.
    resume
        Go on with the run of this job that was stopped, with its tile and panel, so that the output has the bits of
        a run that was not; where there is none, begin. One that is finished is left as it is.
    force_unlock
        Take the output over from a run that may be at work elsewhere: only where it is known to be dead.
    redo
        Numbers of tiles to do once more although they are done; needs `resume`.
    progress
        Called with an `Event` now and then.
    client
        A distributed Client whose workers are to be used; it is never closed. Where `job.cluster.kind` is "auto",
        the client that dask.compute would use is found by itself.
    hurry
        Called with the number of a second signal; unless given, that goes to the handler that was there before.

    Raises
    ------
    ClusterError
        Workers could not be reached, cannot do the job, or were lost.
    OutputExistsError
        The output exists, and neither `overwrite` nor `resume` is given.
    ResumeError
        The job differs from the run that is to be resumed, or that cannot be.
    LockedError
        Another run is at work on the output, or has taken it over.
    TileError
        A tile failed while running, and the job does not skip such.
    StoreFullError
        No space is left for the output; the run can be resumed.
    TilewiseError
        The job cannot run; nothing has been written.
    """
    begin = time.perf_counter()
    check_job(job)
    numbers = tuple(redo)
    _check_redo(numbers, resume=resume)
    _check_places(job, overwrite=overwrite, resume=resume)
    work = workload(job, described(job))
    name = uuid.uuid4().hex[:12]
    try:
        with locked(job, name, force=force_unlock) as (lease, lock):
            # Somebody else may have been at work until now.
            _check_places(job, overwrite=overwrite, resume=resume)
            tidy(job)
            earlier = earlier_runs(job, work, numbers, lock) if resume else None
            if earlier is not None and earlier.is_complete:
                plan = last_plan(job, work)
                if plan is not None:
                    return _finished(job, Tally(plan, job.output.store, begin, progress, earlier.totals), earlier)
            return _do(Run(name, job, work, lease.lease, lock, earlier, begin, progress, hurry), client)
    finally:
        clean(job, name)


def _finished(job: Job, tally: Tally, earlier: Earlier) -> Report:
    """What is to be said of a run that was complete; the last run may have had no time to."""
    report = tally.report()
    if "report.json" not in job.sidecar_folder.names():
        write_records(job, {"report": report.to_dict()})
    if earlier.record.stage != "finished":
        earlier.record.at("finished").save(job.sidecar_folder)
    return report


def _check_redo(redo: tuple[int, ...], *, resume: bool) -> None:
    if redo and not resume:
        raise ParameterError("redo is given, and resume is not", got=f"{len(redo)} tiles", do="give resume=True too")


def _check_places(job: Job, *, overwrite: bool, resume: bool) -> None:
    record = last_record(job.sidecar_folder, job.output.store)
    check_output(job.output, job.inputs.values(), overwrite=overwrite, resume=resume, record=record)
    check_sidecar(job)


def probe(job: Job, *, client: Any = None) -> tuple[Plan, Probe]:
    """Do a few tiles of a job on one worker, to tell how long the whole takes; the output is not touched.

    What they write goes to a scratch store in the sidecar, which is removed again. `client` is as in `run`.

    Returns
    -------
    tuple
        The plan, and the probe: `probe.eta(plan)` seconds for the tiles, `probe.limit(plan)` to read and write once.

    Raises
    ------
    LockedError
        A run is at work on the output.
    TileError
        A tile failed.
    TilewiseError
        The job cannot run.
    """
    begin = time.perf_counter()
    check_job(job)
    check_sidecar(job)
    work = workload(job, described(job))
    name = PROBE + uuid.uuid4().hex[:12]
    try:
        with locked(job, name, force=False) as (lease, lock):
            remove_scratch(job)
            this = Run(name, job, work, lease.lease, lock, None, begin, None, None)
            with _opened(this, client) as stream:
                return stream.probe()
    finally:
        clean(job, name)


def _do(this: Run, client: Any) -> Report:
    with _opened(this, client) as stream:
        return stream.do()


@contextmanager
def _opened(this: Run, client: Any) -> Iterator[Stream]:
    """Reach the workers, and make the plan."""
    job, kept = this.job, this.earlier.kept if this.earlier else None
    with reach(job.cluster, job.device, client, remote(job), bytes_for_processes(job, this.work)) as site:
        check_reach(job, site.layout)
        if this.earlier:
            check_device(this.earlier, site.layout.device)
        read = _readable(this)
        first = plan_of(job, read, site.layout, known_baseline(job, site.layout), kept)
        with site.open(this.name) as workers:
            plan = _replanned(this, read, site.layout, first, workers)
            yield Stream(this, read, plan, site, workers)


def _readable(this: Run) -> Workload:
    """The workload on stores alone: in-memory data is written down first."""
    if not any(source.in_memory for source in this.job.inputs.values()):
        return this.work
    scratch = scratch_of(this.job, this.name)
    return workload(this.job, {n: _written(n, s, scratch) for n, s in this.job.inputs.items()})


def _written(name: str, source: Any, scratch: Folder) -> Source:
    if source.in_memory:
        describe(name, source)
        with access.reaching(scratch.place):
            source = spill(name, source, scratch)
    return find(name, source)


def _replanned(this: Run, work: Workload, layout: Layout, first: Plan, workers: Workers) -> Plan:
    """The plan on the baseline of workers that have just been started; others have been measured already."""
    if layout.baseline is not None:
        return first
    urls = remote(this.job)
    measured: int = workers.call(measure_baseline, urls, this.name)
    if layout.kind != "threads":  # this process may hold anything else
        remember(layout.kind, measured, urls)
    if measured > first.memory.baseline:
        return plan_of(this.job, work, layout, measured, this.earlier.kept if this.earlier else None)
    return first.with_baseline(measured)
