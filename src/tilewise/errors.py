"""Every error of tilewise: what went wrong, what was got, what was expected, and what to do.

Each class also inherits the builtin exception that somebody who has never read this file would catch.
"""

from __future__ import annotations

from typing import Any, ClassVar


def and_more(count: int) -> str:
    """The end of a list of which one entry is shown.

    >>> and_more(2), and_more(0)
    (', and 2 more', '')
    """
    return f", and {count} more" if count else ""


class TilewiseError(Exception):
    """Base of every error raised on purpose.

    Parameters are sentences or fragments without a full stop: `what` happened, what was `got`, what was
    `expected`, and what to `do` about it. Only `what` is required.

    >>> print(DimensionError("x has no dimension 'band'", got="y, x", do="name one of them in kernel.dim"))
    x has no dimension 'band'; got: y, x. To mend it: name one of them in kernel.dim.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, got: object = "", expected: object = "", do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.got = str(got)
        self.expected = str(expected)
        self.do = do

    def __str__(self) -> str:
        """One sentence of what, got and expected, and one that says how to mend it."""
        text = self.what
        if self.got:
            text += f"; got: {self.got}"
        if self.expected:
            text += f"; expected: {self.expected}"
        return f"{text}. To mend it: {self.do}." if self.do else f"{text}."

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the trip from a worker: OSError would rewrite the arguments it is built from."""
        return type(self), (self.what, self.got, self.expected, self.do)


class ParameterError(TilewiseError, ValueError):
    """A kernel or job parameter has a value that it cannot have."""


class ConfigError(TilewiseError, ValueError):
    """A job file cannot be understood; the message starts with file:line:column."""


class UnknownKernelError(TilewiseError, LookupError):
    """No kernel has that name."""


class DimensionError(TilewiseError, ValueError):
    """Dimension names or sizes do not fit together."""


class CoordinateError(TilewiseError, ValueError):
    """Two inputs disagree about the coordinates of a dimension that they share."""


class DTypeError(TilewiseError, TypeError):
    """A dtype that the computation does not know."""


class MissingStoreError(TilewiseError, FileNotFoundError):
    """There is no readable store at that place."""


class StoreAccessError(TilewiseError, OSError):
    """A store cannot be reached or read, or access to it was denied."""

    exit_code = 1


class MissingVariableError(TilewiseError, KeyError):
    """The store has no such variable."""


class UnsupportedStoreError(TilewiseError, NotImplementedError):
    """The store uses a codec, packing or layout that tilewise cannot read or write."""


class OutputExistsError(TilewiseError, FileExistsError):
    """The output is already there, or is one of the inputs."""


class BudgetError(TilewiseError, MemoryError):
    """The job does not fit into its memory budget; nothing has been written."""


class ClusterError(TilewiseError, RuntimeError):
    """The workers could not be started, or were lost."""

    exit_code = 1


class KernelContractError(TilewiseError, TypeError):
    """A kernel does not do what it declared."""


class MissingValueError(TilewiseError, ValueError):
    """A row has a NaN, and `nan_policy` is raise."""

    exit_code = 1


class TileError(TilewiseError, RuntimeError):
    """A tile failed while the job was running."""

    exit_code = 1


class StoreFullError(TilewiseError, OSError):
    """There is no space left where the output is written; the run has stopped, and can be resumed."""

    exit_code = 1


class DamagedDataError(TilewiseError, ValueError):
    """Stored data of an input cannot be decoded; the message names the chunk."""

    exit_code = 1


class LockedError(TilewiseError, RuntimeError):
    """Another run is at work on the output, or has taken it over."""

    exit_code = 1


class ResumeError(TilewiseError, ValueError):
    """A run cannot be resumed: there is none, its records are damaged, or the job differs; nothing has been changed."""


class StoppedError(TilewiseError, InterruptedError):
    """A signal has stopped the run, whose handler then did nothing; the run can be resumed."""

    exit_code = 1
