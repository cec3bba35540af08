"""What docstrings say of classes and their parameters: typed once there, read here for every door."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PARAMETERS = ("Parameters", "Attributes")
_OUTPUTS = ("Output", "Outputs", "Returns")
#: The line that names parameters: one or several, and a type behind a colon where somebody writes one.
_NAMES = re.compile(r"\*{0,2}(\w+(?: *, *\*{0,2}\w+)*)(?:\s*:.*)?$")
#: The line that names an output: its name, and its dimensions.
_OUTPUT = re.compile(r"(\w+(?: \(.*\))?)(?:\s*:.*)?$")


@dataclass(frozen=True)
class Description:
    """A docstring in its parts, each as running text.

    Attributes
    ----------
    summary
        The first paragraph.
    body
        The paragraphs after it, up to the first section or example.
    parameters
        Text by name, of the sections "Parameters" and "Attributes".
    outputs
        Text by name with dimensions, of the section "Output" or "Outputs".
    """

    summary: str = ""
    body: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def describe(cls: type) -> Description:
    """What the docstring of a class says; parameters that it does not name are looked up in those of its bases.

    >>> class Window:
    ...     '''Weights along a dimension.
    ...
    ...     Parameters
    ...     ----------
    ...     width, height
    ...         Cells that count.
    ...     '''
    >>> describe(Window).summary, describe(Window).parameters["height"]
    ('Weights along a dimension.', 'Cells that count.')
    """
    found = [parse(_docstring(base)) for base in cls.__mro__ if base is not object]
    parameters: dict[str, str] = {}
    for one in found:
        parameters = {**one.parameters, **parameters}
    own = found[0] if found else Description()
    inherited = next((one.outputs for one in found if one.outputs), {})
    return Description(own.summary, own.body, parameters, inherited)


def parse(text: str) -> Description:
    """The parts of a docstring, whatever it is: what is not understood is left out."""
    lines = inspect.cleandoc(text).splitlines()
    heads = [i for i in range(len(lines) - 1) if _is_head(lines, i)]
    opening = _paragraphs(lines[: heads[0] if heads else len(lines)])
    parameters: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for start, stop in zip(heads, [*heads, len(lines)][1:], strict=True):
        section = lines[start + 2 : stop]
        if lines[start].strip() in _PARAMETERS:
            for names, said in _entries(section, _NAMES):
                parameters |= {name.strip(" *"): said for name in names.split(",")}
        elif lines[start].strip() in _OUTPUTS:
            outputs |= dict(_entries(section, _OUTPUT))
    return Description(opening[0] if opening else "", tuple(opening[1:]), parameters, outputs)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a dataclass as a person reads of it; `default` is None where it is `required`."""

    name: str
    type: str
    required: bool
    default: Any
    text: str


def parameters(cls: Any) -> tuple[Parameter, ...]:
    """The parameters of a dataclass.

    >>> from tilewise.descriptions import Parameter
    >>> [(one.name, one.type, one.required) for one in parameters(Parameter)][:2]
    [('name', 'str', True), ('type', 'str', True)]
    """
    said = describe(cls).parameters
    hints = _hints(cls)
    return tuple(
        Parameter(
            name=f.name,
            type=spelled(hints.get(f.name, f.type)),
            required=is_required(f),
            default=None if is_required(f) else default(f),
            text=said.get(f.name, ""),
        )
        for f in fields(cls)
        if f.init
    )


def is_required(f: Field[Any]) -> bool:
    """Whether a field has no default."""
    return f.default is MISSING and f.default_factory is MISSING


def default(f: Field[Any]) -> Any:
    """The default of a field; MISSING where it has none."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def spelled(hint: Any) -> str:
    """A type as a person writes it, aliases written out.

    >>> spelled(tuple[Literal["rank", "norm"], ...]), spelled(int | None)
    ("tuple['rank' | 'norm', ...]", 'int | None')
    """
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, list):  # the parameters of a Callable
        return f"[{', '.join(map(spelled, hint))}]"
    if isinstance(hint, str) or hint is Ellipsis:
        return "..." if hint is Ellipsis else hint
    if origin is Literal:
        return " | ".join(map(repr, args))
    if origin in (Union, UnionType):
        return " | ".join(map(spelled, args))
    if hint is NoneType:
        return "None"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(spelled, args))}]" if origin and args else name


def _hints(cls: Any) -> dict[str, Any]:
    """Types of a class's annotations; none where one of them cannot be resolved here."""
    try:
        return get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


def _docstring(cls: type) -> str:
    """A class's own docstring; not the signature that dataclass writes where there is none."""
    text = vars(cls).get("__doc__")
    return text if isinstance(text, str) and not text.startswith(f"{cls.__name__}(") else ""


def _is_head(lines: Sequence[str], i: int) -> bool:
    return bool(re.fullmatch(r"\S.*", lines[i])) and re.fullmatch(r"-{3,}\s*", lines[i + 1]) is not None


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Paragraphs as running text, up to the first example."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.lstrip().startswith(">>>"):
            break
        if line.strip():
            found[-1].append(line.strip())
        else:
            found.append([])
    return [" ".join(paragraph) for paragraph in found if paragraph]


def _entries(lines: Sequence[str], head: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of a section: names stand at the margin, the text below is indented; anything else ends it."""
    name, said = "", list[str]()
    for line in lines:
        if not line.strip() or line[0].isspace():
            said.append(line.strip())
            continue
        if name:
            yield name, " ".join(part for part in said if part)
        found = head.match(line)
        if found is None:
            return
        name, said = found[1], []
    if name:
        yield name, " ".join(part for part in said if part)
