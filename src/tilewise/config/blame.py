"""The key of a job file that an error of planning or running speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from tilewise.config.document import Keys
from tilewise.config.shapes import child_type, long_form, record_of
from tilewise.errors import TilewiseError
from tilewise.job import Job
from tilewise.kernels import Kernel, kernel_class

_TOP = "|".join(f.name for f in fields(Job))
#: A key as errors write it, with dots or as in Python: inputs.x.variable, inputs['x'].
_MENTION = re.compile(rf"(?<![\w./'\"])(?P<top>{_TOP})(?P<rest>(?:\.\w+|\['[^']+'\])*)(?![\w/])")
#: What stands before a key without dots where it is meant as one, and not as an English word.
_ASKED = re.compile(r"(?:set|mend|add|under|of) $")


def blamed_key(error: TilewiseError, value: Any) -> Keys:
    """The key that an error names, () where it names none; one that the job file has comes before one that it lacks.

    What to do names the key most surely; texts before it may hold the names of files.

    >>> job = {"kernel": {"name": "norm", "dim": "band"}, "inputs": {"x": "kernel.zarr"}, "output": "o.zarr"}
    >>> blamed_key(TilewiseError("kernel.zarr is no store", do="check inputs.x.store"), job)
    ('inputs', 'x', 'store')
    """
    found = [keys for text in (error.do, error.what, error.got) for keys in _mentions(text, value)]
    return next((keys for keys in found if _is_there(keys, value)), next(iter(found), ()))


def _mentions(text: str, value: Any) -> Iterator[Keys]:
    for match in _MENTION.finditer(text):
        keys = (match["top"], *re.findall(r"[^.\[\]']+", match["rest"]))
        known = keys[: _known(keys, value)]
        if len(known) > 1 or (len(keys) == 1 and _ASKED.search(text[: match.start()])):
            yield known


def _known(keys: Keys, value: Any) -> int:
    """How many of these keys a job file may have: those of a dataclass or kernel, names of inputs, any dimension."""
    hint: Any = Job
    for count, key in enumerate(keys):
        value = long_form(hint, value)
        hint = kernel_class(value["name"]) if hint is Kernel else hint
        if is_dataclass(hint) and key not in {f.name for f in fields(hint)} | {"name"}:
            return count
        if record_of(hint) and key not in value:
            return count
        value = value.get(key) if isinstance(value, dict) else None
        hint = child_type(hint, str(key))
    return len(keys)


def _is_there(keys: Keys, value: Any) -> bool:
    """Whether the job file has these keys, short forms written out."""
    hint: Any = Job
    for key in keys:
        value = long_form(hint, value)
        if not isinstance(value, dict) or key not in value:
            return False
        hint, value = child_type(hint, str(key)), value[key]
    return True
