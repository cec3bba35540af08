"""The command line: plan and run a job; write, describe and complete a job file.

Nothing but click is imported until a command needs it, so that help is quick. Results go to standard output, and
everything else to standard error.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from tilewise._version import __version__
from tilewise.exits import SureExit, leave_at_once
from tilewise.shell import INCOMPLETE, SIGINT, ends_in_code, print_result, stdout_for_results


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
_output = click.argument("output", metavar="OUTPUT", type=click.Path())
_sidecar = click.option("--sidecar", metavar="PLACE", help="Where its records are; beside the output unless given.")


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
@click.option("--probe", is_flag=True, help="Do a few tiles into a scratch store, and tell how long all would take.")
@_json
@ends_in_code
def plan(job: str, overrides: Sequence[str], probe: bool, as_json: bool) -> None:
    """Show tiles, bytes and peak memory of a job; the output is not touched."""
    with stdout_for_results():
        from tilewise import report, watching
        from tilewise.cf import to_json
        from tilewise.config import load, placed

        with watching.logged(), placed(job, overrides):
            document = report.describe(load(job, overrides), probe=probe)
        text = to_json(document) if as_json else report.plan_text(document)
    print_result(text)


@commands.command()
@_job
@_set
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--resume", is_flag=True, help="Go on with the run of this job that was stopped, or begin it.")
@click.option("--force-unlock", is_flag=True, help="Take the output over from a run that is known to be dead.")
@_json
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors, and JSON where asked for.")
@ends_in_code
def run(
    job: str,
    overrides: Sequence[str],
    overwrite: bool,
    resume: bool,
    force_unlock: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Do a job from its inputs to its output.

    Ctrl-C and SIGTERM stop it when what is in work is done and recorded; a second one stops it at once. Either way
    --resume goes on with it. The exit code is 3 where tiles failed and on_error is skip.
    """
    with stdout_for_results():
        from tilewise import report, watching
        from tilewise.cf import to_json
        from tilewise.config import load, placed
        from tilewise.machine import set_allocator
        from tilewise.runs import run

        set_allocator()  # this process is ours, and under threads it is the worker
        with watching.logged(quiet=quiet), watching.progress(quiet=quiet) as watch, placed(job, overrides):
            found = run(
                load(job, overrides),
                overwrite=overwrite,
                resume=resume,
                force_unlock=force_unlock,
                progress=watch,
                hurry=leave_at_once,
            )
    if as_json:
        print_result(to_json(found.to_dict()))
    elif not quiet:
        print_result(report.run_text(found))
    return INCOMPLETE if found.failed else 0


@commands.command()
@_output
@_sidecar
@_json
@ends_in_code
def info(output: str, sidecar: str | None, as_json: bool) -> None:
    """Show how a run stands: its tiles, those that failed and why, its speed, and what to do next.

    OUTPUT is the path or URL that the run writes to, whether it is at work or not; its inputs are not needed.
    """
    with stdout_for_results():
        from tilewise.cf import to_json
        from tilewise.info import info
        from tilewise.info_text import info_text

        found = info(output, sidecar=sidecar)
        text = to_json(found.to_dict()) if as_json else info_text(found)
    print_result(text)


_allow = click.option(
    "--allow",
    metavar="MODULE",
    multiple=True,
    help="Import the kernel of the run from this module, which runs what is in it. May be repeated.",
)


