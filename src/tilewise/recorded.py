"""What the sidecar of an output tells of its run: the job, the plan, and what became of each tile.

A sidecar may be a stranger's. Reading it runs none of their code: a kernel that is not of this package is imported only
where its module is allowed, and workers are never those that the job names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewise import config, places
from tilewise.claims import read_claim
from tilewise.cluster import REMOTE, Cluster
from tilewise.errors import ConfigError, ParameterError, ResumeError
from tilewise.fields import TileGrid
from tilewise.fingerprint import difference, environment, fingerprint
from tilewise.folders import Folder
from tilewise.info import command
from tilewise.inspection import cpu_capability
from tilewise.job import Job
from tilewise.ledger import Ledger
from tilewise.runfile import RunRecord
from tilewise.surveys import described, workload

if TYPE_CHECKING:
    from tilewise.program import Program

#: What `Job.to_dict` writes in place of an input that was in memory.
_IN_MEMORY = "in memory: "


@dataclass(frozen=True)
class Recorded:
    """The run of an output as its sidecar tells of it.

    Attributes
    ----------
    output
        Place of the output.
    folder
        The sidecar.
    ledger
        What became of each tile.
    """

    output: str
    folder: Folder
    ledger: Ledger

    @classmethod
    def of(cls, output: str, sidecar: str | None = None) -> Recorded:
        """Find the records of an output.

        Parameters
        ----------
        sidecar
            Where they are, if not beside the output.

        Raises
        ------
        ResumeError
            There are none, or they are damaged.
        """
        output = places.local_path(str(output)).rstrip("/")
        places.checked(output, "output")
        folder = Folder(places.local_path(str(sidecar)) if sidecar else f"{output}.tilewise")
        if not folder.exists():
            raise ResumeError(
                f"there are no records of a run of {output}",
                got=f"nothing at {folder}",
                expected="the sidecar that a run leaves",
                do="name its place with --sidecar, or run the job",
            )
        return cls(output, folder, Ledger.open(folder))

    def command(self, name: str, *options: str) -> str:
        """A command on this output, as a person types it."""
        return command(name, self.output, self.folder.place, self._kernel(), *options)

    def _kernel(self) -> str:
        try:
            return str(self.document("job.json").get("kernel", {}).get("name", ""))
        except ResumeError:  # then it cannot be named, and whoever types the command is told so
            return ""

    @property
    def grid(self) -> TileGrid:
        """The tiles."""
        return self.ledger.grid

    def document(self, name: str) -> dict[str, Any]:
        """A JSON document of the sidecar.

        Raises
        ------
        ResumeError
            It is not there, or is no JSON.
        """
        try:
            found = json.loads(self.folder.read_text(name) or "null")
        except ValueError as error:
            raise _damaged(self.folder, name, error) from error
        if not isinstance(found, dict):
            raise _damaged(self.folder, name, "nothing" if found is None else type(found).__name__)
        return found

    def job(self, allow: Sequence[str] = ()) -> Job:
        """The job that was run, on this output and on workers of this machine.

        Parameters
        ----------
        allow
            Modules whose kernels may be imported: that runs what is in them.

        Raises
        ------
        ParameterError
            The kernel is one of a module that is not allowed.
        ResumeError
            An input was in memory, or the records are damaged.
        """
        document = self.document("job.json")
        _check_allowed(document, allow)
        _check_inputs(document)
        try:
            job = config.loads(json.dumps(document), name=str(self.folder.child("job.json")))
        except ConfigError as error:
            if error.__cause__ is not None:  # a module that cannot be imported, or that fails
                raise
            raise _damaged(self.folder, "job.json", error) from error
        output = replace(job.output, store=self.output)
        return replace(job, output=output, sidecar=self.folder.place, cluster=_local(job.cluster))

    def program(self, job: Job) -> Program:
        """What computes tiles of the run in this process, without writing any.

        Raises
        ------
        ResumeError
            The inputs have other metadata than they had.
        TilewiseError
            An input is not there any more, or does not fit the others.
        """
        from tilewise.program import Program

        work = workload(job, described(job))
        attrs = self.ledger.attrs
        unlike = difference(attrs["fingerprint"], fingerprint(work, job))
        if unlike:
            raise ResumeError(
                "the inputs are not those of the run",
                got=unlike,
                expected="the same places and metadata",
                do="give them back, or run the job again with --overwrite; an audit of the output alone is --sample 0",
            )
        return Program(
            run=f"check-{uuid.uuid4().hex[:12]}",
            kernel=job.kernel,
            signature=work.signature,
            sources=work.sources,
            targets=work.targets,
            grid=self.grid,
            panel=int(attrs["panel"]),
            device=_device(attrs.get("device")),
            retries=job.retries,
        )

    def panel(self, number: int) -> int:
        """Pixels of the panels that a tile was done in; 0 where these were the plan's."""
        return self.ledger.record(number).panel

    def changes(self) -> tuple[str, ...]:
        """What is not here as it was in the last run, so that bits may differ."""
        record = RunRecord.load(self.folder)
        if record is None:
            return ("the environment of the run is not known",)
        was, now = record.environment, environment(cpu_capability())
        return tuple(f"{n} was {was.get(n, 'absent')}, is {now[n]}" for n in now if was.get(n) != now[n])

    def at_work(self) -> str:
        """Who is, or may be, at work on the output; "" where nobody is."""
        claim = read_claim(self.folder)
        if claim is None or claim.is_alive is False:
            return ""
        return f"run {claim.run}, process {claim.owner.pid} on {claim.owner.host}"


def _device(was: object) -> str:
    """The kind of device that the run computed on: another one gives other bits."""
    if was != "cuda":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    raise ParameterError(
        "the run was on CUDA devices, and there is none here",
        do="do this on a machine that has one; an audit without recomputed tiles is --sample 0",
    )


def _check_allowed(document: Mapping[str, Any], allow: Sequence[str]) -> None:
    """Refuse a kernel of a module that is not allowed, before anything imports it."""
    kernel = document.get("kernel")
    name = kernel.get("name") if isinstance(kernel, Mapping) else kernel
    module, found, _ = str(name).partition(":")
    if found and not any(module == one or module.startswith(f"{one}.") for one in allow):
        raise ParameterError(
            "the kernel of the run is code of a module that is not allowed",
            got=name,
            do=f"pass --allow {module} if you trust it; an audit without recomputed tiles is --sample 0",
        )


def _check_inputs(document: Mapping[str, Any]) -> None:
    inputs = document.get("inputs")
    for name, given in (inputs if isinstance(inputs, Mapping) else {}).items():
        store = given.get("store") if isinstance(given, Mapping) else given
        if str(store).startswith(_IN_MEMORY):
            raise ResumeError(
                f"input {name!r} was in memory, and is not there any more",
                got=store,
                do="run the job again from Python, with resume=True and redo= the tiles that are to be mended; "
                "an audit without recomputed tiles is --sample 0",
            )


def _local(cluster: Cluster) -> Cluster:
    """The workers of a job without those of somebody else: what a scheduler sends is code."""
    return Cluster() if cluster.kind in REMOTE else cluster


def _damaged(folder: Folder, name: str, got: object) -> ResumeError:
    return ResumeError(
        f"{folder.child(name)} is damaged", got=got, expected="what a run writes", do="run the job with --overwrite"
    )
