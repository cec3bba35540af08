"""YAML text: its plain value, and where in it every key stands. The only importer of ruamel.yaml."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import RepresenterError, RoundTripRepresenter

from tilewise.errors import ConfigError

#: The way from the top of a document to a value: keys of mappings, indices of lists.
Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A YAML text that has been read: mappings with text keys, lists, text, numbers, true, false and null.

    >>> document = Document.parse("kernel:\\n  name: norm\\n  ord: 1e-3", "job.yaml")
    >>> document.value
    {'kernel': {'name': 'norm', 'ord': 0.001}}
    >>> document.place(("kernel", "ord"))
    (3, 3)
    """

    name: str
    value: Any
    _node: Node

    @classmethod
    def parse(cls, text: str, name: str) -> Document:
        """Read a text; `name` stands for it in messages.

        Raises
        ------
        ConfigError
            It is not YAML 1.2, is empty, or uses what a job file has no use for; the message starts with
            name:line:column.
        """
        yaml = YAML(typ="safe", pure=True)
        try:
            node = yaml.compose(text)
            if node is None:
                raise ConfigError(f"{name}:1:1: there is nothing in it", do="write a job there")
            return cls(name, _Reader(name, yaml.constructor).plain(node), node)
        except ReaderError as error:
            place = position(text[: error.position])
            what = f"{name}:{place}: character {ord(text[error.position]):#04x} is not allowed in YAML"
            raise ConfigError(what, do="remove it") from error
        except MarkedYAMLError as error:
            raise _syntax_error(name, error) from error
        except (YAMLError, RecursionError) as error:
            raise ConfigError(f"{name}:1:1: not YAML", got=error, do="mend the syntax") from error

    def place(self, keys: Keys) -> tuple[int, int]:
        """Line and column of a key, or of the nearest one above it that is there."""
        node, mark = self._node, self._node.start_mark
        for key in keys:
            found = _child(node, key)
            if found is None:
                break
            mark, node = found
        return mark.line + 1, mark.column + 1


def write(value: Any, *, flow: bool = False) -> str:
    """Plain data as YAML that reads back equal; under `flow` on one line.

    Raises
    ------
    ConfigError
        The data is not plain.

    >>> print(write({"tile": {"y": 512}, "sidecar": "12:00:00"}), end="")
    tile:
      y: 512
    sidecar: 12:00:00
    """
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1 << 20
    yaml.default_flow_style = flow
    out = io.StringIO()
    try:
        yaml.dump(value, out)
    except RepresenterError as error:
        raise ConfigError("a value has no form in YAML", got=error, do="leave it out") from error
    return out.getvalue()


class _Representer(RoundTripRepresenter):
    """Writes text with line breaks and the like in double quotes: ruamel.yaml loses some of them in other styles."""

    def represent_str(self, text: str) -> ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Representer.add_representer(str, _Representer.represent_str)


def show(value: Any) -> str:
    """A value as a message shows it: short, and with its kind, since quotes make all the difference.

    >>> show("3"), show(3), show(True)
    ('"3" (text)', '3', 'true')
    """
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} (text)" if isinstance(value, str) else text


def dotted(keys: Keys) -> str:
    """Keys as a message names them.

    >>> dotted(("kernel", "diagnostics", 0))
    'kernel.diagnostics.0'
    """
    return ".".join(map(str, keys))


def position(before: str) -> str:
    """line:column of what follows a piece of text.

    >>> position("a: 1\\nb")
    '2:2'
    """
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _syntax_error(name: str, error: MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
    tab = "\\t" in (error.problem or "")
    return ConfigError(
        f"{name}:{place}: not YAML: {error.problem}{' ' + error.context if error.context else ''}",
        do="indent with spaces, not tabs" if tab else "mend the syntax there or just above",
    )


_MERGE = "tag:yaml.org,2002:merge"

#: Constructors of scalars by tag; none for text. The core schema of YAML 1.2 has no dates: they stay text.
_SCALARS = {
    "null": "construct_yaml_null",
    "bool": "construct_yaml_bool",
    "int": "construct_yaml_int",
    "float": "construct_yaml_float",
    "str": "",
    "timestamp": "",
    "value": "",
}


def _child(node: Node, key: str | int) -> tuple[Any, Node] | None:
    """Mark of a key or item right below a node, and the node of its value."""
    if isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark, node.value[key]
    if not isinstance(node, MappingNode):
        return None
    for name, value in node.value:
        if name.tag != _MERGE and name.value == key:
            return name.start_mark, value
    merged = (_child(part, key) for name, value in node.value if name.tag == _MERGE for part in _parts(value))
    return next((found for found in merged if found), None)


def _parts(node: Node) -> list[Node]:
    return list(node.value) if isinstance(node, SequenceNode) else [node]


@dataclass(frozen=True)
class _Reader:
    """From YAML nodes to plain values."""

    name: str
    constructor: Any

    def plain(self, node: Node, inside: tuple[Node, ...] = ()) -> Any:
        if any(node is other for other in inside):
            raise self.error(node, "this alias contains itself", do="write it out")
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, ScalarNode) and kind in _SCALARS:
            return self.scalar(node, _SCALARS[kind])
        if isinstance(node, SequenceNode) and kind == "seq":
            return [self.plain(item, (*inside, node)) for item in node.value]
        if isinstance(node, MappingNode) and kind == "map":
            return self.mapping(node, (*inside, node))
        raise self.error(node, f"the tag {node.tag} has no meaning in a job file", do="remove it")

    def scalar(self, node: ScalarNode, construct: str) -> Any:
        try:
            return getattr(self.constructor, construct)(node) if construct else node.value
        except ValueError as error:
            raise self.error(node, "this number cannot be read", got=error, do="write it with fewer digits") from error

    def mapping(self, node: MappingNode, inside: tuple[Node, ...]) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for part in _parts(value):
                    merged = {**self.merged(part, inside), **merged}
                continue
            name = self.plain(key, inside)
            if not isinstance(name, str):
                raise self.error(key, "a key is not text", got=show(name), do="put it in quotes")
            if name in own:
                raise self.error(key, f"{name}: the key is there twice", do="keep one of the two")
            own[name] = self.plain(value, inside)
        return {**merged, **own}

    def merged(self, node: Node, inside: tuple[Node, ...]) -> dict[str, Any]:
        found = self.plain(node, inside)
        if not isinstance(found, dict):
            raise self.error(node, "<< can only merge mappings", got=show(found), do="give it an alias of a mapping")
        return found

    def error(self, node: Node, what: str, got: object = "", do: str = "") -> ConfigError:
        mark = node.start_mark
        return ConfigError(f"{self.name}:{mark.line + 1}:{mark.column + 1}: {what}", got=got, do=do)
