"""How processes of tilewise end."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

FAILED = 1


@dataclass
class SureExit:
    """The last of the exit handlers: it ends the process before the interpreter is taken apart.

    That would take half a second, once torch is loaded, and may go wrong: an object store client written in Rust calls
    Python from threads of its own. Before Python 3.14 such a thread is unwound when it asks for an interpreter that is
    being taken apart, Rust aborts, and exit code 1 becomes 134. When a run fails, its other requests may still be under
    way. Register it before any library is loaded: handlers run last first, so that those of libraries have run by then.
    """

    code: int = FAILED

    def __call__(self) -> None:
        """End the process with `code`; results that cannot be written make it a failure."""
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None and not stream.closed:  # None where it was closed before the process began
                    stream.flush()
            except OSError:
                self.code = self.code or FAILED
        os._exit(self.code)


def leave_at_once(signum: int) -> None:
    """End this process without another word: what is recorded is recorded, and workers end with it."""
    os._exit(128 + signum)
