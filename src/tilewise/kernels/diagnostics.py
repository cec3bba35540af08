"""What kernels of linear systems say of each pixel beside its solution: status and diagnostics."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from tilewise.errors import ParameterError
from tilewise.fields import OutputSpec, Status, real_dtype

#: Value of a rank or a count that was not computed, and rank of a pixel that is not finite.
NO_RANK = -1

Diagnostic = Literal["rank", "n_valid", "condition", "residual_norm", "stderr", "r2"]
DIAGNOSTICS: tuple[Diagnostic, ...] = get_args(Diagnostic)

#: Own dimensions of an output with their sizes, and the dtype of the solution, to the output.
_Make = Callable[[tuple[str, ...], tuple[int, ...], str], OutputSpec]


def status_output() -> OutputSpec:
    """The status of each pixel as CF flags; 255, the fill value, is a pixel that was not computed."""
    return OutputSpec(
        "status",
        (),
        (),
        "uint8",
        fill=int(Status.NOT_COMPUTED),
        attrs={
            "long_name": "status of the solution",
            "flag_values": [int(status) for status in Status],
            "flag_meanings": " ".join(status.meaning for status in Status),
        },
    )


def _whole(name: str, long_name: str) -> _Make:
    return lambda dims, shape, dtype: OutputSpec(name, (), (), "int32", fill=NO_RANK, attrs={"long_name": long_name})


def _real(name: str, long_name: str, *, of_unknowns: bool = False) -> _Make:
    def make(dims: tuple[str, ...], shape: tuple[int, ...], dtype: str) -> OutputSpec:
        own = (dims, shape) if of_unknowns else ((), ())
        return OutputSpec(name, *own, real_dtype(dtype), attrs={"long_name": long_name})

    return make


_OUTPUTS: Mapping[Diagnostic, _Make] = {
    "rank": _whole("rank", "numerical rank of A"),
    "n_valid": _whole("n_valid", "number of valid equations"),
    "condition": _real("condition", "condition number of the scaled A"),
    "residual_norm": _real("residual_norm", "2-norm of b - A x, weighted"),
    "stderr": _real("stderr", "standard error of the solution", of_unknowns=True),
    "r2": _real("r2", "coefficient of determination"),
}


def diagnostic_outputs(names: Iterable[Diagnostic], unknown: tuple[str, int], dtype: str) -> list[OutputSpec]:
    """Outputs of these diagnostics, for an unknown (name, size) and the dtype of the solution."""
    return [_OUTPUTS[name]((unknown[0],), (unknown[1],), dtype) for name in names]


def checked_diagnostics(names: str | Iterable[str], allowed: Iterable[str] = DIAGNOSTICS) -> tuple[str, ...]:
    """Diagnostics as a tuple without repetition.

    Raises
    ------
    ParameterError
        There is no diagnostic of that name, or the kernel does not have it.

    >>> checked_diagnostics(["rank", "rank"])
    ('rank',)
    """
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        checked_choice(name, allowed, "diagnostics")
    return tuple(dict.fromkeys(listed))


def checked_choice(value: object, allowed: Iterable[object], parameter: str) -> None:
    """Refuse a value that is not one of the words allowed, and name the nearest of them.

    >>> checked_choice("omits", ["propagate", "omit", "raise"], "nan_policy")
    Traceback (most recent call last):
    tilewise.errors.ParameterError: kernel.nan_policy does not know 'omits'; expected: propagate, omit, raise. To mend
    it: write 'omit' instead.
    """
    words = list(allowed)
    if any(value is word or value == word for word in words):
        return
    near = difflib.get_close_matches(str(value), [str(word) for word in words], n=1, cutoff=0.5)
    raise ParameterError(
        f"kernel.{parameter} does not know {value!r}",
        expected=", ".join(map(str, words)),
        do=f"write {near[0]!r} instead" if near else "use one of these words",
    )
