from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import DimensionError, DTypeError
from tilewise.fields import FieldSpec, TileGrid, merged_sizes, result_dtype

NAMES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(NAMES, NAMES)))
def test_result_dtype_is_numpys_and_float64_for_integers(a: str, b: str) -> None:
    expected = np.result_type(np.dtype(a), np.dtype(b))
    assert result_dtype([a, b]) == ("float64" if expected.kind in "biu" else str(expected))


def test_text_and_longdouble_are_no_dtypes_of_fields() -> None:
    for dtype in ("longdouble", "<U4", "object", "datetime64[ns]"):
        with pytest.raises(DTypeError, match="not supported"):
            FieldSpec("x", ("y",), (1,), dtype)


def test_a_field_refuses_repeated_and_missing_names() -> None:
    with pytest.raises(DimensionError, match="repeats"):
        FieldSpec("x", ("y", "y"), (1, 1), "float32")
    with pytest.raises(DimensionError, match="2 axes and 1 dimension names"):
        FieldSpec("x", ("y",), (1, 1), "float32")


def test_unequal_sizes_name_both_fields() -> None:
    fields = [FieldSpec("a", ("y",), (3,), "float32"), FieldSpec("b", ("y",), (4,), "float32")]
    with pytest.raises(DimensionError, match="'y' has different sizes in a and b; got: 3 and 4"):
        merged_sizes(fields)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=3))
def test_the_tiles_of_a_grid_cover_every_cell_once(axes: list[tuple[int, int]]) -> None:
    size, tile = tuple(a for a, _ in axes), tuple(b for _, b in axes)
    grid = TileGrid(tuple("abc"[: len(axes)]), size, tile)
    seen = np.zeros(size, dtype=int)
    for number, found in enumerate(grid):
        assert found.number == number
        seen[found.slices(grid.dims)] += 1
    assert (seen == 1).all()


def test_a_grid_of_more_tiles_than_fit_an_index_costs_nothing() -> None:
    grid = TileGrid(("a", "b"), (10**15, 10**15), (1, 1))
    assert grid.tile(10**30 - 1).start == (10**15 - 1, 10**15 - 1)
