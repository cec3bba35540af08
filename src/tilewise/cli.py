"""The command line: plan and run a job; write, describe and complete a job file.

Nothing but click is imported until a command needs it, so that help is quick. Results go to standard output, and
everything else to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any

import click
from click.shell_completion import CompletionItem

from tilewise._version import __version__
from tilewise.errors import TilewiseError

FAILED = 1
SIGINT, SIGTERM = 130, 143
#: Seconds after which a signal that was swallowed is raised again.
AGAIN = 0.02


def _complete_kernel(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kernels by name, for a shell to complete."""
    from tilewise.catalogue import kernels

    return [CompletionItem(one["name"], help=one["summary"]) for one in kernels() if one["name"].startswith(incomplete)]


_job = click.argument("job", metavar="JOB.yaml", type=click.Path())
_set = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change the job: keys joined by dots, and a value in YAML, as in kernel.dim=band. May be repeated.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Terminated(BaseException):
    """SIGTERM has come: like KeyboardInterrupt no error, so that everything is closed on its way out."""


def _command(function: Callable[..., None]) -> Callable[..., int]:
    """A command that ends in an exit code, whatever happens in it."""

    @click.option("--debug", is_flag=True, help="Show where an error comes from, in a worker too.")
    @wraps(function)
    def command(debug: bool, **arguments: Any) -> int:
        try:
            with _sigterm_raises():
                function(**arguments)
        except _Terminated:
            return _stopped("SIGTERM", SIGTERM)
        except KeyboardInterrupt:
            return _stopped("SIGINT", SIGINT)
        except TilewiseError as error:
            _say_error(str(error), error if debug else None)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the last line of defence: a message instead of a traceback
            where = "" if debug else " (--debug shows where)"
            _say_error(f"{type(error).__name__}: {error}{where}", error if debug else None)
            return FAILED
        return 0

    return command


def _stopped(by: str, code: int) -> int:
    _say_error(f"stopped by {by}; an output that was being written is not complete", None)
    return code


def _say_error(message: str, error: Exception | None) -> None:
    with suppress(OSError):
        if error is not None:
            import traceback

            click.echo("".join(traceback.format_exception(error)), err=True)
        click.echo(f"Error: {message}", err=True)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that workers are closed; once, since batch systems may send it again."""

    def terminate(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with _not_swallowed():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
def _stdout_for_results() -> Iterator[None]:
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


def _print(text: str) -> None:
    """Print a result; nobody has to read it."""
    try:
        click.echo(text)
    except OSError as error:
        # What is still buffered would fail once more when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            raise


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilewise")
def commands() -> None:
    """Norms and linear solves over Zarr arrays larger than memory.

    A job file names a kernel, its inputs and an output; `init` writes one to fill in, `plan` says what it would
    cost, and `run` does it.
    """


@commands.command()
@_job
@_set
@_json
@_command
def plan(job: str, overrides: Sequence[str], as_json: bool) -> None:
    """Show tiles, bytes and peak memory of a job; nothing is written."""
    with _stdout_for_results():
        from tilewise import report
        from tilewise.cf import to_json
        from tilewise.config import load, placed

        with report.logged(), placed(job, overrides):
            document = report.describe(load(job, overrides))
        text = to_json(document) if as_json else report.plan_text(document)
    _print(text)


@commands.command()
@_job
@_set
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@_json
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors, and JSON where asked for.")
@_command
def run(job: str, overrides: Sequence[str], overwrite: bool, as_json: bool, quiet: bool) -> None:
    """Do a job from its inputs to its output."""
    with _stdout_for_results():
        from tilewise import report
        from tilewise.cf import to_json
        from tilewise.config import load, placed
        from tilewise.machine import set_allocator
        from tilewise.runs import run

        set_allocator()  # this process is ours, and under threads it is the worker
        with report.logged(quiet=quiet), report.progress(quiet=quiet) as watch, placed(job, overrides):
            found = run(load(job, overrides), overwrite=overwrite, progress=watch)
    if as_json:
        _print(to_json(found.to_dict()))
    elif not quiet:
        _print(report.run_text(found))


@commands.command()
@click.argument("kernel", metavar="[KERNEL]", required=False, shell_complete=_complete_kernel)
@_json
@_command
def kernels(kernel: str | None, as_json: bool) -> None:
    """List the kernels, or show one in full.

    KERNEL is a name, or module:Class for one of your own; its inputs, outputs and parameters are shown.
    """
    with _stdout_for_results():
        from tilewise import catalogue

        found: Any = catalogue.kernel(kernel) if kernel else catalogue.kernels()
        if as_json:
            from tilewise.cf import to_json

            text = to_json(found)
        else:
            text = catalogue.kernel_text(found) if kernel else catalogue.kernels_text(found)
    _print(text)


@commands.command()
@click.argument("kernel", metavar="KERNEL", shell_complete=_complete_kernel)
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write it there, not to standard output.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@_command
def init(kernel: str, output: str | None, force: bool) -> None:
    """Print a job file to fill in.

    KERNEL is a name, or module:Class for one of your own. The file has every key, with what it means and its default.
    """
    with _stdout_for_results():
        from tilewise.config.template import save, template

        text = template(kernel)
        if output:
            save(text, output, force=force)
    if not output:
        _print(text.rstrip("\n"))


@commands.command()
@click.option("--kernel", metavar="KERNEL", shell_complete=_complete_kernel, help="Of jobs with that kernel alone.")
@_command
def schema(kernel: str | None) -> None:
    """Print a JSON Schema of job files.

    An editor that knows it checks and completes job files while they are written.
    """
    with _stdout_for_results():
        import json

        from tilewise.config.json_schema import json_schema

        text = json.dumps(json_schema(kernel), indent=2, allow_nan=False)
    _print(text)


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@_command
def completion(shell: str) -> None:
    """Print a script for a shell's completion.

    It completes commands, options, kernels and files. In bash: source <(tilewise completion bash)
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    _print(found(commands, {}, "tilewise", "_TILEWISE_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage or job, 130 SIGINT, 143 SIGTERM."""
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = commands.main(arguments, prog_name="tilewise", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return SIGINT
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
