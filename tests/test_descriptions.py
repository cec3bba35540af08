"""Descriptions are read from docstrings, whatever those are, and every parameter of this package has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise
from tilewise.descriptions import describe, parameters, parse, spelled
from tilewise.kernels import Kernel
from user_kernels import Everything, Fragile, Total

BUILT_IN = [cls for cls in Kernel.registered().values() if cls.__module__.startswith("tilewise.kernels.")]
TEXT = """\
    Weights along a dimension,
    on two lines.

    A paragraph
    more.

    And one more, before an example:

    >>> 1
    1

    Parameters
    ----------
    width, height : int
        Cells that count.

        Both of them.
    name
        A name: with a colon.
    *args
        The rest.
    empty
    Stray words that name nothing.
    lost
        Never read.

    Outputs
    -------
    solution (unknown, *tile)
        In units of b.
    status
        uint8.

    Raises
    ------
    ValueError
        Never.
    """


def test_the_parts_of_a_docstring() -> None:
    found = parse(TEXT)
    assert found.summary == "Weights along a dimension, on two lines."
    assert found.body == ("A paragraph more.", "And one more, before an example:")
    assert found.parameters == {
        "width": "Cells that count. Both of them.",
        "height": "Cells that count. Both of them.",
        "name": "A name: with a colon.",
        "args": "The rest.",
        "empty": "",
    }
    assert found.outputs == {"solution (unknown, *tile)": "In units of b.", "status": "uint8."}


@pytest.mark.parametrize("cls", [*BUILT_IN, tilewise.Job, tilewise.Input, tilewise.Output, tilewise.Cluster])
def test_everything_of_this_package_is_described(cls: Any) -> None:
    assert describe(cls).summary.endswith(".")
    assert not [one.name for one in parameters(cls) if not one.text]
    known = {one.name for one in parameters(cls)}
    assert set(describe(cls).parameters) <= known, "the docstring describes what there is not"


@pytest.mark.parametrize("cls", BUILT_IN)
def test_every_kernel_of_this_package_describes_its_outputs(cls: type[Kernel]) -> None:
    assert describe(cls).outputs
    assert all(describe(cls).outputs.values())


@given(st.text() | st.lists(st.sampled_from([*TEXT.splitlines(), "", "---", "    ---", ">>>"])).map("\n".join))
def test_any_text_is_a_docstring(text: str) -> None:
    found = parse(text)
    assert "\n" not in found.summary + "".join(found.parameters.values())
    assert all(name.isidentifier() or name[:1].isdigit() for name in found.parameters)


def test_a_class_without_a_docstring_has_no_description() -> None:
    @dataclass(frozen=True)
    class Silent:
        width: int = 3

    assert Silent.__doc__ == "Silent(width: int = 3)" or Silent.__doc__ == "Silent(width: 'int' = 3)"
    assert describe(Silent).summary == ""
    assert [one.text for one in parameters(Silent)] == [""]


def test_what_a_class_does_not_say_its_bases_may() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Base:
        """A base.

        Parameters
        ----------
        dim
            The dimension.
        most
            The largest.
        """

        dim: str
        most: float

    @dataclass(frozen=True, kw_only=True)
    class Derived(Base):
        """A derived one.

        Parameters
        ----------
        most
            Another text.
        """

        least: float = 0.0

    assert describe(Derived).summary == "A derived one."
    assert [(one.name, one.text) for one in parameters(Derived)] == [
        ("dim", "The dimension."),
        ("most", "Another text."),
        ("least", ""),
    ]


def test_parameters_have_types_and_defaults() -> None:
    found = {one.name: one for one in parameters(Everything)}
    assert (found["dim"].type, found["dim"].required, found["dim"].default) == ("str", True, None)
    assert (found["factor"].type, found["factor"].required, found["factor"].default) == ("float", False, 1.0)
    assert (found["mode"].type, found["mode"].default) == ("'fast' | 'safe'", "fast")
    assert (found["table"].type, found["table"].default) == ("Mapping[str, float]", {})
    assert describe(Fragile).summary == "Raises on a tile in which any x is above `most`."
    assert [one.name for one in parameters(Total)] == ["dim", "factor"]


def test_a_type_that_is_not_known_here_stays_as_it_is_written() -> None:
    @dataclass(frozen=True)
    class Odd:
        width: Nowhere = 3  # type: ignore[name-defined] # noqa: F821
        hidden: int = field(default=1, init=False)

    assert [(one.name, one.type) for one in parameters(Odd)] == [("width", "Nowhere")]


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "int"),
        (int | None, "int | None"),
        (Literal["a", 2], "'a' | 2"),
        (tuple[float, ...], "tuple[float, ...]"),
        (Mapping[str, list[int]], "Mapping[str, list[int]]"),
        (Any, "Any"),
        (Callable[[int, str], None], "Callable[[int, str], None]"),
        (None, "None"),
    ],
)
def test_types_are_spelled_as_a_person_writes_them(hint: Any, text: str) -> None:
    assert spelled(hint) == text
