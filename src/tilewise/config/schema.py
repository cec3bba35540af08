"""Values of a job file as dataclasses. It and `json_schema` are the only importers of pydantic.

The schema is the dataclasses themselves: `Job`, `Input`, `Output`, `Cluster` and the kernel's own. A parameter is
typed once, there; nothing here names one.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from tilewise.config.document import Keys, dotted, show
from tilewise.config.shapes import file_hints, long_form, misplaced, not_none, record_of
from tilewise.descriptions import is_required
from tilewise.errors import TilewiseError
from tilewise.job import Job
from tilewise.kernels import Kernel, kernel_class


@dataclass(frozen=True)
class Problem:
    """One mistake: under which keys, and the parts of its message."""

    keys: Keys
    what: str
    got: object = ""
    expected: object = ""
    do: str = ""
    cause: Exception | None = None


def build_job(given: Any) -> tuple[Job | None, tuple[Problem, ...]]:
    """The job that plain values describe, and every mistake in them; None where there is one."""
    builder = _Builder()
    return builder.record(Job, given, ()), tuple(builder.problems)


class _Builder:
    """Builds dataclasses from plain values; what has a mistake becomes None, and the mistake is noted."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def note(
        self,
        keys: Keys,
        what: str,
        got: object = "",
        expected: object = "",
        do: str = "",
        cause: Exception | None = None,
    ) -> None:
        self.problems.append(Problem(keys, what, got, expected, do, cause))

    def value(self, hint: Any, given: Any, at: Keys) -> Any:
        """A value of that type."""
        if hint is Kernel:
            return self.kernel(long_form(Kernel, given), at)
        inner = not_none(hint)
        if is_dataclass(inner) and not (given is None and inner is not hint):
            return self.record(inner, long_form(inner, given), at)
        record = record_of(hint)
        if record and isinstance(given, dict):
            return {name: self.record(record, long_form(record, item), (*at, name)) for name, item in given.items()}
        return self.leaf(hint, given, at)

    def kernel(self, given: Any, at: Keys) -> Kernel | None:
        """The kernel of the class that `name` names."""
        keys = (*at, "name")
        if not isinstance(given, dict):
            self.not_a_mapping(given, at, "name, and the kernel's parameters")
            return None
        name = given.get("name")
        if not isinstance(name, str):
            what = "not the name of a kernel" if "name" in given else "the key is missing"
            known = ", ".join(sorted(Kernel.registered()))
            self.note(keys, what, show(name) if "name" in given else "", known, f"mend {dotted(keys)}")
            return None
        try:
            cls = kernel_class(name)
        except TilewiseError as error:
            self.refused(error, keys, _ON_PATH if ":" in name else "")
        except Exception as error:  # noqa: BLE001 - importing a user's module runs whatever is in it
            self.note(keys, f"importing {name!r} fails", _told(error), do="mend the module", cause=error)
        else:
            if is_dataclass(cls):
                return self.record(cls, {k: v for k, v in given.items() if k != "name"}, at)
            self.note(keys, f"kernel {name!r} is no dataclass", do="decorate it with @dataclass(frozen=True)")
        return None

    def record(self, cls: Any, given: Any, at: Keys) -> Any:
        """A dataclass from a mapping of its fields."""
        if not isinstance(given, dict):
            self.not_a_mapping(given, at, _names(cls))
            return None
        try:
            hints = file_hints(cls)
        except NameError as error:
            self.note(at, f"a type of {cls.__name__} is not known", error, do="import it at the top of its module")
            return None
        before = len(self.problems)
        self.check_keys(cls, given, at)
        known = {f.name for f in fields(cls) if f.init}
        values = {key: self.value(hints[key], item, (*at, key)) for key, item in given.items() if key in known}
        if len(self.problems) > before:
            return None
        try:
            return cls(**values)
        except (TilewiseError, ValueError, TypeError) as error:
            self.refused(error, (*at, *_blamed(error, given, at)))
            return None

    def not_a_mapping(self, given: Any, at: Keys, keys: str) -> None:
        self.note(at, "not a mapping", show(given), f"the keys {keys}", _remedy(at, given, ()))

    def check_keys(self, cls: Any, given: Mapping[str, Any], at: Keys) -> None:
        """Note keys that are unknown, and keys that are missing unless a misspelling explains it."""
        init = [f for f in fields(cls) if f.init]
        meant = set()
        for key in given:
            if key not in {f.name for f in init}:
                near = difflib.get_close_matches(key, [f.name for f in init], n=1)
                meant |= set(near)
                near = near or misplaced(cls, given, key)
                do = f"write {near[0]} instead" if near else "remove it"
                self.note((*at, key), "there is no such key", expected=_names(cls), do=do)
        for f in init:
            if is_required(f) and f.name not in given and f.name not in meant:
                keys = (*at, f.name)
                self.note(keys, "the key is missing", do=f"add {dotted(keys)}")

    def refused(self, error: Exception, keys: Keys, do: str = "") -> None:
        """Note what a dataclass said of its own values."""
        if isinstance(error, TilewiseError):
            self.note(keys, error.what, error.got, error.expected, do or error.do, error)
        else:
            self.note(keys, "the value is refused", _told(error), do=do or f"mend {dotted(keys)}", cause=error)

    def leaf(self, hint: Any, given: Any, at: Keys) -> Any:
        """A value that is no record: what the same in JSON would be, strictly, for a field of that type."""
        try:
            adapter = TypeAdapter(hint, config=STRICT)
        except PydanticUserError as error:
            self.note(at, "a job file cannot say this parameter", got=f"type {hint}", do="leave it out", cause=error)
            return None
        try:
            return adapter.validate_json(json.dumps(given))
        except ValidationError as error:
            refusal = error
        try:
            return adapter.validate_json(json.dumps(_numbers(given)))
        except ValidationError:
            self.problems.extend(_leaf_problems(refusal, given, at))
            return None


