"""Values of parameters, numpy's among them, as the plain Python values that a job file holds."""

from __future__ import annotations

import math

from tilewise.errors import ParameterError


def plain(value: object) -> object:
    """Numpy's numbers and arrays as Python's numbers and lists; anything else as it is.

    >>> import numpy as np
    >>> plain(np.float32(0.5)), plain(np.array([0, 1]))
    (0.5, [0, 1])
    """
    return value.tolist() if hasattr(value, "tolist") else value


def checked_numbers(value: object, parameter: str, *, most: float = math.inf, do: str) -> float | tuple[float, ...]:
    """A number from 0 to `most`, or a tuple of such, one for each unknown.

    Raises
    ------
    ParameterError
        It is neither.

    >>> checked_numbers([0, 1], "ridge", do="use 0 for none")
    (0.0, 1.0)
    """
    value = plain(value)
    many = isinstance(value, (tuple, list))
    values = [plain(one) for one in value] if isinstance(value, (tuple, list)) else [value]
    found = [
        float(one) for one in values if isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one <= most
    ]
    if values and len(found) == len(values):
        return tuple(found) if many else found[0]
    raise ParameterError(
        f"kernel.{parameter} is out of range",
        got=repr(value),
        expected=f"a {'finite ' if most < math.inf else ''}number of at least 0, or a list with one for each unknown",
        do=do,
    )


def checked_whole(value: object, parameter: str, *, do: str, least: int = 1) -> int:
    """A whole number of at least `least`.

    Raises
    ------
    ParameterError
        It is none.

    >>> checked_whole(1.5, "max_iter", do="leave it out")
    Traceback (most recent call last):
    tilewise.errors.ParameterError: kernel.max_iter is out of range; got: 1.5; expected: a whole number of at least
    1. To mend it: leave it out.
    """
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise ParameterError(
        f"kernel.{parameter} is out of range", got=repr(value), expected=f"a whole number of at least {least}", do=do
    )
