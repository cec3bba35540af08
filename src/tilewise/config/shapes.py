"""Which keys a job file has, and what stands under each: types of the dataclasses' fields, and short forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tilewise.descriptions import is_required
from tilewise.kernels import Kernel
from tilewise.sources import Input

#: Types of keys for which Python may give more than a job file can: data in memory has no form in YAML.
_IN_A_FILE = {(Input, "store"): str}


def file_hints(cls: Any) -> dict[str, Any]:
    """Types of the keys of a dataclass, as a job file can give them."""
    found = get_type_hints(cls, include_extras=True)
    return found | {key: hint for (owner, key), hint in _IN_A_FILE.items() if issubclass(cls, owner)}


def misplaced(cls: Any, given: Mapping[str, Any], key: str) -> list[str]:
    """Where a key would be right that stands one level too high, dotted."""
    found = []
    for name, hint in file_hints(cls).items():
        child = _kernel_of(given.get(name)) if hint is Kernel else not_none(hint)
        if is_dataclass(child) and key in {f.name for f in fields(child)}:
            found.append(f"{name}.{key}")
    return found


def _kernel_of(given: Any) -> type[Kernel] | None:
    """The class of a registered kernel that a job file names."""
    name = long_form(Kernel, given)
    return Kernel.registered().get(str(name.get("name"))) if isinstance(name, dict) else None


def child_type(hint: Any, key: str) -> Any:
    """Type of what stands under a key of a value of type `hint`, as far as it is a dataclass or leads to one."""
    if is_dataclass(hint):
        return not_none(get_type_hints(hint).get(key))
    return record_of(hint)


def long_form(hint: Any, value: Any) -> Any:
    """A plain value for a dataclass with one required field stands for that field, and a kernel's name for it."""
    if hint is Kernel and isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) or value is None or not is_dataclass(hint):
        return value
    short = short_field(hint)
    return {short.name: value} if short else value


def short_field(cls: Any) -> Field[Any] | None:
    """The one required field of a dataclass, for which a plain value may stand; None where there is not just one."""
    required = [f for f in fields(cls) if is_required(f)]
    return required[0] if len(required) == 1 else None


def not_none(hint: Any) -> Any:
    """`X` of `X | None`."""
    rest = [arg for arg in get_args(hint) if arg is not NoneType]
    return rest[0] if len(rest) == 1 and NoneType in get_args(hint) else hint


def record_of(hint: Any) -> Any:
    """The dataclass of a mapping of dataclasses, None for any other type."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping) and is_dataclass(args[1]):
        return args[1]
    return None
