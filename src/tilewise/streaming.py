"""The part of a run that writes: the template of the output, the tiles, and the records of both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewise import cf, places
from tilewise.clients import Site
from tilewise.errors import ClusterError, LockedError, StoppedError
from tilewise.failures import FAILURES, Failures
from tilewise.fingerprint import environment, environment_changes, fingerprint
from tilewise.folders import Folder
from tilewise.inspection import cpu_capability, refuse_unseen, unseen_inputs, unseen_output, unseen_sidecar
from tilewise.job import Job
from tilewise.ledger import Ledger
from tilewise.limits import Probe
from tilewise.locking import Lease, Lock
from tilewise.memory import Workload
from tilewise.outcome import OnProgress, Report, Tally
from tilewise.plans import Plan
from tilewise.probing import is_worth_it, probed, refined
from tilewise.recorder import Recorder
from tilewise.records import TileState
from tilewise.replacing import clear
from tilewise.resuming import Earlier, last_record
from tilewise.runfile import RunRecord, Stage
from tilewise.sidecars import scratch_of, write_records
from tilewise.stopping import Stop, stoppable
from tilewise.store import create
from tilewise.surveys import remote
from tilewise.task import try_kernel
from tilewise.trouble import fullness_told
from tilewise.workers import Workers

if TYPE_CHECKING:
    from tilewise.program import Program

log = logging.getLogger("tilewise")


@dataclass(frozen=True)
class Run:
    """One run of a job under the lock of its output.

    `work` is described by metadata alone: with inputs in memory another one is what workers read.
    """

    name: str
    job: Job
    work: Workload
    lease: Lease
    lock: Lock
    earlier: Earlier | None
    begin: float
    progress: OnProgress | None
    hurry: Callable[[int], None] | None


@dataclass(frozen=True)
class Stream:
    """The part of a run that writes: workers are there, and the plan is made."""

    run: Run
    work: Workload
    plan: Plan
    site: Site
    workers: Workers

    def do(self) -> Report:
        """Try the kernel, write the template unless it is there, do the tiles."""
        program = self._program()
        self._try(program)
        this, probe = self._probed(program)
        program = replace(program, read_ahead=this.plan.read_ahead)
        with fullness_told("the output and its records"):
            this = this._redone()
            record, ledger, warnings = this._begun()
        store = self.work.targets[0].array.store
        refuse_unseen("the output", self.workers.everywhere(unseen_output, store, record.runs))
        return this._tiles(program, record, ledger, warnings, probe)

    def probe(self) -> tuple[Plan, Probe]:
        """Try the kernel, and do a few tiles into a scratch store: the plan that follows, and what they have taken."""
        program = self._program()
        self._try(program)
        probe = self._probe(program)
        return self._refined(probe), probe

    def _try(self, program: Program) -> None:
        """Refuse what workers do not see, and a kernel that does not do what it declares."""
        arrays = [array for source in self.work.sources.values() for array in source.arrays]
        refuse_unseen("the input", self.workers.everywhere(unseen_inputs, arrays))
        self.workers.call(try_kernel, program.ticket())
        lease = self.run.lease
        seen = self.workers.everywhere(unseen_sidecar, lease.sidecar, lease.run)
        refuse_unseen("the sidecar beside the output,", seen)

    def _program(self) -> Program:
        from tilewise.program import Program

        memory, layout, job = self.plan.memory, self.site.layout, self.run.job
        return Program(
            run=self.run.name,
            kernel=job.kernel,
            signature=self.work.signature,
            sources=self.work.sources,
            targets=self.work.targets,
            grid=self.plan.grid,
            panel=self.plan.panel,
            device=layout.device,
            hosted=True,
            slots=layout.slots,
            read_ahead=self.plan.read_ahead,
            retries=job.retries,
            skip=job.on_error == "skip",
            lease=self.run.lease,
            device_bytes=memory.shared + layout.slots * memory.per_slot if layout.device == "cuda" else 0,
        )

    def _probed(self, program: Program) -> tuple[Stream, Probe | None]:
        """The same with blocks from a probe, where that is worth it; one that fails costs no more than what it says."""
        earlier = self.run.earlier
        if not is_worth_it(self.plan, earlier.totals.states.get(TileState.DONE, 0) if earlier else 0):
            return self, None
        try:
            probe = self._probe(program)
        except Exception as error:  # noqa: BLE001 - what is wrong with the tiles, the run itself will say
            log.warning("the run goes on without a probe of its tiles: %s", error)
            return self, None
        return replace(self, plan=self._refined(probe)), probe

    def _refined(self, probe: Probe) -> Plan:
        job, ceiling = self.run.job, self.site.layout.ceiling
        most = min(self.plan.memory_limit, ceiling.pause) if ceiling else self.plan.memory_limit
        waits = job.read_ahead == "auto" and any(map(places.is_url, remote(job)))
        return refined(self.plan, probe, wait_for_stores=waits, most=most)

    def _probe(self, program: Program) -> Probe:
        scratch = scratch_of(self.run.job, self.run.name)
        return probed(program, self.work, self.plan, self.run.job.output, scratch, self.workers)

    def _redone(self) -> Stream:
        """The same once the tiles that are to be done again are pending."""
        earlier = self.run.earlier
        return replace(self, run=replace(self.run, earlier=earlier.begin())) if earlier else self

    def _begun(self) -> tuple[RunRecord, Ledger, tuple[str, ...]]:
        """The records of the run, with the template of the output unless an earlier run has made it."""
        run, sidecar = self.run, self.run.job.sidecar_folder
        now = environment(self.workers.call(cpu_capability))
        documents = {"job": run.job.anchored().to_dict(), "plan": {"run": run.name, **self.plan.to_dict()}}
        run.lock.check()  # workers were started, and tiles probed, since it was taken
        if run.earlier is not None:
            record = run.earlier.record.resumed(run.name, now)
            sidecar.remove_text("report.json")  # of the run before: it must not speak for one that fails
            write_records(run.job, documents)
            record.save(sidecar)
            return record, run.earlier.ledger, environment_changes(run.earlier.record.environment, now)
        record = RunRecord.begin(run.name, run.job.output.store, now, last_record(sidecar, run.job.output.store))
        record.save(sidecar)
        run.lock.check()
        clear(Folder(run.job.output.store), sidecar, run.name)
        for name in ("report.json", FAILURES):
            sidecar.remove_text(name)
        write_records(run.job, documents)
        attrs = cf.provenance(run.job.to_dict(), run.name)
        run.lock.check()
        create(run.job.output, self.work.targets, list(self.work.sources.values()), attrs)
        ledger = Ledger.create(sidecar, self.plan.grid, self._attributes(), guard=run.lock.check)
        record = record.at("running")
        record.save(sidecar)
        return record, ledger, ()

    def _attributes(self) -> dict[str, Any]:
        """What a run that resumes this one must agree with, or takes over."""
        return {
            "run": self.run.name,
            "fingerprint": fingerprint(self.run.work, self.run.job),
            "device": self.site.layout.device,
            "panel": self.plan.panel,
        }

    def _tiles(
        self, program: Program, record: RunRecord, ledger: Ledger, changes: tuple[str, ...], probe: Probe | None
    ) -> Report:
        """Do what the ledger does not say is done; whatever ends this, the ledger is written."""
        from tilewise.engine import run_program

        run, plan = self.run, self.plan
        totals, failures = (run.earlier.totals, run.earlier.failures) if run.earlier else (None, None)
        failures = failures or Failures(run.job.sidecar_folder, plan.grid)
        tally = Tally(plan, run.job.output.store, run.begin, run.progress, totals, probe)
        for text in changes:
            log.warning(text)
        with stoppable(run.hurry) as stop:
            recorder = Recorder(ledger, failures, tally, run.lock, stop, run.job.retries)
            try:
                tally.tell()
                run_program(program, self.workers, ledger.blocks(plan.block), recorder.add, recorder.go_on)
                recorder.flush()
                if not stop.signum:
                    _check_complete(tally, plan)
            except BaseException:
                recorder.flush_last()
                self._end(record.at("failed"))
                raise
            report = tally.report((*self.site.warnings, *changes))
            self._end(record.at(_stage(report, stop)), report)
        if stop.signum:
            raise StoppedError(
                "a signal has stopped the run", got=f"signal {stop.signum}", do="go on with --resume (resume=True)"
            )
        return report

    def _end(self, record: RunRecord, report: Report | None = None) -> None:
        """Say how the run has ended; where that cannot be written, the ledger is there all the same."""
        try:
            self.run.lock.check()
            if report is not None:
                write_records(self.run.job, {"report": report.to_dict()})
            record.save(self.run.job.sidecar_folder)
        except (LockedError, OSError) as error:
            log.warning("how the run has ended is not recorded: %s", error)


def _check_complete(tally: Tally, plan: Plan) -> None:
    """Refuse to call a run finished of which a tile has not come back, for whatever reason."""
    if tally.tried < plan.tiles:
        raise ClusterError(
            "tiles have come back from their workers without a result",
            got=f"{plan.tiles - tally.tried} of {plan.tiles}",
            do="go on with --resume (in Python: resume=True)",
        )


def _stage(report: Report, stop: Stop) -> Stage:
    if report.tiles + report.resumed + report.failed == report.plan.tiles:
        return "finished"
    return "stopped" if stop.signum else "failed"
