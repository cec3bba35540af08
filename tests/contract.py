"""What a kernel's test file offers to the contract tests: EXAMPLES, each small, with its tile dimensions streamable."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.kernels.base import Kernel

Arrays = Mapping[str, np.ndarray[Any, Any]]


def no_bound(name: str, outputs: Arrays) -> float:
    """Outputs are the same bit for bit whatever the tile."""
    return 0.0


@dataclass(frozen=True)
class Example:
    """A kernel with (dims, array) pairs, and by how much an output may differ between two tilings of one job.

    `bound` maps the name of an output and all outputs of one tiling to the largest absolute difference, as an array
    or a number; 0 means bitwise.
    """

    kernel: Kernel
    fields: Mapping[str, tuple[Sequence[str], Any]]
    bound: Callable[[str, Arrays], Any] = no_bound


def examples() -> list[Example]:
    """The EXAMPLES of every file tests/kernels/test_*.py."""
    found: list[Example] = []
    for path in sorted((Path(__file__).parent / "kernels").glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(f"contract_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.extend(getattr(module, "EXAMPLES", ()))
    return found


def agree(n: str, one: Any, other: Any, bound: Any) -> None:
    """Equal bit for bit where the bound is 0, else within it; NaN stands where NaN stands."""
    if np.ndim(bound) == 0 and bound == 0:
        assert one.tobytes() == other.tobytes(), n
        return
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    with np.errstate(invalid="ignore"):
        assert (np.isnan(one) | (one == other) | (np.abs(one - other) <= bound)).all(), n
