"""How a command of the shell ends: exit codes, signals, and what goes to which stream."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any

import click

from tilewise.errors import TilewiseError
from tilewise.exits import FAILED, leave_at_once
from tilewise.stopping import SIGNALS, Stop

#: The output is finished but for tiles that failed, or an audit has found something.
INCOMPLETE = 3
SIGINT, SIGTERM = 130, 143
#: Seconds after which a signal that was swallowed is raised again.
AGAIN = 0.02


class _Terminated(BaseException):
    """SIGTERM has come: like KeyboardInterrupt no error, so that everything is closed on its way out."""


def ends_in_code(function: Callable[..., int | None]) -> Callable[..., int]:
    """A command that ends in an exit code, whatever happens in it."""

    @click.option("--debug", is_flag=True, help="Show where an error comes from, in a worker too.")
    @wraps(function)
    def command(debug: bool, **arguments: Any) -> int:
        try:
            with _signals_unwind():
                return function(**arguments) or 0
        except _Terminated:
            return _stopped("SIGTERM", SIGTERM, function.__name__)
        except KeyboardInterrupt:
            return _stopped("SIGINT", SIGINT, function.__name__)
        except TilewiseError as error:
            _say_error(str(error), error if debug else None)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the last line of defence: a message instead of a traceback
            where = "" if debug else " (--debug shows where)"
            _say_error(f"{type(error).__name__}: {error}{where}", error if debug else None)
            return FAILED

    return command


def _stopped(by: str, code: int, command: str) -> int:
    more = "; a run that has begun goes on with --resume" if command == "run" else ""
    _say_error(f"stopped by {by}{more}", None)
    return code


def _say_error(message: str, error: Exception | None) -> None:
    with suppress(OSError):
        if error is not None:
            import traceback

            click.echo("".join(traceback.format_exception(error)), err=True)
        click.echo(f"Error: {message}", err=True)


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """SIGINT and SIGTERM unwind the stack, so that workers are closed; one more leaves at once.

    A thread that computes cannot be interrupted, and closing waits for it.
    """
    stop = Stop()

    def heard(signum: int, frame: FrameType | None) -> None:
        is_first = not stop.signum
        if stop.ask(signum):
            leave_at_once(signum)
        if is_first:
            raise KeyboardInterrupt if signum == signal.SIGINT else _Terminated

    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    mine = [signum for signum in SIGNALS if before[signum] not in (None, signal.SIG_IGN)]
    for signum in mine:
        signal.signal(signum, heard)
    try:
        with _not_swallowed():
            yield
    finally:
        for signum in mine:
            signal.signal(signum, before[signum])


@contextmanager
def _not_swallowed() -> Iterator[None]:
    """A signal that comes while the interpreter collects garbage is raised there, and lost: then raise it again."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    lost: list[BaseException] = []
    hook = sys.unraisablehook

    def unraisable(event: Any) -> None:
        if isinstance(event.exc_value, (_Terminated, KeyboardInterrupt)):
            lost[:] = [event.exc_value]
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            hook(event)

    def again(signum: int, frame: FrameType | None) -> None:
        raise lost[0].with_traceback(None)

    before = signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Whatever a kernel or a library prints meanwhile, in worker processes too, goes to standard error."""
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        with suppress(OSError, AttributeError):
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def print_result(text: str) -> None:
    """Print a result; nobody has to read it."""
    try:
        click.echo(text)
    except OSError as error:
        # What is still buffered would fail once more when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            raise
