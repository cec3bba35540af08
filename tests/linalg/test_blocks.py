"""Blocks of pixels: every pixel is in one of them, and none is larger than a panel."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewise.linalg.blocks import PAD, block_shape, block_width, blocks, box_shape, boxes, padded, vector_axis

shapes = st.lists(st.integers(0, 200), max_size=3).filter(lambda s: math.prod(s) < 2000).map(tuple)


def cover(shape, pieces):
    count = np.zeros(shape, dtype=int)
    for box in pieces:
        count[box] += 1
    return count


@settings(deadline=None)
@given(shapes, st.integers(1, 5000))
def test_boxes_cover_once_and_hold_at_most_so_many(shape, most):
    pieces = list(boxes(shape, most))
    assert (cover(shape, pieces) == 1).all()
    assert all(0 < math.prod(box_shape(box)) <= most for box in pieces)


@settings(deadline=None)
@given(shapes.filter(len), st.integers(1, 40).map(lambda n: n * PAD))
def test_blocks_cover_once_and_fit_a_panel_once_padded(shape, panel):
    pieces = list(blocks(shape, panel))
    assert (cover(shape, pieces) == 1).all()
    for box in pieces:
        *rows, width = box_shape(box)
        assert math.prod(rows) * padded(width) <= panel
        assert all(n <= m for n, m in zip((*rows, padded(width)), block_shape(shape, panel), strict=True))


def test_what_varies_along_the_last_axis_alone_is_gathered_once_a_range():
    ranges = [box[-1] for box in blocks((40, 50, 3000), 16 * 1024)]
    assert sum(a != b for a, b in itertools.pairwise(ranges)) == len(set(map(str, ranges))) - 1


@pytest.mark.parametrize(
    ("shape", "axis"), [((4000,), 0), ((8000, 4000), 1), ((8000, 5), 0), ((5, 8000, 1), 1), ((3, 5), 1), ((0, 3), 1)]
)
def test_vector_axis_wastes_little(shape, axis):
    assert vector_axis(shape, [0] * len(shape)) == axis


def test_vector_axis_is_one_along_which_memory_is_close_if_that_wastes_little():
    assert vector_axis((300, 400), (2, 1)) == 0
    assert vector_axis((300, 400), (1, 1)) == 1
    assert vector_axis((3, 400), (2, 1)) == 1


def test_widths_are_balanced():
    assert block_width((1000, 4097), 65536) == padded(-(-4097 // 2))


def test_an_empty_axis_has_no_blocks():
    assert list(blocks((3, 0), 64)) == list(blocks((0, 3), 64)) == []
