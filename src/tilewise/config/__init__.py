"""Job files: YAML to a `Job` and back, with the place of every mistake.

The only package that imports pydantic (`schema`, `json_schema`) and ruamel.yaml (`document`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilewise.config.blame import blamed_key
from tilewise.config.changes import Change, changed, find_place
from tilewise.config.document import Document, dotted, position, write
from tilewise.config.schema import Problem, build_job
from tilewise.errors import ConfigError, TilewiseError, UnknownKernelError
from tilewise.job import Job
from tilewise.kernels import kernel_class

__all__ = ["dump", "load", "loads", "placed"]


def load(path: str | Path, overrides: Iterable[str] = ()) -> Job:
    """The job that a file describes; relative paths in it start at the current directory.

    Parameters
    ----------
    overrides
        Changes such as "kernel.ord=1": keys joined by dots, and a value in YAML.

    Raises
    ------
    ConfigError
        The file cannot be read or understood; each line of the message starts with file:line:column and the key.
    """
    return loads(_text(path), overrides, name=str(path))


def _text(path: str | Path) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", expected="a job file", do="check its path") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = position(data[: error.start].decode("latin-1"))
        raise ConfigError(
            f"{path}:{place}: the job file is not UTF-8", got=f"byte {data[error.start]:#04x}", do="save it as UTF-8"
        ) from error


@contextmanager
def placed(path: str | Path, overrides: Iterable[str] = ()) -> Iterator[None]:
    """Within it, a refusal of a job that was loaded from a file starts with file:line:column and the key it names.

    The class of the error stays the same. One that names no key, or that is no refusal, is left as it is.
    """
    try:
        yield
    except ConfigError:
        raise
    except TilewiseError as error:
        found = _placed(error, path, overrides) if error.exit_code == TilewiseError.exit_code else None
        if found is None:
            raise
        raise found from error


def _placed(error: TilewiseError, path: str | Path, overrides: Iterable[str]) -> TilewiseError | None:
    try:
        document = Document.parse(_text(path), str(path))
        changes = [Change.parse(override) for override in overrides]
    except ConfigError:  # the file has changed meanwhile
        return None
    keys = blamed_key(error, changed(document.value, changes))
    if not keys:
        return None
    place = find_place(keys, document, changes).text
    return type(error)(f"{place}: {dotted(keys)}: {error.what}", error.got, error.expected, error.do)


def loads(text: str, overrides: Iterable[str] = (), *, name: str = "job") -> Job:
    """The job that a text describes; `name` stands for the file in messages.

    Raises
    ------
    ConfigError
        As `load` does.

    >>> job = loads("{kernel: {name: norm, dim: band}, inputs: {x: a.zarr}, output: b.zarr}", ["kernel.ord=1"])
    >>> job.kernel.ord, job.inputs["x"].store
    (1.0, 'a.zarr')
    >>> loads("{kernel: {name: norm, dim: band}, inputs: {x: a.zarr}, outptu: b.zarr}")
    Traceback (most recent call last):
    tilewise.errors.ConfigError: job:1:56: outptu: there is no such key; ... To mend it: write output instead.
    """
    document = Document.parse(text, name)
    changes = [Change.parse(override) for override in overrides]
    job, problems = build_job(changed(document.value, changes))
    if job is None or problems:
        raise _error(problems, document, changes)
    return job


def dump(job: Job) -> str:
    """The job as a job file that loads back equal.

    Raises
    ------
    ConfigError
        An input is in memory, the kernel's class cannot be found by its name, or YAML has no form for a value.

    >>> text = dump(loads("{kernel: {name: norm, dim: band}, inputs: {x: a.zarr}, output: b.zarr}"))
    >>> loads(text).inputs["x"].store
    'a.zarr'
    """
    for name, source in job.inputs.items():
        if source.in_memory:
            raise ConfigError(
                f"input {name!r} is in memory, and a job file can only name a store",
                got=type(source.store).__name__,
                do="write it to a Zarr store first",
            )
    document = job.to_dict()
    name = document["kernel"]["name"]
    try:
        found = kernel_class(name)
    except UnknownKernelError:
        found = None
    if found is not type(job.kernel):
        raise ConfigError(
            "a job file cannot name the kernel's class",
            got=name,
            expected="a class at the top level of a module that can be imported",
            do="move it there",
        )
    return write(document)


def _error(problems: Sequence[Problem], document: Document, changes: Sequence[Change]) -> ConfigError:
    """All problems in one error, in the order of the file, then of the command line."""
    found = sorted((_located(problem, document, changes) for problem in problems), key=lambda item: item[:2])
    errors = [error for _, _, error in found]
    causes = [problem.cause for problem in problems if problem.cause]
    whole = errors[0] if len(errors) == 1 else ConfigError("\n".join(map(str, errors)).removesuffix("."))
    whole.__cause__ = ExceptionGroup("refused values", causes) if len(causes) > 1 else next(iter(causes), None)
    return whole


def _located(
    problem: Problem, document: Document, changes: Sequence[Change]
) -> tuple[int, tuple[int, int], ConfigError]:
    place = find_place(problem.keys, document, changes)
    key = f"{dotted(problem.keys)}: " if problem.keys else ""
    error = ConfigError(f"{place.text}: {key}{problem.what}", problem.got, problem.expected, problem.do)
    return place.change, place.position, error
