"""Kernels by name: those of this package, and a user's by "module:Class"."""

from __future__ import annotations

import difflib
import importlib

from tilewise.errors import UnknownKernelError
from tilewise.kernels.base import Kernel


def kernel_class(name: str) -> type[Kernel]:
    """The class of a kernel by its registered name, or of a user's kernel by "module:Class".

    Raises
    ------
    UnknownKernelError
        No such kernel; the message lists the nearest name.

    >>> kernel_class("norm").__name__
    'Norm'
    """
    if ":" in name:
        return _user_kernel(name)
    known = Kernel.registered()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise UnknownKernelError(
        f"there is no kernel {name!r}",
        expected=", ".join(sorted(known)) + ' or "module:Class"',
        do=f"write {near[0]!r} instead" if near else "use one of these names",
    )


def _user_kernel(name: str) -> type[Kernel]:
    module, _, attribute = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownKernelError(
            f"kernel {name!r} cannot be imported",
            got=error,
            expected="module:Class of a module on the import path",
            do="check the spelling and PYTHONPATH",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Kernel)):
        raise UnknownKernelError(
            f"{name!r} is not a kernel",
            got=type(found).__name__,
            expected="a subclass of tilewise.Kernel",
            do="derive it from tilewise.Kernel",
        )
    return found
