"""`tilewise.Norm` under the name and the calling convention of a norm of arrays, for test suites of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

import tilewise


def norm(x: np.ndarray[Any, Any], ord: float, axis: int | tuple[int], keepdims: bool) -> Any:
    """Vector norm along one axis; a dtype that torch does not know is computed by numpy."""
    if x.dtype.char in "gG":
        return np.linalg.norm(x, ord, axis, keepdims)
    (axis,) = normalize_axis_tuple(axis, x.ndim)
    dims = [f"axis{i}" for i in range(x.ndim)]
    got = tilewise.Norm(dim=dims[axis], ord=ord)(tilewise.Input(store=x, dims=dims)).values
    return np.expand_dims(got, axis) if keepdims else got[()]
