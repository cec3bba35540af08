"""Job files: YAML to a `Job` and back, with the place of every mistake.

The only package that imports pydantic (`schema`) and ruamel.yaml (`document`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise import places
from tilewise.config.document import Document, Keys, dotted, position, write
from tilewise.config.schema import Problem, build_job, child_type, long_form
from tilewise.errors import ConfigError, UnknownKernelError
from tilewise.job import Job
from tilewise.kernels import kernel_class

__all__ = ["dump", "load", "loads"]


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
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", expected="a job file", do="check its path") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = position(data[: error.start].decode("latin-1"))
        raise ConfigError(
            f"{path}:{place}: the job file is not UTF-8", got=f"byte {data[error.start]:#04x}", do="save it as UTF-8"
        ) from error
    return loads(text, overrides, name=str(path))


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
    changes = [_Change.parse(override) for override in overrides]
    value = document.value
    for change in changes if isinstance(value, dict) else ():
        value = _put(Job, value, change.keys, change.value)
    job, problems = build_job(value)
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


@dataclass(frozen=True)
class _Change:
    """One override: where, to what, and how it was written."""

    keys: tuple[str, ...]
    value: Any
    flag: str

    @classmethod
    def parse(cls, override: str) -> _Change:
        flag = f"--set {places.masked(override)}"
        path, equals, value = override.partition("=")
        keys = tuple(key.strip() for key in path.split("."))
        if not equals or not all(keys):
            raise ConfigError(
                f"{flag}: not a change",
                expected="a key and a value, such as kernel.dim=band",
                do="write keys joined by dots, an equals sign, and the value in YAML",
            )
        return cls(keys, Document.parse(value, flag).value if value.strip() else None, flag)

    def explains(self, keys: Keys) -> bool:
        """Whether a mistake under these keys may come from this change."""
        both = min(len(keys), len(self.keys))
        return both > 0 and keys[:both] == self.keys[:both]


def _put(hint: Any, value: Any, keys: tuple[str, ...], new: Any) -> Any:
    """`value` with `new` under these keys; absent mappings are made, and short forms written out."""
    if not keys:
        return new
    long = long_form(hint, value)
    whole = long if isinstance(long, dict) else {}
    return {**whole, keys[0]: _put(child_type(hint, keys[0]), whole.get(keys[0]), keys[1:], new)}


def _error(problems: Sequence[Problem], document: Document, changes: Sequence[_Change]) -> ConfigError:
    """All problems in one error, in the order of the file, then of the command line."""
    found = sorted((_located(problem, document, changes) for problem in problems), key=lambda item: item[:2])
    errors = [error for _, _, error in found]
    causes = [problem.cause for problem in problems if problem.cause]
    whole = errors[0] if len(errors) == 1 else ConfigError("\n".join(map(str, errors)).removesuffix("."))
    whole.__cause__ = ExceptionGroup("refused values", causes) if len(causes) > 1 else next(iter(causes), None)
    return whole


def _located(
    problem: Problem, document: Document, changes: Sequence[_Change]
) -> tuple[int, tuple[int, int], ConfigError]:
    for number, change in reversed(list(enumerate(changes, start=1))):
        if change.explains(problem.keys):
            return number, (0, 0), _config_error(problem, change.flag)
    line, column = document.place(problem.keys)
    return 0, (line, column), _config_error(problem, f"{document.name}:{line}:{column}")


def _config_error(problem: Problem, place: str) -> ConfigError:
    key = f"{dotted(problem.keys)}: " if problem.keys else ""
    return ConfigError(f"{place}: {key}{problem.what}", problem.got, problem.expected, problem.do)
