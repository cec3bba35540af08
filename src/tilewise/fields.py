"""Integers and names: what a field is before any of its data is read.

Floor 0: the standard library only. Dtypes are numpy's names, so that shapes and dtypes can be declared, and
refused, without importing numpy or torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tilewise.errors import DimensionError, DTypeError

_ITEMSIZE = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
# Bits of the smallest float that numpy.result_type pairs with an integer of so many bytes.
_FLOAT_BITS_OF_INTEGER = {1: 16, 2: 32, 4: 64, 8: 64}


class Status(IntEnum):
    """Outcome of one pixel. A pixel has the highest code that applies.

    >>> Status.RANK_DEFICIENT.meaning
    'rank_deficient'
    """

    OK = 0
    ILL_CONDITIONED = 1
    RANK_DEFICIENT = 2
    UNDERDETERMINED = 3
    NOT_CONVERGED = 4
    TOO_FEW = 5
    INFEASIBLE = 6
    NON_FINITE = 7
    NO_DATA = 8
    NOT_COMPUTED = 255

    @property
    def meaning(self) -> str:
        """The CF flag meaning of this code."""
        return self.name.lower()


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype name.

    Raises
    ------
    DTypeError
        The dtype is not numeric, or not one that torch computes with.

    >>> itemsize("float32")
    4
    """
    if dtype not in _ITEMSIZE:
        raise DTypeError(
            f"dtype {dtype!r} is not supported",
            expected="one of " + ", ".join(_ITEMSIZE),
            do="convert the variable to a numeric dtype first",
        )
    return _ITEMSIZE[dtype]


def is_complex(dtype: str) -> bool:
    """Whether a dtype name is a complex one."""
    return dtype.startswith("complex")


def is_floating(dtype: str) -> bool:
    """Whether a dtype name is a real or complex floating one."""
    return dtype.startswith(("float", "complex"))


def result_dtype(dtypes: Iterable[str]) -> str:
    """Floating dtype of a result: numpy's `result_type`, and float64 where every input is an integer or bool.

    >>> result_dtype(["int8"]), result_dtype(["float32", "int16"]), result_dtype(["float32", "int32"])
    ('float64', 'float32', 'float64')
    >>> result_dtype(["complex64", "float64"])
    'complex128'
    """
    names = list(dtypes)
    if not any(is_floating(name) for name in names):
        for name in names:
            itemsize(name)
        return "float64"
    bits = max(_real_bits(name) for name in names)
    if any(is_complex(name) for name in names):
        return "complex128" if bits == 64 else "complex64"
    return f"float{bits}"


def _real_bits(dtype: str) -> int:
    size = itemsize(dtype)
    if is_complex(dtype):
        return size * 4
    return size * 8 if is_floating(dtype) else _FLOAT_BITS_OF_INTEGER[size]


def compute_dtype(dtype: str) -> str:
    """Dtype in which values of a floating dtype are computed: halves in float32, everything else as it is."""
    return "float32" if dtype == "float16" else dtype


def real_dtype(dtype: str) -> str:
    """Real counterpart of a floating dtype: that of its norm.

    >>> real_dtype("complex64"), real_dtype("float16")
    ('float32', 'float16')
    """
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