#: JSON's own types, nothing converted.
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
_ON_PATH = "check the spelling, and put the folder of the module on PYTHONPATH: the job file's own is not searched"
_INFINITE = re.compile(r"[+-]?\.?inf(inity)?", re.IGNORECASE)


def _numbers(given: Any) -> Any:
    """The same with infinities as numbers that YAML takes for text, and whole numbers written as floats whole."""
    if isinstance(given, dict):
        return {key: _numbers(item) for key, item in given.items()}
    if isinstance(given, list):
        return [_numbers(item) for item in given]
    if isinstance(given, str) and _INFINITE.fullmatch(given):
        return -math.inf if given.startswith("-") else math.inf
    return int(given) if isinstance(given, float) and given.is_integer() else given


#: What a job file calls the types that pydantic expects, by the kind of its error.
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "none_required": "null",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "needs_python_object": "what only Python can give",
}


def _leaf_problems(refusal: ValidationError, given: Any, at: Keys) -> Iterator[Problem]:
    """One problem for each place; of the branches of a union only those that got furthest say something."""
    expected: dict[Keys, list[str]] = {}
    for item in refusal.errors(include_url=False):
        word = _KINDS.get(item["type"]) or item.get("ctx", {}).get("expected") or item["msg"]
        expected.setdefault(_within(given, item["loc"]), []).append(word)
    for keys, words in expected.items():
        if not any(other != keys and other[: len(keys)] == keys for other in expected):
            yield _leaf_problem((*at, *keys), _item(given, keys), list(dict.fromkeys(words)))


def _leaf_problem(keys: Keys, value: Any, words: Sequence[str]) -> Problem:
    return Problem(keys, "not a value for this key", show(value), " or ".join(words), _remedy(keys, value, words))


def _item(given: Any, keys: Keys) -> Any:
    for key in keys:
        given = given[key]
    return given


def _within(given: Any, loc: Sequence[str | int]) -> Keys:
    """The part of pydantic's location that is in the value: it also names the branches of unions."""
    keys: list[str | int] = []
    for part in loc:
        inside = part in given if isinstance(given, dict) else isinstance(given, list) and part in range(len(given))
        if inside:
            keys.append(part)
            given = given[part]
    return tuple(keys)


def _remedy(keys: Keys, value: Any, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", " ".join(words)), n=1)
    if near:
        return f"write {near[0]} instead"
    if "text" in words and isinstance(value, bool | int | float):
        return "put it in quotes, if it is meant as text"
    if isinstance(value, str) and {"a number", "a whole number"} & set(words) and re.fullmatch(r"[\d.eE+-]+", value):
        return "write it without quotes"
    if "a list" in words and not isinstance(value, dict | list):
        return f"write it as a list: [{value}]"
    if value is None:
        return "give it a value, or remove the key if it has a default"
    return f"mend {dotted(keys) or 'the file'}"


def _blamed(error: Exception, given: Mapping[str, Any], at: Keys) -> Keys:
    """The key that an error speaks of, as far as its words tell: dotted, or by its bare name."""
    texts = [error.what, error.got, error.do] if isinstance(error, TilewiseError) else [str(error)]
    ways = list(_ways(given))
    depths = range(max(map(len, ways), default=0), 0, -1)
    # With what stands above it first: a bare name may be no more than a word.
    found = (
        keys
        for begin, depth, text, keys in product(dict.fromkeys((at, ())), depths, texts, ways)
        if len(keys) == depth and _speaks_of((*begin, *keys), text)
    )
    return next(found, ())


def _speaks_of(keys: Keys, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(dotted(keys))}(?!\.?\w)", text) is not None


def _ways(given: Mapping[str, Any]) -> Iterator[Keys]:
    for key, item in given.items():
        yield (key,)
        if isinstance(item, dict):
            yield from ((key, *rest) for rest in _ways(item))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _names(cls: Any) -> str:
    return ", ".join(f.name for f in fields(cls) if f.init) or "none"
