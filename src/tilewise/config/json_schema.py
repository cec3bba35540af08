"""A JSON Schema (2020-12) of job files, for editors: from the dataclasses and their docstrings alone."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from tilewise.config.schema import STRICT
from tilewise.config.shapes import file_hints, not_none, record_of, short_field
from tilewise.descriptions import default, describe, is_required
from tilewise.errors import ConfigError
from tilewise.job import Job
from tilewise.kernels import Kernel, kernel_class

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
#: Text that a job file takes for a number: what YAML 1.2 would have written .inf.
_INFINITE = {"type": "string", "pattern": r"^[+-]?\.?[iI][nN][fF]([iI][nN][iI][tT][yY])?$"}
#: A kernel that somebody brings; its parameters are known once its module is imported.
_USERS = {"type": "string", "pattern": ":"}
_NOTHING: Schema = {"not": {}}
_REFS = "#/$defs/{model}"
#: Classes within lists and mappings: pydantic reads those, and knows no short forms.
_INNER = "items.{model}"


def json_schema(name: str | None = None) -> Schema:
    """The schema of a job file; of one kernel alone where `name` says which, "module:Class" included.

    Raises
    ------
    UnknownKernelError
        There is no such kernel.
    ConfigError
        Its class is no dataclass.

    >>> sorted(json_schema("norm")["properties"])[:3]
    ['cluster', 'device', 'inputs']
    >>> json_schema("norm")["$defs"]["norm"]["properties"]["ord"]["default"]
    2.0
    """
    classes = {name: kernel_class(name)} if name else dict(sorted(Kernel.registered().items()))
    if name and not is_dataclass(classes[name]):
        raise ConfigError(f"kernel {name!r} is no dataclass", do="decorate it with @dataclass(frozen=True)")
    writer = _Writer({known: cls for known, cls in classes.items() if is_dataclass(cls)}, open=name is None)
    job = writer.record(Job)
    return {"$schema": _DRAFT, "title": "tilewise job", **job, "$defs": dict(sorted(writer.defs.items()))}


@dataclass(frozen=True)
class _Writer:
    """Writes schemas, and collects those of classes under `defs`."""

    kernels: Mapping[str, type[Kernel]]
    open: bool
    defs: dict[str, Schema] = field(default_factory=dict)

    def value(self, hint: Any) -> Schema:
        """What a job file can give for a type: as `schema._Builder.value` reads it."""
        if hint is Kernel:
            return self.kernel()
        inner = not_none(hint)
        if is_dataclass(inner):
            found = self.reference(inner)
            return found if inner is hint else {"anyOf": [found, {"type": "null"}]}
        record = record_of(hint)
        if record:
            return {"type": "object", "additionalProperties": self.reference(record)}
        return self.leaf(hint)

    def reference(self, cls: Any) -> Schema:
        """A dataclass, or the plain value that may stand for its one required field."""
        if cls.__name__ not in self.defs:
            self.defs[cls.__name__] = {}  # a class that holds itself
            self.defs[cls.__name__] = self.record(cls)
        whole: Schema = {"$ref": _REFS.format(model=cls.__name__)}
        short = short_field(cls)
        if short is None:
            return whole
        plainly = self.value(file_hints(cls)[short.name])
        if plainly.get("type") not in ("string", "integer", "boolean", "array"):
            plainly = {"allOf": [plainly], "not": {"type": ["object", "null"]}}
        return {"anyOf": [plainly, whole]}

    def record(self, cls: Any, first: Mapping[str, Schema] | None = None) -> Schema:
        """A mapping of the fields of a dataclass, after these keys."""
        hints, said = file_hints(cls), describe(cls)
        init = [f for f in fields(cls) if f.init]
        properties = dict(first or {})
        for f in init:
            properties[f.name] = self.value(hints[f.name]) | _note("description", said.parameters.get(f.name))
            if not is_required(f):
                properties[f.name] |= _default(default(f))
        return {
            **_note("description", said.summary),
            "type": "object",
            "properties": properties,
            "required": [*(first or ()), *(f.name for f in init if is_required(f))],
            "additionalProperties": False,
        }

    def kernel(self) -> Schema:
        """One of the kernels by `name`; by its name alone where it needs no parameter; or one that somebody brings."""
        for name, cls in self.kernels.items():
            const = {"const": name, **_note("description", describe(cls).summary)}
            self.defs[name] = self.record(cls, {"name": const})
        forms: list[Schema] = [{"$ref": _REFS.format(model=name)} for name in self.kernels]
        alone = [name for name, cls in self.kernels.items() if not self.defs[name]["required"][1:]]
        if alone:
            forms.append({"enum": alone})
        if self.open:
            forms += [{"type": "object", "properties": {"name": _USERS}, "required": ["name"]}, _USERS]
        return {"oneOf": forms}

    def leaf(self, hint: Any) -> Schema:
        """What pydantic says of a type, with what a job file takes beyond it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a branch that only Python can give
                found = TypeAdapter(hint, config=STRICT).json_schema(ref_template=_REFS.format(model=_INNER))
        except (PydanticUserError, PydanticInvalidForJsonSchema):
            return _NOTHING
        inner = found.pop("$defs", {})
        self.defs.update({_INNER.format(model=model): _numbers(schema) for model, schema in inner.items()})
        return dict(_numbers(found))


def _numbers(found: Any) -> Any:
    """The same with infinities as text where numbers may stand."""
    if isinstance(found, list):
        return [_numbers(item) for item in found]
    if not isinstance(found, dict):
        return found
    if found.get("type") == "number":
        return {"anyOf": [found, _INFINITE]}
    return {key: _numbers(item) for key, item in found.items()}


def _note(key: str, text: str | None) -> Schema:
    return {key: text} if text else {}


def _default(value: Any) -> Schema:
    """The default, where JSON has a form for it; infinities as the text that a job file takes for them."""
    try:
        return {"default": json.loads(json.dumps(_plain(value), allow_nan=False))}
    except (TypeError, ValueError):
        return {}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
