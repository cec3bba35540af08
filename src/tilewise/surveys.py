"""What is known of a job before it runs: its workers, its inputs and outputs, its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewise import machine, places
from tilewise.baseline import baseline
from tilewise.clients import reach
from tilewise.cluster import Layout
from tilewise.coordinates import check_coordinates
from tilewise.errors import DimensionError, ParameterError, UnsupportedStoreError
from tilewise.fields import OutputSpec
from tilewise.job import Job
from tilewise.kernels.declaration import checked_signature
from tilewise.memory import Workload
from tilewise.outputs import compressors, lay_out
from tilewise.planning import make_plan
from tilewise.plans import Kept, Plan
from tilewise.scratch import describe
from tilewise.sources import Source, find


@dataclass(frozen=True)
class Survey:
    """What is known of a job before it runs: its workers, its inputs and outputs as they are laid out, its plan."""

    layout: Layout
    work: Workload
    plan: Plan


def survey(job: Job, *, client: Any = None) -> Survey:
    """Workers, inputs, outputs and plan of a job; no data is read and nothing is written.

    `client` is a distributed Client whose workers are to be used, as in `run`.

    Raises
    ------
    TilewiseError
        The job cannot run; the message says what, got, expected and what to do.
    """
    check_job(job)
    work = workload(job, described(job))
    with reach(job.cluster, job.device, client, remote(job), bytes_for_processes(job, work)) as site:
        check_reach(job, site.layout)
        return Survey(site.layout, work, plan_of(job, work, site.layout, known_baseline(job, site.layout)))


def plan(job: Job, *, client: Any = None) -> Plan:
    """Tile grid, bytes and peak memory of a job; no data is read and nothing is written.

    `client` is a distributed Client whose workers are to be used, as in `run`: it is asked for them.

    Raises
    ------
    TilewiseError
        The job cannot run; the message says what, got, expected and what to do.
    """
    return survey(job, client=client).plan


def check_job(job: object) -> None:
    """Refuse what is no job."""
    if not isinstance(job, Job):
        raise ParameterError(
            "what is to be done is not a job",
            got=type(job).__name__,
            expected="a tilewise.Job",
            do="build one with tilewise.Job(...), or with tilewise.config.load(...) from a job file",
        )


def described(job: Job) -> dict[str, Source]:
    """Every input by its metadata; what is in memory as it would be written down."""
    return {n: describe(n, s) if s.in_memory else find(n, s) for n, s in job.inputs.items()}


def known_baseline(job: Job, layout: Layout) -> int:
    """Bytes that a worker needs to begin with, as far as is known before one has been started."""
    return baseline(layout.kind, remote(job)) if layout.baseline is None else layout.baseline


def workload(job: Job, sources: Mapping[str, Source]) -> Workload:
    """The job once its metadata has been found to fit together."""
    signature = checked_signature(job.kernel, {name: source.spec for name, source in sources.items()})
    check_coordinates({name: source.coordinates.values() for name, source in sources.items()})
    signature = signature.with_output_dtype(job.output.dtype)
    compressors(job.output.codec)
    ordered = {name: sources[name] for name in signature.fields}
    targets = lay_out(job.output, signature.outputs, ordered.values(), signature.tile_dims)
    _check_names(signature.outputs, ordered.values())
    return Workload(job.kernel, signature, ordered, targets)


def _check_names(outputs: Iterable[OutputSpec], sources: Iterable[Source]) -> None:
    """Refuse a coordinate that would be written under the name of an output."""
    names = {spec.name for spec in outputs}
    for source in sources:
        for name in {*source.coordinates, *source.spec.dims} & names:
            raise DimensionError(
                f"a dimension or coordinate of input {source.spec.name!r} has the name of the output {name!r}",
                do=f"give it another name, with inputs.{source.spec.name}.dims or in the store",
            )


def plan_of(job: Job, work: Workload, layout: Layout, base: int, kept: Kept | None = None) -> Plan:
    """The plan of a job on workers that need `base` bytes to begin with; `kept` is the geometry of an earlier run."""
    limit = memory_limit(job, layout)
    tile = None if isinstance(job.tile, str) else job.tile
    return make_plan(
        work,
        baseline=base,
        memory_limit=limit,
        processes=layout.processes,
        slots=layout.slots,
        read_ahead=0 if isinstance(job.read_ahead, str) else job.read_ahead,
        settled=layout.kind in ("processes", "local"),
        tile=tile,
        kept=kept,
        ceiling=layout.ceiling,
    )


def memory_limit(job: Job, layout: Layout) -> int:
    """Budget of one worker process, in bytes."""
    if job.memory_limit is not None:
        return machine.parse_bytes(job.memory_limit, "memory_limit")
    if layout.room is not None:
        return layout.room
    return int(machine.available_memory() * machine.DEFAULT_SHARE) // layout.processes


def remote(job: Job) -> tuple[str, ...]:
    """URLs that the job reads from and writes to, and files that xarray opens: one for each way to open them."""
    stores = [source.store for source in job.inputs.values() if not source.in_memory] + [job.output.store]
    return tuple({places.opener(store): store for store in stores if places.needs_more(store)}.values())


def bytes_for_processes(job: Job, work: Workload) -> int:
    """Bytes that the job reads and writes, as far as processes of its own can: none of a job with a place in memory."""
    return 0 if _places_in_memory(job) else work.streamed_bytes + work.write_bytes


def _places_in_memory(job: Job) -> list[str]:
    stores = [str(source.store) for source in job.inputs.values() if not source.in_memory]
    stores += [job.output.store, job.sidecar_folder.place]
    return [store for store in stores if "memory" in places.protocols(store)]


def check_reach(job: Job, layout: Layout) -> None:
    """Refuse places that other processes cannot see."""
    for store in _places_in_memory(job):
        if layout.kind != "threads":
            raise UnsupportedStoreError(
                "memory:// lies within one process, and the workers are others",
                got=f"{store}, cluster.kind {layout.kind}",
                do="set cluster.kind to threads, or choose another place",
            )
