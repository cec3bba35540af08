"""The plan and the run of a job: the Python door."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewise import cf, places
from tilewise.baseline import measure_baseline, remember
from tilewise.clients import Site, reach
from tilewise.cluster import Layout
from tilewise.errors import OutputExistsError, StoreAccessError
from tilewise.folders import Folder
from tilewise.inspection import refuse_unseen, unseen_inputs, unseen_output, unseen_sidecar
from tilewise.job import Job
from tilewise.memory import Workload
from tilewise.outcome import OnProgress, Report, Tally
from tilewise.planning import Plan
from tilewise.records import Ranges
from tilewise.replacing import check_output, refuse_overlap
from tilewise.scratch import describe, spill
from tilewise.sources import Source, find
from tilewise.store import create
from tilewise.surveys import check_job, check_reach, described, known_baseline, plan_of, remote, workload
from tilewise.workers import Workers

if TYPE_CHECKING:
    from tilewise.program import Program

log = logging.getLogger("tilewise")


def run(job: Job, *, overwrite: bool = False, progress: OnProgress | None = None, client: Any = None) -> Report:
    """Run a job from its inputs to its output.

    Everything that can be refused is refused before the output is touched: metadata, coordinates, budget, and the
    kernel itself on one pixel.

    Parameters
    ----------
    overwrite
        Replace an output that exists.
    progress
        Called with an `Event` now and then.
    client
        A distributed Client whose workers are to be used; it is never closed. Where `job.cluster.kind` is "auto",
        the client that dask.compute would use is found by itself.

    Raises
    ------
    ClusterError
        Workers could not be reached, cannot do the job, or were lost.
    OutputExistsError
        The output exists and `overwrite` is false.
    TileError
        A tile failed while running.
    TilewiseError
        The job cannot run; nothing has been written.
    """
    begin = time.perf_counter()
    check_job(job)
    check_output(job.output, job.inputs.values(), overwrite=overwrite)
    _check_sidecar(job)
    work = workload(job, described(job))
    name = uuid.uuid4().hex[:12]
    try:
        with reach(job.cluster, job.device, client, remote(job)) as site:
            check_reach(job, site.layout)
            if any(source.in_memory for source in job.inputs.values()):
                work = workload(job, _streamable(job, job.sidecar_folder.child(SCRATCH + name)))
            first = plan_of(job, work, site.layout, known_baseline(job, site.layout))
            with site.open(name) as workers:
                final = _replanned(job, work, site.layout, first, workers)
                return _stream(_Run(name, job, work, final, site, begin, progress), workers)
    finally:
        _clean(job.sidecar_folder, SCRATCH + name)


def _replanned(job: Job, work: Workload, layout: Layout, first: Plan, workers: Workers) -> Plan:
    """The plan on the baseline of workers that have just been started; others have been measured already."""
    if layout.baseline is not None:
        return first
    urls = remote(job)
    measured: int = workers.call(measure_baseline, urls)
    if layout.kind != "threads":  # this process may hold anything else
        remember(layout.kind, measured, urls)
    if measured > first.memory.baseline:
        return plan_of(job, work, layout, measured)
    return first.with_baseline(measured)


#: Files of a sidecar.
RECORDS = ("job.json", "plan.json", "report.json")
#: What the folder of a run's scratch data begins with; the run's name follows.
SCRATCH = "scratch-"


def _check_sidecar(job: Job) -> None:
    """Refuse a sidecar that would mix with something else: its folder holds records of runs and nothing more."""
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
    others = [name for name in folder.names() if name not in RECORDS and not name.startswith(SCRATCH)]
    if others:
        raise OutputExistsError(
            "the sidecar of the job is a folder that holds something else",
            got=f"{folder} with {others[0]}",
            expected="an empty or new folder, or the sidecar of another run",
            do="set sidecar to one",
        )


def _clean(sidecar: Folder, scratch: str) -> None:
    """Remove the scratch data of a run, and its sidecar where it was refused before anything else was in it."""
    try:
        sidecar.child(scratch).remove()
        sidecar.remove_if_empty()
    except StoreAccessError as error:  # what the run itself raises says more
        log.warning("scratch data may be left in %s: %s", sidecar, error)


def _streamable(job: Job, scratch: Folder) -> dict[str, Source]:
    """Every input as a source of a store; in-memory data is written down first."""
    sources = {}
    for name, source in job.inputs.items():
        if source.in_memory:
            describe(name, source)
            with places.reaching(scratch.place):
                source = spill(name, source, scratch)
        sources[name] = find(name, source)
    return sources


@dataclass(frozen=True)
class _Run:
    """One run: a job that has been planned, and when it began."""

    name: str
    job: Job
    work: Workload
    plan: Plan
    site: Site
    begin: float
    progress: OnProgress | None


def _stream(this: _Run, workers: Workers) -> Report:
    """Try the kernel, write the template, do the tiles."""
    from tilewise.engine import run_program
    from tilewise.preflight import try_kernel
    from tilewise.session import forget

    program = _program(this)
    try:
        arrays = [array for source in this.work.sources.values() for array in source.arrays]
        refuse_unseen("the input", workers.everywhere(unseen_inputs, arrays))
        workers.call(try_kernel, program.ticket())
        _write_sidecar(this.job, {"job": this.job.to_dict(), "plan": {"run": program.run, **this.plan.to_dict()}})
        if this.job.sidecar is None:  # beside the output, which is still as it was
            seen = workers.everywhere(unseen_sidecar, places.absolute(this.job.sidecar_folder.place), program.run)
            refuse_unseen("the sidecar beside the output,", seen)
        attrs = cf.provenance(this.job.to_dict(), program.run)
        create(this.job.output, this.work.targets, list(this.work.sources.values()), attrs)
        store = this.work.targets[0].array.store
        refuse_unseen("the output", workers.everywhere(unseen_output, store, program.run))
        tally = Tally(this.plan, this.job.output.store, this.begin, this.progress)
        tally.tell()
        run_program(program, workers, _blocks(this.plan), tally.add, lambda: True)
    finally:
        forget(program.run)
    report = tally.report(this.site.warnings)
    _write_sidecar(this.job, {"report": report.to_dict()})
    return report


def _program(this: _Run) -> Program:
    from tilewise.program import Program

    memory, layout = this.plan.memory, this.site.layout
    return Program(
        run=this.name,
        kernel=this.job.kernel,
        signature=this.work.signature,
        sources=this.work.sources,
        targets=this.work.targets,
        grid=this.plan.grid,
        panel=this.plan.panel,
        device=layout.device,
        hosted=True,
        retries=this.job.retries,
        skip=this.job.on_error == "skip",
        device_bytes=memory.shared + memory.slots * memory.per_slot if layout.device == "cuda" else 0,
    )


def _blocks(plan: Plan) -> Iterator[Ranges]:
    """Every tile of a plan, block by block."""
    return (((first, min(first + plan.block, plan.tiles)),) for first in range(0, plan.tiles, plan.block))


def _write_sidecar(job: Job, documents: Mapping[str, Any]) -> None:
    for name, document in documents.items():
        job.sidecar_folder.write_text(f"{name}.json", cf.to_json(document) + "\n")
