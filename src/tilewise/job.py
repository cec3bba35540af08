"""A job, its plan and its run: the Python door."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilewise import cf, machine
from tilewise.baseline import baseline, measure_baseline, remember
from tilewise.clients import Site, reach
from tilewise.cluster import Cluster, Device, Layout
from tilewise.coordinates import check_coordinates
from tilewise.errors import DimensionError, OutputExistsError, ParameterError
from tilewise.fields import OutputSpec
from tilewise.inspection import refuse_unseen, unseen_inputs, unseen_output
from tilewise.kernels import Kernel
from tilewise.kernels.base import checked_signature
from tilewise.memory import Workload
from tilewise.outcome import OnProgress, Report, Tally
from tilewise.outputs import Output, check_output, compressors, lay_out, refuse_overlap
from tilewise.planning import Plan, make_plan
from tilewise.scratch import describe, spill, without_data
from tilewise.sources import Input, Source, find
from tilewise.store import create
from tilewise.workers import Workers

if TYPE_CHECKING:
    from tilewise.program import Program

log = logging.getLogger("tilewise")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Kernel, inputs, output and budget: everything that a run needs to know.

    Attributes
    ----------
    kernel
        What to compute.
    inputs
        An `Input` by name; a path, a numpy or an xarray object stands for `Input(store=...)`.
    output
        An `Output`, or a path that stands for `Output(store=...)`.
    memory_limit
        Budget of one worker process, in bytes or as text such as "2 GiB"; 60 % of the available memory over the
        worker processes unless given.
    tile
        "auto", or cells by tile dimension; dimensions left out are negotiated.
    cluster
        Which workers do the tiles.
    device
        "cpu", "cuda", or "auto" (CUDA where there is one).
    sidecar
        Folder of the job's records and scratch data; beside the output unless given.
    """

    kernel: Kernel
    inputs: Mapping[str, Input]
    output: Output
    memory_limit: int | str | None = None
    tile: Literal["auto"] | Mapping[str, int] = "auto"
    cluster: Cluster = field(default_factory=Cluster)
    device: Device = "cpu"
    sidecar: str | None = None

    def __post_init__(self) -> None:
        """Short forms become `Input` and `Output`; values that cannot be are refused."""
        if not isinstance(self.kernel, Kernel):
            raise ParameterError(
                "the kernel of a job is not one",
                got=type(self.kernel).__name__,
                expected="a kernel such as tilewise.Norm(dim=...)",
                do="mend kernel",
            )
        inputs = {n: v if isinstance(v, Input) else Input(store=v) for n, v in self.inputs.items()}
        object.__setattr__(self, "inputs", inputs)
        if not isinstance(self.output, Output):
            object.__setattr__(self, "output", Output(store=self.output))
        if self.memory_limit is not None:
            machine.parse_bytes(self.memory_limit, "memory_limit")
        if isinstance(self.tile, str) and self.tile != "auto":
            raise ParameterError(
                "tile is neither auto nor sizes",
                got=repr(self.tile),
                expected="auto, or cells by dimension",
                do="mend tile",
            )

    @property
    def sidecar_path(self) -> Path:
        """Folder of the job's records and scratch data."""
        return Path(self.sidecar or self.output.store.rstrip("/") + ".tilewise")

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON data, as a job file would say it; in-memory inputs are named, not stored."""
        found = {
            "kernel": kernel_dict(self.kernel),
            "inputs": {name: _plain(without_data(source)) for name, source in self.inputs.items()},
            "output": _plain(self.output),
            "memory_limit": self.memory_limit,
            "tile": self.tile if isinstance(self.tile, str) else dict(self.tile),
            "cluster": _plain(self.cluster),
            "device": self.device,
            "sidecar": self.sidecar,
        }
        return {key: value for key, value in found.items() if value is not None}


def kernel_dict(kernel: Kernel) -> dict[str, Any]:
    """A kernel as a job file would say it: its name and its parameters."""
    cls = type(kernel)
    name = kernel.name if "name" in vars(cls) and kernel.name in Kernel.registered() else None
    if name is None or not cls.__module__.startswith("tilewise."):
        name = f"{cls.__module__}:{cls.__qualname__}"
    assert is_dataclass(kernel)
    return {"name": name, **{f.name: _jsonable(getattr(kernel, f.name)) for f in fields(kernel) if f.init}}


def _plain(value: Any) -> dict[str, Any]:
    """Fields as JSON data; what is None, or a mapping left as empty as it is by default, is left out."""
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    empty = {f.name for f in fields(value) if f.default_factory is dict and not found[f.name]}
    return {name: _jsonable(item) for name, item in found.items() if item is not None and name not in empty}


def _jsonable(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, (tuple, list)) else value


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
    work = _workload(job, _described(job))
    with reach(job.cluster, job.device, client) as site:
        return Survey(site.layout, work, _plan(job, work, site.layout, _baseline(site.layout)))


def plan(job: Job, *, client: Any = None) -> Plan:
    """Tile grid, bytes and peak memory of a job; no data is read and nothing is written.

    `client` is a distributed Client whose workers are to be used, as in `run`: it is asked for them.

    Raises
    ------
    TilewiseError
        The job cannot run; the message says what, got, expected and what to do.
    """
    return survey(job, client=client).plan


def _described(job: Job) -> dict[str, Source]:
    """Every input by its metadata; what is in memory as it would be written down."""
    return {n: describe(n, s) if s.in_memory else find(n, s) for n, s in job.inputs.items()}


def _baseline(layout: Layout) -> int:
    return baseline(layout.kind) if layout.baseline is None else layout.baseline


def _workload(job: Job, sources: Mapping[str, Source]) -> Workload:
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


def _plan(job: Job, work: Workload, layout: Layout, base: int) -> Plan:
    limit = memory_limit(job, layout)
    tile = None if isinstance(job.tile, str) else job.tile
    return make_plan(
        work,
        baseline=base,
        memory_limit=limit,
        processes=layout.processes,
        slots=layout.slots,
        tile=tile,
        ceiling=layout.ceiling,
    )


def memory_limit(job: Job, layout: Layout) -> int:
    """Budget of one worker process, in bytes."""
    if job.memory_limit is not None:
        return machine.parse_bytes(job.memory_limit, "memory_limit")
    if layout.room is not None:
        return layout.room
    return int(machine.available_memory() * machine.DEFAULT_SHARE) // layout.processes


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
    check_output(job.output, job.inputs.values(), overwrite=overwrite)
    _check_sidecar(job)
    work = _workload(job, _described(job))
    name = uuid.uuid4().hex[:12]
    try:
        with reach(job.cluster, job.device, client) as site:
            if any(source.in_memory for source in job.inputs.values()):
                work = _workload(job, _streamable(job, job.sidecar_path / "scratch"))
            first = _plan(job, work, site.layout, _baseline(site.layout))
            with site.open(name) as workers:
                final = _replanned(job, work, site.layout, first, workers)
                return _stream(_Run(name, job, work, final, site, begin, progress), workers)
    finally:
        _clean(job.sidecar_path)


def _replanned(job: Job, work: Workload, layout: Layout, first: Plan, workers: Workers) -> Plan:
    """The plan on the baseline of workers that have just been started; others have been measured already."""
    if layout.baseline is not None:
        return first
    measured: int = workers.call(measure_baseline)
    if layout.kind != "threads":  # this process may hold anything else
        remember(layout.kind, measured)
    if measured > first.memory.baseline:
        return _plan(job, work, layout, measured)
    return first.with_baseline(measured)


def _check_sidecar(job: Job) -> None:
    refuse_overlap("the sidecar", str(job.sidecar_path), job.inputs.values())
    if job.sidecar_path.exists() and not job.sidecar_path.is_dir():
        raise OutputExistsError(
            "the sidecar of the job is to be a folder, and a file is there", got=job.sidecar_path, do="set sidecar"
        )


def _clean(sidecar: Path) -> None:
    """Remove the scratch data of a run, and its sidecar where it was refused before anything else was in it."""
    if (sidecar / "scratch").exists():
        shutil.rmtree(sidecar / "scratch")
    if sidecar.exists() and not any(sidecar.iterdir()):
        sidecar.rmdir()


def _streamable(job: Job, scratch: Path) -> dict[str, Source]:
    """Every input as a source of a store; in-memory data is written down first."""
    sources = {}
    for name, source in job.inputs.items():
        if source.in_memory:
            describe(name, source)
            scratch.mkdir(parents=True, exist_ok=True)
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
        _write_sidecar(this.job, {"job": this.job.to_dict(), "plan": this.plan.to_dict()})
        attrs = cf.provenance(this.job.to_dict(), program.run)
        create(this.job.output, this.work.targets, list(this.work.sources.values()), attrs)
        store = this.work.targets[0].array.store
        refuse_unseen("the output", workers.everywhere(unseen_output, store, program.run))
        tally = Tally(this.plan, this.job.output.store, this.begin, this.progress)
        tally.tell()
        run_program(program, workers, tally.add)
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
        block=this.plan.block,
        panel=this.plan.panel,
        device=layout.device,
        hosted=True,
        device_bytes=memory.shared + memory.slots * memory.per_slot if layout.device == "cuda" else 0,
    )


def _write_sidecar(job: Job, documents: Mapping[str, Any]) -> None:
    folder = job.sidecar_path
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        part = folder / f"{name}.json.part"
        part.write_text(cf.to_json(document) + "\n")
        part.replace(folder / f"{name}.json")
