"""The kernels that there are, as people and programs read of them: all in a table, or one in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from tilewise.descriptions import describe, parameters
from tilewise.kernels import Kernel, kernel_class

WIDTH = 100


def kernels() -> list[dict[str, Any]]:
    """Every kernel by name: its summary, and the sets of inputs that it takes.

    >>> next(one["inputs"] for one in kernels() if one["name"] == "affine_norm")
    [['points', 'primitives'], ['points', 'scale', 'offset']]
    """
    return [
        {"name": name, "summary": describe(cls).summary, "inputs": input_sets(cls)}
        for name, cls in sorted(Kernel.registered().items())
    ]


def kernel(name: str) -> dict[str, Any]:
    """One kernel in full, by its name or "module:Class".

    Raises
    ------
    UnknownKernelError
        There is no such kernel.

    >>> [(one["name"], one["default"]) for one in kernel("norm")["parameters"]]
    [('dim', None), ('ord', 2.0)]
    """
    cls = kernel_class(name)
    said = describe(cls)
    return {
        "name": name,
        "summary": said.summary,
        "description": list(said.body),
        "inputs": input_sets(cls),
        "outputs": dict(said.outputs),
        "parameters": [asdict(one) for one in parameters(cls)] if is_dataclass(cls) else [],
    }


def input_sets(cls: type[Kernel]) -> list[list[str]]:
    """The sets of input names that a kernel takes; none where its class does not say."""
    return [list(names) for names in getattr(cls, "input_sets", ())]


def kernels_text(found: Iterable[Mapping[str, Any]]) -> str:
    """`kernels()` as a table: name, summary, inputs."""
    rows = [(one["name"], [one["summary"] or "no description", _inputs(one["inputs"])]) for one in found]
    wide = max((len(name) for name, _ in rows), default=0) + 2
    return "\n".join(
        name.ljust(wide) + "\n".join(_wrapped(part, " " * wide) for part in parts).lstrip() for name, parts in rows
    )


def kernel_text(found: Mapping[str, Any]) -> str:
    """`kernel()` as a page."""
    paragraphs = [one for one in (found["summary"], *found["description"]) if one]
    parts = [found["name"], *(_wrapped(one) for one in paragraphs), _inputs(found["inputs"])]
    if found["outputs"]:
        parts.append("\n".join(["outputs:", *(_entry(name, text) for name, text in found["outputs"].items())]))
    if found["parameters"]:
        parts.append("\n".join(["parameters:", *(_entry(_typed(one), one["text"]) for one in found["parameters"])]))
    return "\n\n".join(parts)


def _inputs(sets: Iterable[Iterable[str]]) -> str:
    return "inputs: " + ("; or ".join(", ".join(names) for names in sets) or "not said")


def _typed(one: Mapping[str, Any]) -> str:
    return f"{one['name']}: {one['type']}" + (", required" if one["required"] else f" = {one['default']!r}")


def _entry(head: str, text: str) -> str:
    return "\n".join([f"  {head}", *([_wrapped(text, "      ")] if text else [])])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
