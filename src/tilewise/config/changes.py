"""Changes to a job file from the command line, and where a key then stands: in the file, or in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewise import places
from tilewise.config.document import Document, Keys
from tilewise.config.shapes import child_type, long_form
from tilewise.errors import ConfigError
from tilewise.job import Job


@dataclass(frozen=True)
class Change:
    """One override: where, to what, and how it was written."""

    keys: tuple[str, ...]
    value: Any
    flag: str

    @classmethod
    def parse(cls, override: str) -> Change:
        """An override such as "kernel.ord=1".

        Raises
        ------
        ConfigError
            It is no key with a value in YAML.
        """
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


def changed(value: Any, changes: Sequence[Change]) -> Any:
    """The value of a job file after these changes."""
    for change in changes if isinstance(value, dict) else ():
        value = _put(Job, value, change.keys, change.value)
    return value


def _put(hint: Any, value: Any, keys: tuple[str, ...], new: Any) -> Any:
    """`value` with `new` under these keys; absent mappings are made, and short forms written out."""
    if not keys:
        return new
    long = long_form(hint, value)
    whole = long if isinstance(long, dict) else {}
    return {**whole, keys[0]: _put(child_type(hint, keys[0]), whole.get(keys[0]), keys[1:], new)}


@dataclass(frozen=True)
class Place:
    """Where a key stands: the number of the change that set it, 0 for the file, and its line and column there."""

    change: int
    position: tuple[int, int]
    text: str


def find_place(keys: Keys, document: Document, changes: Sequence[Change]) -> Place:
    """Where a key stands, or the nearest one above it."""
    for number, change in reversed(list(enumerate(changes, start=1))):
        if change.explains(keys):
            return Place(number, (0, 0), change.flag)
    line, column = document.place(keys)
    return Place(0, (line, column), f"{document.name}:{line}:{column}")
