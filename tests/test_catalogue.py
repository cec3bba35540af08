"""Kernels as people and programs read of them, from what they are."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from tilewise import catalogue, cf
from tilewise.errors import UnknownKernelError
from tilewise.kernels import Kernel

BUILT_IN = [name for name, cls in Kernel.registered().items() if cls.__module__.startswith("tilewise.kernels.")]


def test_the_table_has_every_kernel() -> None:
    text = catalogue.kernels_text(catalogue.kernels())
    for name in BUILT_IN:
        assert f"\n{name} " in f"\n{text}"
    assert "inputs: points, primitives; or points, scale, offset" in text
    assert max(map(len, text.splitlines())) <= catalogue.WIDTH


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_page_has_everything(name: str) -> None:
    found = catalogue.kernel(name)
    text = catalogue.kernel_text(found)
    cls = Kernel.registered()[name]
    for parameter in fields(cls):  # type: ignore[arg-type]
        assert f"\n  {parameter.name}: " in text
    for output in found["outputs"]:
        assert f"\n  {output}\n" in text
    assert found["inputs"] == [list(names) for names in cls.input_sets]
    assert max(map(len, text.splitlines())) <= catalogue.WIDTH
    assert json.loads(cf.to_json(found))["name"] == name


def test_a_kernel_of_ones_own_is_shown_as_far_as_it_says() -> None:
    found = catalogue.kernel("user_kernels:Everything")
    assert found["outputs"] == {}
    assert "parameters:\n  dim: str, required\n  factor: float = 1.0\n" in catalogue.kernel_text(found)
    assert json.loads(cf.to_json(found))["parameters"][-2]["default"] == {"width": 3, "taper": 0.5}
    assert catalogue.kernel_text(catalogue.kernel("user_kernels:Undecorated")).endswith("inputs: not said")


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(UnknownKernelError, match="write 'norm' instead"):
        catalogue.kernel("nrom")