@dataclass(frozen=True)
class FieldSpec:
    """A field without its data: its dimensions' names and sizes, and its dtype.

    >>> FieldSpec("x", ("band", "y"), (3, 4), "float32").nbytes
    48
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Refuse what no field can be, before any data is read."""
        if len(self.dims) != len(self.shape):
            raise DimensionError(
                f"{self.name} has {len(self.shape)} axes and {len(self.dims)} dimension names",
                got=f"dims {self.dims} for shape {self.shape}",
                do=f"give inputs.{self.name}.dims one name for each axis",
            )
        if len(set(self.dims)) != len(self.dims):
            raise DimensionError(
                f"{self.name} repeats a dimension name",
                got=self.dims,
                expected="a different name for each axis",
                do=f"rename one of them with inputs.{self.name}.dims",
            )
        itemsize(self.dtype)

    @property
    def sizes(self) -> dict[str, int]:
        """Size by dimension name."""
        return dict(zip(self.dims, self.shape, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole field."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class OutputSpec(FieldSpec):
    """An output: a field with the value of a cell that was not computed, and its CF attributes."""

    fill: float | int = math.nan
    attrs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Tile:
    """A box over the tile dimensions: `start` and `stop` by dimension, both in cells.

    >>> tile = Tile(0, ("y", "x"), (0, 64), (32, 128))
    >>> tile.sizes, tile.slices(("band", "x"))
    ({'y': 32, 'x': 64}, (slice(None, None, None), slice(64, 128, None)))
    """

    number: int
    dims: tuple[str, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Cells by tile dimension."""
        return {dim: b - a for dim, a, b in zip(self.dims, self.start, self.stop, strict=True)}

    def slices(self, dims: Iterable[str]) -> tuple[slice, ...]:
        """Selection of this box in a field with those dimensions; dimensions outside the tile are whole."""
        where = {dim: slice(a, b) for dim, a, b in zip(self.dims, self.start, self.stop, strict=True)}
        return tuple(where.get(dim, slice(None)) for dim in dims)

    @property
    def region(self) -> str:
        """Its cells as a person writes them."""
        return ", ".join(f"{d}={a}:{b}" for d, a, b in zip(self.dims, self.start, self.stop, strict=True))

    def __str__(self) -> str:
        """Number and region."""
        return f"tile {self.number} ({self.region})" if self.region else f"tile {self.number}"


@dataclass(frozen=True)
class TileGrid:
    """A regular grid of tiles over the tile dimensions; the last tile of a dimension may be ragged.

    No list of tiles exists anywhere: a tile is computed from its number.

    >>> grid = TileGrid(("y", "x"), (100, 100), (64, 50))
    >>> grid.shape, len(grid), str(grid.tile(3))
    ((2, 2), 4, 'tile 3 (y=64:100, x=50:100)')
    """

    dims: tuple[str, ...]
    size: tuple[int, ...]
    tile_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of tiles along each dimension."""
        return tuple(-(-n // t) for n, t in zip(self.size, self.tile_shape, strict=True))

    def __len__(self) -> int:
        """Number of tiles."""
        return math.prod(self.shape)

    def tile(self, number: int) -> Tile:
        """The tile of that number, in C order of the grid."""
        index = []
        for count in reversed(self.shape):
            number, i = divmod(number, count)
            index.append(i)
        index.reverse()
        start = tuple(i * t for i, t in zip(index, self.tile_shape, strict=True))
        stop = tuple(min(a + t, n) for a, t, n in zip(start, self.tile_shape, self.size, strict=True))
        return Tile(self._number(index), self.dims, start, stop)

    def _number(self, index: Iterable[int]) -> int:
        number = 0
        for i, count in zip(index, self.shape, strict=True):
            number = number * count + i
        return number

    def __iter__(self) -> Iterator[Tile]:
        """Tiles in order of their numbers, one at a time."""
        return (self.tile(number) for number in range(len(self)))


def union_dims(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Names in the order of first appearance.

    >>> union_dims([("y", "x"), ("x", "t")])
    ('y', 'x', 't')
    """
    return tuple(dict.fromkeys(dim for group in groups for dim in group))


def merged_sizes(fields: Iterable[FieldSpec]) -> dict[str, int]:
    """Size of every dimension of several fields.

    Raises
    ------
    DimensionError
        Two fields give a dimension different sizes.
    """
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for spec in fields:
        for dim, size in spec.sizes.items():
            if sizes.setdefault(dim, size) != size:
                raise DimensionError(
                    f"dimension {dim!r} has different sizes in {owner[dim]} and {spec.name}",
                    got=f"{sizes[dim]} and {size}",
                    expected="equal sizes: inputs are never aligned or joined silently",
                    do="select the same part of both first",
                )
            owner.setdefault(dim, spec.name)
    return sizes
