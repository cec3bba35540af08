"""One run for each output: the lock in its sidecar, and what every tile asks before it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tilewise.errors import LockedError
from tilewise.folders import Folder

#: The file of a sidecar that names the run which may write.
LOCK = "lock.json"


@dataclass(frozen=True)
class Lease:
    """The right of one run to write its output, by names alone: what a task carries."""

    sidecar: str
    run: str

    def check(self) -> None:
        """Refuse to write for a run that the lock does not name: it has ended, or another one has taken over.

        Raises
        ------
        LockedError
            The lock has gone, or names another run.
        """
        holder = json.loads(Folder(self.sidecar).read_text(LOCK) or "{}").get("run")
        if holder != self.run:
            raise LockedError(
                "the output is no longer this run's to write",
                got=f"run {holder}" if holder else "no lock",
                expected=f"run {self.run}",
                do="see what the other run does with `tilewise info`",
            )
