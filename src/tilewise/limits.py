"""How long a job takes, and how long it has to: from what a few of its tiles have taken on one worker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewise.fields import TileGrid, itemsize
from tilewise.kernels.base import Signature
from tilewise.memory import Workload
from tilewise.plans import Plan

#: Bytes of the boxes of a tile that is probed, at most about: some tenths of a second of work.
PROBE_BYTES = 16 << 20
#: Seconds within which more is probed than the least, one tile each way.
PROBE_SECONDS = 0.5
#: Read-ahead that is not chosen by itself beyond this, nor for waiting that would save less than this share of a tile.
MOST_BY_ITSELF, LITTLE = 8, 0.2
#: Tiles of each slot below which a run is over before a probe of it has paid.
FEWEST = 8


@dataclass(frozen=True)
class Measured:
    """What a worker has seen: seconds of reading, computing and writing of some tiles, and of the same by hand.

    Attributes
    ----------
    tiles
        Seconds of each phase, tile by tile.
    pixels
        Of all these tiles.
    busy
        Seconds that cores were at work meanwhile.
    by_hand
        Seconds of reading and decoding, and of encoding and writing, straight through zarr.
    nbytes
        Bytes that were decoded and encoded by hand: of whole chunks, whatever of them was wanted.
    """

    tiles: tuple[tuple[float, float, float], ...]
    pixels: int
    busy: float
    by_hand: tuple[float, float]
    nbytes: tuple[int, int]


@dataclass(frozen=True)
class Probe:
    """What a few tiles of a job have taken on one worker that had the machine for itself.

    Attributes
    ----------
    tiles
        Tiles that were probed.
    read, compute, write
        Seconds of one tile of the plan.
    waiting
        Share of that in which no core was at work: the store was waited for.
    decode, encode
        Seconds in which one slot would read and decode all inputs once, and encode and write all outputs once, straight
        through zarr.

    >>> Probe(2, 0.3, 0.1, 0.2, 0.0, 20.0, 10.0).bound
    'reading'
    """

    tiles: int
    read: float
    compute: float
    write: float
    waiting: float
    decode: float
    encode: float

    @classmethod
    def of(cls, measured: Measured, work: Workload, plan: Plan) -> Probe:
        """The probe of a plan from what its worker has measured."""
        scale = math.prod(plan.grid.tile_shape) / measured.pixels
        read, compute, write = (scale * sum(phase) for phase in zip(*measured.tiles, strict=True))
        spent = sum(map(sum, measured.tiles))
        rates = [s / n if n else 0.0 for s, n in zip(measured.by_hand, measured.nbytes, strict=True)]
        return cls(
            tiles=len(measured.tiles),
            read=read,
            compute=compute,
            write=write,
            waiting=min(1.0, max(0.0, 1.0 - measured.busy / spent)),
            decode=rates[0] * work.streamed_bytes,
            encode=rates[1] * plan.write_bytes,
        )

    @property
    def seconds(self) -> float:
        """Seconds of one tile."""
        return self.read + self.compute + self.write

    @property
    def bound(self) -> str:
        """What takes most of a tile."""
        phases = {"reading": self.read, "computing": self.compute, "writing": self.write}
        return max(phases, key=lambda name: phases[name])

    def eta(self, plan: Plan) -> float:
        """Seconds that the tiles of a plan take: an estimate, since workers that are all at work share the machine."""
        rounds = math.ceil(plan.tiles / min(plan.tiles, plan.in_work))
        return self.seconds * max(rounds, plan.tiles * self._share(plan))

    def limit(self, plan: Plan) -> float:
        """Seconds in which all inputs could be read and decoded once, and all outputs encoded and written once."""
        return (self.decode + self.encode) * self._share(plan)

    def _share(self, plan: Plan) -> float:
        """Of the seconds of one slot, how many all of them take: waiting is done side by side with read-ahead.

        Slots for which there is no tile do not count.
        """
        at_work, computing = (min(plan.tiles, n) for n in (plan.in_work, plan.processes * plan.slots))
        return max(1 / at_work, (1 - self.waiting) / computing)

    @property
    def read_ahead(self) -> int:
        """Tiles beyond the one in work that keep its core busy.

        >>> [Probe(2, 0.3, 0.1, 0.2, waiting, 20.0, 10.0).read_ahead for waiting in (0.0, 0.1, 0.5, 0.7, 1.0)]
        [0, 0, 1, 3, 8]
        """
        busy = max(1 - self.waiting, 1 / (1 + MOST_BY_ITSELF))
        return math.ceil(1 / busy - LITTLE) - 1

    def to_dict(self, plan: Plan) -> dict[str, Any]:
        """The probe as JSON data, with its estimates for a plan."""
        return {**asdict(self), "bound": self.bound, "eta": self.eta(plan), "limit": self.limit(plan)}


def probe_grid(work: Workload, plan: Plan) -> TileGrid:
    """Tiles like those of the plan, but of no more than about `PROBE_BYTES` where that cuts no chunk of an input.

    A chunk that a tile cuts is decoded as a whole: a smaller tile would cost more for each of its pixels than one of
    the plan. So a tile is whole chunks wherever those of the plan are, and as they are where they are not.
    """
    size, shape = plan.grid.size, list(plan.grid.tile_shape)
    steps = [
        step if tile % step == 0 or tile == whole else tile
        for tile, step, whole in zip(shape, work.aligned, size, strict=True)
    ]
    while _box_bytes(work.signature, plan.grid.dims, shape) > PROBE_BYTES:
        axis = max(range(len(shape)), key=lambda axis: shape[axis] // steps[axis], default=0)
        count = shape[axis] // steps[axis] if shape else 1
        if count < 2:
            break
        shape[axis] = count // 2 * steps[axis]
    return replace(plan.grid, tile_shape=tuple(shape))


def _box_bytes(signature: Signature, dims: Sequence[str], shape: Sequence[int]) -> int:
    sizes: Mapping[str, int] = {**signature.sizes, **dict(zip(dims, shape, strict=True))}
    specs = [signature.fields[name] for name in signature.streamed]
    return sum(math.prod(sizes[d] for d in spec.dims) * itemsize(signature.reads[spec.name]) for spec in specs)


def probe_numbers(grid: TileGrid) -> tuple[int, int, int, int]:
    """Tiles to probe, far apart: two that go the way of a run, and two that are done by hand.

    None of them is ragged where another can be had: a sliver of a chunk costs as much as the whole.

    >>> probe_numbers(TileGrid(("x",), (100,), (1,)))
    (24, 49, 74, 99)
    >>> probe_numbers(TileGrid(("y", "x"), (5, 9), (2, 4)))
    (0, 1, 3, 4)
    """
    whole = tuple(max(1, size // tile) for size, tile in zip(grid.size, grid.tile_shape, strict=True))
    last = math.prod(whole) - 1
    first, second, third, fourth = (_number(last * n // 4, whole, grid.shape) for n in (1, 2, 3, 4))
    return first, second, third, fourth


def _number(number: int, shape: Sequence[int], other: Sequence[int]) -> int:
    """The number, in a grid of shape `other`, of what has `number` in one of `shape`: both in C order.

    >>> _number(3, (2, 2), (3, 3))
    4
    """
    found, stride = 0, 1
    for count, wider in zip(reversed(shape), reversed(other), strict=True):
        number, index = divmod(number, count)
        found += index * stride
        stride *= wider
    return found
