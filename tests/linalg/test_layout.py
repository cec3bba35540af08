"""Views of tiles: the values they show, and that they show the caller's memory."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewise.linalg.blocks import boxes
from tilewise.linalg.layout import arrange, box_of, box_size, merge_tile_axes, one_thread


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape)


def test_arrange_puts_core_axes_first_and_keeps_a_place_for_dims_that_are_absent():
    x = numbered(4, 3, 5)
    view = arrange(x, ("y", "band", "x"), ("band",), ("t", "x", "y"))
    assert view.shape == (3, 1, 5, 4)
    assert torch.equal(view[:, 0], x.permute(1, 2, 0))
    assert view.data_ptr() == x.data_ptr()


def test_arrange_follows_the_order_of_the_core_dims():
    x = numbered(2, 3)
    assert torch.equal(arrange(x, ("a", "b"), ("b", "a"), ()), x.T)
    assert arrange(torch.tensor(7), (), (), ("y", "x")).shape == (1, 1)


@st.composite
def fields(draw):
    """Views with one core axis over the same tile, each in memory of any axis order, broadcast along any axes."""
    tile = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    views = {}
    for name in ("b", "A", "weights")[: draw(st.integers(1, 3))]:
        shape = [2, *[n if draw(st.booleans()) else 1 for n in tile]]
        order = draw(st.permutations(range(len(shape))))
        memory = numbered(*[shape[axis] for axis in order])
        views[name] = memory.permute([order.index(axis) for axis in range(len(shape))])
    views["out"] = numbered(2, *tile)
    return views


@settings(deadline=None)
@given(fields())
def test_merging_shows_the_same_pixels_in_the_same_order(views):
    merged = merge_tile_axes(views, dict.fromkeys(views, 1))
    tile = views["out"].shape[1:]
    small = merged["out"].shape[1:]
    assert math.prod(small) == math.prod(tile)
    for name, view in views.items():
        assert merged[name].dim() == merged["out"].dim()
        assert merged[name].data_ptr() == view.data_ptr()
        expected = view.expand(2, *tile).reshape(2, -1)
        assert torch.equal(merged[name].expand(2, *small).reshape(2, -1), expected)


def test_a_contiguous_tile_has_one_axis():
    merged = merge_tile_axes({"x": numbered(3, 4, 5, 6), "out": numbered(4, 5, 6)}, {"x": 1, "out": 0})
    assert merged["x"].shape == (3, 120)
    assert merged["out"].shape == (120,)


def test_axes_along_which_a_field_is_broadcast_stay_apart():
    points, primitives, out = numbered(3, 2, 8, 1), numbered(3, 2, 1, 4), numbered(2, 8, 4)
    merged = merge_tile_axes({"out": out, "p": points, "s": primitives}, {"out": 0, "p": 1, "s": 1})
    assert merged["out"].shape == (2, 8, 4)


def test_no_tile_axes_is_left_alone():
    assert merge_tile_axes({"x": numbered(3)}, {"x": 1})["x"].shape == (3,)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 40))
def test_boxes_of_a_view_are_its_parts(shape, most):
    full, broadcast = numbered(2, *shape), numbered(2, *[1] * len(shape))
    for box in boxes(shape, most):
        part = box_of(full, 1, box)
        assert torch.equal(part, full[(slice(None), *box)])
        assert part[0].numel() == box_size(box)
        assert box_of(broadcast, 1, box).shape == broadcast.shape


def test_one_thread_is_restored_even_after_an_error():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_thread_leaves_other_threads_alone():
    before = torch.get_num_threads()
    inside, finished, seen = threading.Event(), threading.Event(), []

    def other():
        torch.get_num_threads()  # the first call in a thread takes over the count of the process
        torch.set_num_threads(2)
        inside.set()
        finished.wait(10)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    try:
        thread.start()
        assert inside.wait(10)
        with one_thread():
            finished.set()
            thread.join(10)
        assert seen == [2]
    finally:
        torch.set_num_threads(before)
