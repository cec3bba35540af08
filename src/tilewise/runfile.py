"""Which run made an output, and how far it has come: a small file in the sidecar, written at each stage."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from tilewise import cf, places
from tilewise.folders import Folder

log = logging.getLogger("tilewise")

#: The file of a sidecar that says how far a run has come.
RUN_FILE = "run.json"
#: creating: the output may be half there. running: tiles are written, unless the process was killed. The others are
#: the ends of a run: every tile done, or skipped as failed; an error; a signal.
Stage = Literal["creating", "running", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class RunRecord:
    """How far a run has come.

    Attributes
    ----------
    run
        The run that was the last to work on the output.
    stage
        How far it came.
    output
        Place of the output, absolute.
    environment
        Versions and CPU capability of that run.
    runs
        Every run on this output, the one that created it first.
    before
        While an output is being created: the record of the one that it replaces, which may still be there.

    >>> folder = Folder("memory://runfile")
    >>> RunRecord("a1", "creating", "/data/out.zarr").at("running").save(folder)
    >>> RunRecord.load(folder).stage
    'running'
    """

    run: str
    stage: Stage
    output: str
    environment: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    before: RunRecord | None = None

    def __post_init__(self) -> None:
        """A run is one of its runs; the place is absolute."""
        if self.run not in self.runs:
            object.__setattr__(self, "runs", (*self.runs, self.run))
        object.__setattr__(self, "output", places.absolute(self.output))

    @classmethod
    def begin(
        cls, run: str, output: str, environment: Mapping[str, str], earlier: RunRecord | None = None
    ) -> RunRecord:
        """A run that creates its output anew; one that was killed while it did so leaves its names to it.

        What such a run has left half made counts as this run's too, should this one be killed as well.
        """
        creating = earlier is not None and earlier.is_creating(output)
        runs = earlier.runs if earlier is not None and creating else ()
        before = None if earlier is None else earlier.before if creating else earlier
        return cls(run, "creating", output, environment, (*runs, run), before)

    @classmethod
    def load(cls, folder: Folder) -> RunRecord | None:
        """What the sidecar says; None where it says nothing, or what no run has written.

        Raises
        ------
        StoreAccessError
            It cannot be read.
        """
        try:
            text = folder.read_text(RUN_FILE)
            return None if text is None else cls._from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is damaged, and counts as none: %s", folder.child(RUN_FILE), error)
            return None

    @classmethod
    def _from_dict(cls, found: Mapping[str, Any]) -> RunRecord:
        stage = found["stage"]
        if stage not in get_args(Stage):
            raise ValueError(f"there is no stage {stage!r}")
        environment = {str(name): str(value) for name, value in found["environment"].items()}
        before = found.get("before")
        runs = tuple(map(str, found["runs"]))
        known = cls._from_dict(before) if before else None
        return cls(str(found["run"]), stage, str(found["output"]), environment, runs, known)

    def save(self, folder: Folder) -> None:
        """Write it down, at once or not at all.

        Raises
        ------
        StoreAccessError, StoreFullError
            The sidecar cannot be written.
        """
        folder.write_text(RUN_FILE, cf.to_json(asdict(self)) + "\n")

    def at(self, stage: Stage) -> RunRecord:
        """The same run at another stage."""
        return replace(self, stage=stage, before=self.before if stage == "creating" else None)

    def resumed(self, run: str, environment: Mapping[str, str]) -> RunRecord:
        """The run that goes on with the same output: another name, after those that there were."""
        return replace(self, run=run, stage="running", environment=environment, runs=(*self.runs, run))

    def is_creating(self, output: str) -> bool:
        """Whether that output may be half there: the run was last heard of while it created it."""
        return self.stage == "creating" and self.is_for(output)

    def is_resumable(self, output: str) -> bool:
        """Whether that output is whole as a template: what tiles of it lack can be done."""
        return self.stage != "creating" and self.is_for(output)

    def is_for(self, output: str) -> bool:
        """Whether it is about that output."""
        return places.identity(places.absolute(output)) == places.identity(self.output)
