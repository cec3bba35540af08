"""What kernels of norms declare alike: the order, the output, and the bytes that panels of components need."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

from tilewise.errors import DimensionError, ParameterError
from tilewise.fields import FieldSpec, OutputSpec, is_complex, itemsize, real_dtype, result_dtype
from tilewise.kernels.base import Signature
from tilewise.linalg.blocks import panels_bytes

#: Bytes of one panel: two of them stay in the cache between operations, which then cost far more than their calls.
_PANEL_BYTES = 512 * 1024
_WORDS = {"inf": math.inf, "-inf": -math.inf}


def checked_order(order: object) -> float:
    """The order of a norm as a float; the words "inf" and "-inf" are numbers here, as they are on a command line.

    Raises
    ------
    ParameterError
        The order is not a real number.

    >>> checked_order(1), checked_order("-inf")
    (1.0, -inf)
    """
    value = _WORDS.get(order, order) if isinstance(order, str) else order
    if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
        raise ParameterError(
            "kernel.ord is not the order of a norm",
            got=repr(order),
            expected="a real number, inf or -inf",
            do="leave it out for 2, the Euclidean norm; in YAML infinity is written .inf",
        )
    return float(value)


def check_components(spec: FieldSpec, dim: str, order: float) -> None:
    """Refuse a norm of no components where it has no value: orders below 0.

    Raises
    ------
    DimensionError
        The dimension is empty and the order negative.
    """
    if spec.sizes[dim] == 0 and order < 0:
        raise DimensionError(
            f"{spec.name} has no values along {dim!r}, and the norm of order {order:g} of nothing is not defined",
            got="size 0",
            expected="at least 1 for an order below 0",
            do="set kernel.ord to 0 or more, for which it is 0",
        )


def norm_output(fields: Iterable[FieldSpec], dim: str, order: float) -> OutputSpec:
    """The output of every norm: real, in the result type of the inputs."""
    dtype = real_dtype(result_dtype(spec.dtype for spec in fields))
    return OutputSpec("norm", (), (), dtype, attrs={"long_name": f"norm of order {order:g} along {dim}"})


def panel_pixels(signature: Signature) -> int:
    """Pixels of a panel in the precision of the computation."""
    return _PANEL_BYTES // _panel_itemsize(signature)


def workspace_bytes(signature: Signature, components: int, panel: int) -> int:
    """Upper bound of the bytes of temporaries of a norm of `components` components."""
    parts = sum(1 + is_complex(dtype) for dtype in signature.reads.values())
    return panels_bytes(panel, _panel_itemsize(signature), parts=parts, components=components)


def _panel_itemsize(signature: Signature) -> int:
    return max(itemsize(real_dtype(dtype)) for dtype in signature.reads.values())
