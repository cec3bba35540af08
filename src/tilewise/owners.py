"""Which process is at work, in words that survive it: told apart from a later one of the same number."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: States of a process that is dead and only waits for its parent to ask how it ended.
_DEAD = ("Z", "X", "x")


@dataclass(frozen=True)
class Owner:
    """A process by its names.

    Attributes
    ----------
    host
        Name of its host, for people.
    boot
        Identity of its running system: another one after each start.
    namespace
        Identity of its space of process numbers: containers of one host have each their own.
    pid
        Its number there.
    started
        When it began, in ticks since the system did: numbers of processes are used again.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        """Process and host as a person reads them."""
        return f"process {self.pid} on {self.host}"

    def to_dict(self) -> dict[str, Any]:
        """The owner as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Owner:
        """The owner from what `to_dict` has made.

        Raises
        ------
        KeyError, TypeError, ValueError
            It was made by something else.

        >>> Owner.from_dict(this_process().to_dict()) == this_process()
        True
        """
        texts = {name: str(found[name]) for name in ("host", "boot", "namespace", "started")}
        return cls(pid=int(found["pid"]), **texts)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this system, which can be looked at."""
        return (self.boot, self.namespace) == (_boot(), _namespace())

    @property
    def is_alive(self) -> bool | None:
        """Whether it lives; None where that cannot be seen from here.

        >>> this_process().is_alive
        True
        """
        if not self.is_here:
            return None
        started = _started(self.pid)
        return started is not None and (started == self.started or "" in (started, self.started))


def this_process() -> Owner:
    """The process that asks."""
    pid = os.getpid()
    return Owner(socket.gethostname(), _boot(), _namespace(), pid, _started(pid) or "")


def _boot() -> str:
    """Identity of the running system; where it has none, the name of the host."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else socket.gethostname()


def _namespace() -> str:
    link = Path("/proc/self/ns/pid")
    return str(link.readlink()) if link.exists() else ""


def _started(pid: int) -> str | None:
    """When a process began, "" where that is not shown; None where it is dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # A platform without it, or a system that hides the processes of other users.
        return "" if _answers(pid) else None
    # The name of the program comes second, in brackets, and may hold anything.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in _DEAD else rest[18]


def _answers(pid: int) -> bool:
    if os.name != "posix":  # a signal would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