@commands.command()
@_output
@_sidecar
@click.option("--sample", metavar="N", type=click.IntRange(min=0), help="Recompute N tiles, chosen at random.")
@click.option("--seed", metavar="N", type=int, help="Seed of that choice.")
@_allow
@click.option("--repair", is_flag=True, help="Do the tiles again that are wrong or not done, and audit them.")
@_json
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors, and JSON where asked for.")
@ends_in_code
def audit(output: str, sidecar: str | None, sample: int | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Verify an output: exit 0 where all is well, 3 where something is wrong.

    Every tile has to be done, every write unit of OUTPUT to be there and decodable, and a few tiles are computed once
    more and compared bit by bit. What is wrong is named, with the command that mends it.
    """
    with stdout_for_results():
        from tilewise import audit as auditing
        from tilewise import watching
        from tilewise.audit_text import audit_text
        from tilewise.cf import to_json

        size = auditing.SAMPLE if sample is None else sample
        with watching.logged(quiet=quiet), watching.progress(quiet=quiet) as watch:
            found = auditing.audit(output, sidecar=sidecar, sample=size, progress=watch, **options)
        text = to_json(found.to_dict()) if as_json else audit_text(found)
    if as_json or not quiet:
        print_result(text)
    return 0 if found.clean else INCOMPLETE


@commands.command()
@_output
@click.option("--tile", metavar="N", type=click.IntRange(min=0), required=True, help="Number of the tile.")
@_sidecar
@_allow
@_json
@ends_in_code
def replay(output: str, tile: int, sidecar: str | None, allow: Sequence[str], as_json: bool) -> int:
    """Compute one tile of a run once more, here and by itself: exit 0 where it succeeds, 3 where it fails.

    Nothing is written. A tile that fails is shown with its traceback; one that is done is compared with what is stored.
    """
    with stdout_for_results():
        from tilewise.audit_text import replay_text
        from tilewise.cf import to_json
        from tilewise.replay import replay

        found = replay(output, tile, sidecar=sidecar, allow=allow)
        text = to_json(found.to_dict()) if as_json else replay_text(found)
    print_result(text)
    return INCOMPLETE if found.error or found.differences else 0


@commands.command()
@click.argument("kernel", metavar="[KERNEL]", required=False, shell_complete=_complete_kernel)
@_json
@ends_in_code
def kernels(kernel: str | None, as_json: bool) -> None:
    """List the kernels, or show one in full.

    KERNEL is a name, or module:Class for one of your own; its inputs, outputs and parameters are shown.
    """
    with stdout_for_results():
        from tilewise import catalogue

        found: Any = catalogue.kernel(kernel) if kernel else catalogue.kernels()
        if as_json:
            from tilewise.cf import to_json

            text = to_json(found)
        else:
            text = catalogue.kernel_text(found) if kernel else catalogue.kernels_text(found)
    print_result(text)


@commands.command()
@click.argument("kernel", metavar="KERNEL", shell_complete=_complete_kernel)
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write it there, not to standard output.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@ends_in_code
def init(kernel: str, output: str | None, force: bool) -> None:
    """Print a job file to fill in.

    KERNEL is a name, or module:Class for one of your own. The file has every key, with what it means and its default.
    """
    with stdout_for_results():
        from tilewise.config.template import save, template

        text = template(kernel)
        if output:
            save(text, output, force=force)
    if not output:
        print_result(text.rstrip("\n"))


@commands.command()
@click.option("--kernel", metavar="KERNEL", shell_complete=_complete_kernel, help="Of jobs with that kernel alone.")
@ends_in_code
def schema(kernel: str | None) -> None:
    """Print a JSON Schema of job files.

    An editor that knows it checks and completes job files while they are written.
    """
    with stdout_for_results():
        import json

        from tilewise.config.json_schema import json_schema

        text = json.dumps(json_schema(kernel), indent=2, allow_nan=False)
    print_result(text)


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@ends_in_code
def completion(shell: str) -> None:
    """Print a script for a shell's completion.

    It completes commands, options, kernels and files. In bash: source <(tilewise completion bash)
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    print_result(found(commands, {}, "tilewise", "_TILEWISE_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage or job, 3 tiles failed, 130 SIGINT, 143 SIGTERM."""
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = commands.main(arguments, prog_name="tilewise", standalone_mode=False)
    except click.ClickException as error:
        with suppress(OSError):  # nobody has to read it
            error.show()
        return error.exit_code
    except click.Abort:
        return SIGINT
    return code if isinstance(code, int) else 0


def console() -> None:
    """The console script: `main`, in a process that does nothing else."""
    leave = SureExit()
    atexit.register(leave)
    leave.code = _main(None)
    sys.exit(leave.code)


if __name__ == "__main__":
    console()
