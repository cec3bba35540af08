"""A commented job file for a kernel: from dataclass fields and docstrings alone."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tilewise.config.document import write
from tilewise.config.shapes import file_hints, not_none, record_of
from tilewise.descriptions import default, describe, is_required, spelled
from tilewise.errors import ConfigError, OutputExistsError
from tilewise.job import Job
from tilewise.kernels import Kernel, kernel_class

WIDTH = 100
_HEADER = (
    "`tilewise plan` says what this job costs, and `tilewise run` does it. Paths start at the current directory.",
    "Fill in what is required. A line such as #key: value is a setting with its default: remove the # to change it.",
)


def template(name: str) -> str:
    """A job file for a kernel, by its name or "module:Class": every key there is, with what it means.

    A required key has no value, which `load` refuses with its place until it is filled in.

    Raises
    ------
    UnknownKernelError
        There is no such kernel.
    ConfigError
        Its class is no dataclass.

    >>> print(template("norm").partition("inputs:")[0])
    # norm: Norm of the vector along `dim`: x (dim, ...) -> norm (...).
    #
    # ...
    # What to compute.
    kernel:
      name: norm
      # Dimension of x over the components of a vector.
      dim:  # required: str
      # Order p of (sum |x|^p)^(1/p): any real number; inf and -inf are the largest and the smallest
      # magnitude, 0 counts the components that are not zero. As `numpy.linalg.norm` has it, orders
      # below 1 included.
      #ord: 2.0
    ...
    """
    cls = kernel_class(name)
    if not is_dataclass(cls):
        raise ConfigError(f"kernel {name!r} is no dataclass", do="decorate it with @dataclass(frozen=True)")
    said = describe(cls)
    head = [f"{name}: {said.summary}".removesuffix(": "), *said.body, *_HEADER]
    comments = "\n#\n".join("\n".join(_comment(paragraph, 0)) for paragraph in head)
    lines = list(_Writer(name, cls).record(Job, MISSING, 0))
    return "\n".join([comments, "", *_spaced(lines)]) + "\n"


def save(text: str, path: str | Path, *, force: bool = False) -> None:
    """Write a job file, whole or not at all.

    Raises
    ------
    OutputExistsError
        There is a file already, and `force` is false.
    ConfigError
        It cannot be written there.
    """
    target = Path(path)
    if target.exists() and not force:
        raise OutputExistsError(f"{path} already exists", do="choose another file, or pass --force")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(
            f"{path}: {error.strerror}", expected="a file that can be written", do="check its path"
        ) from error


@dataclass(frozen=True)
class _Writer:
    """Writes keys of a job: what is required is left empty, what has a default is a comment."""

    kernel_name: str
    kernel: type[Kernel]

    def key(self, cls: Any, f: Field[Any], depth: int, value: Any, *, live: bool = False) -> Iterator[str]:
        """Lines of one key: its setting with this value, MISSING where it is required, as a comment unless `live`."""
        hint = file_hints(cls)[f.name]
        expanded = hint is Kernel or record_of(hint) or is_dataclass(hint)
        if is_dataclass(value) or (value is MISSING and expanded):
            yield f"{_indent(depth)}{f.name}:"
            yield from self.inside(hint, value, depth + 1)
        elif value is MISSING:
            yield f"{_indent(depth)}{f.name}:  # required: {spelled(hint)}"
        else:
            yield f"{_indent(depth)}{'' if live else '#'}{_setting(f.name, value)}"

    def inside(self, hint: Any, value: Any, depth: int) -> Iterator[str]:
        """Lines of what stands under a key."""
        if hint is Kernel:
            yield f"{_indent(depth)}{_setting('name', self.kernel_name)}"
            yield from self.record(self.kernel, MISSING, depth)
        elif record_of(hint):
            yield from self.named(record_of(hint), depth)
        else:
            yield from self.record(not_none(hint), value, depth)

    def record(self, cls: Any, values: Any, depth: int) -> Iterator[str]:
        """Lines of a dataclass with these values, or its defaults where they are MISSING.

        One of its keys at least is no comment, so that the mapping is one.
        """
        said = describe(cls).parameters
        init = [f for f in fields(cls) if f.init]
        live = [f for f in init if is_required(f)] or ([] if cls is self.kernel else init[:1])
        before = ""
        for f in init:
            text = said.get(f.name, "")
            yield from _comment(text, depth) if text != before else ()
            yield from self.key(cls, f, depth, getattr(values, f.name, default(f)), live=f in live)
            before = text

    def named(self, cls: Any, depth: int) -> Iterator[str]:
        """Lines of the kernel's inputs: its first set, the first of them explained; what goes with it; other sets."""
        sets: Sequence[Sequence[str]] = getattr(self.kernel, "input_sets", ()) or (("NAME",),)
        for number, name in enumerate(sets[0]):
            yield f"{_indent(depth)}{name}:"
            lines = self.record(cls, MISSING, depth + 1)
            yield from lines if number == 0 else (line for line in lines if not line.lstrip().startswith("# "))
        wider = [other for other in sets[1:] if set(other) > set(sets[0])]
        yield from self._further("And, if wanted:", [n for other in wider for n in other if n not in sets[0]], depth)
        for other in (other for other in sets[1:] if other not in wider):
            dropped = [name for name in sets[0] if name not in other]
            further = [name for name in other if name not in sets[0]]
            yield from self._further(f"Or, instead of {' and '.join(dropped)}:", further, depth)

    def _further(self, comment: str, names: Sequence[str], depth: int) -> Iterator[str]:
        """Lines of other inputs, each once."""
        if names:
            yield from _comment(comment, depth)
        for name in dict.fromkeys(names):
            yield f"{_indent(depth)}#{name}: {name}.zarr"


def _spaced(lines: Sequence[str]) -> Iterator[str]:
    """The same with an empty line after each key at the top and what belongs to it."""
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        yield line
        if after.startswith("# ") and not line.startswith("# "):
            yield ""


def _indent(depth: int) -> str:
    return "  " * depth


def _comment(text: str, depth: int) -> list[str]:
    head = f"{_indent(depth)}# "
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)


def _setting(key: str, value: Any) -> str:
    """`key: value` on one line; a value that has no form in YAML is told in a comment."""
    try:
        return write({key: _plain(value)}, flow=True).strip().removeprefix("{").removesuffix("}")
    except ConfigError:
        return f"# {key} is {value!r} unless given"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list, set, frozenset)) else value
