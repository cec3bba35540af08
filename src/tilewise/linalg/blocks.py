"""Which pixels are worked on together: integer arithmetic on shapes, without torch, so that planning is quick."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

#: Elementwise loops are vectorised in units that divide this; a panel padded to it never has a scalar tail, and
#: the scalar tail of a vector loop is where bits depend on position.
PAD = 64
#: Rows of a block, where there are as many: what varies along one axis alone is gathered once for all of them.
ROWS = 16
#: A gather holds as many components as fit into so many panels: a pass over memory for each component alone
#: would read every cache line of a field whose components lie side by side again and again.
GATHER = 4
#: Panels that a norm works in, by their use.
FLOAT_PANELS = ("values", "imaginary", "total", "scale", "scaled")
MASK_PANELS = ("large", "small")
#: Bytes of the object that is a view of one component, at most.
VIEW_BYTES = 1024


def padded(count: int) -> int:
    """`count` rounded up to a multiple of `PAD`.

    >>> padded(1), padded(64), padded(65)
    (64, 64, 128)
    """
    return -(-count // PAD) * PAD


def boxes(shape: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `most` elements that cover `shape` in C order; last axes are kept whole where they fit.

    >>> [tuple((s.start, s.stop) for s in box) for box in boxes((3, 4), 8)]
    [((0, 2), (0, 4)), ((2, 3), (0, 4))]
    >>> len(list(boxes((3, 4), 3)))
    6
    """
    step: list[int] = []
    room = most
    for size in reversed(shape):
        step.append(max(1, min(size, room)))
        room //= step[-1]
    step.reverse()
    starts = [range(0, size, width) for size, width in zip(shape, step, strict=True)]
    for corner in product(*starts):
        yield tuple(slice(a, min(a + width, size)) for a, width, size in zip(corner, step, shape, strict=True))


def box_shape(box: Sequence[slice]) -> tuple[int, ...]:
    """Size of a box along each axis."""
    return tuple(s.stop - s.start for s in box)


def vector_axis(shape: Sequence[int], close: Sequence[int]) -> int:
    """Axis along which panels are padded: of those that waste little, the one along which most memory is close.

    `close` counts for each axis the fields that are; between equals the last axis is taken.

    >>> vector_axis((8000, 4000), (0, 1)), vector_axis((8000, 5), (0, 1)), vector_axis((300, 400), (2, 1))
    (1, 0, 0)
    """
    used = [size / max(PAD, padded(size)) for size in shape]
    fair = [axis for axis in range(len(shape)) if 2 * used[axis] >= max(used)]
    return max(fair, key=lambda axis: (close[axis], axis))


def block_width(shape: Sequence[int], panel: int) -> int:
    """Padded pixels of a block along the last axis: equal parts of it that leave room for `ROWS` rows.

    >>> block_width((8000, 4000), 65536), block_width((1, 10**6), 65536), block_width((100, 5000), 65536)
    (4032, 62528, 2560)
    """
    rows = min(ROWS, max(1, math.prod(shape[:-1])))
    room = max(PAD, panel // rows // PAD * PAD)
    size = max(1, shape[-1])
    return padded(-(-size // -(-size // room)))


def block_shape(shape: Sequence[int], panel: int) -> tuple[int, ...]:
    """Shape of the largest of `blocks`, its last axis padded."""
    first = box_shape(next(blocks(shape, panel)))
    return (*first[:-1], padded(first[-1]))


def blocks(shape: Sequence[int], panel: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `panel` pixels that cover `shape`, once their last axis is padded.

    The ranges of the last axis are the outermost loop, so that a field that varies along it alone is gathered
    once a range. `panel` is a multiple of `PAD`.

    >>> [tuple((s.start, s.stop) for s in box) for box in blocks((3, 100), 128)]
    [((0, 2), (0, 64)), ((2, 3), (0, 64)), ((0, 2), (64, 100)), ((2, 3), (64, 100))]
    """
    *rows, size = shape
    width = block_width(shape, panel)
    for start in range(0, size, width):
        last = slice(start, min(start + width, size))
        yield from ((*box, last) for box in boxes(rows, max(1, panel // width)))


def panels_bytes(panel: int, itemsize: int, *, parts: int, components: int) -> int:
    """Upper bound of the bytes that norms of `components` components of so many real fields allocate.

    >>> panels_bytes(65536, 4, parts=1, components=3) / 2**20
    2.12...
    """
    pixels = padded(panel)
    scratch = len(FLOAT_PANELS) * itemsize + len(MASK_PANELS)
    gathers = parts * min(components, GATHER) * itemsize
    return (scratch + gathers) * pixels + parts * components * VIEW_BYTES
