"""Every kernel of this package: a module placed here is found without being named anywhere."""

from __future__ import annotations

import importlib
import pkgutil

from tilewise.kernels.base import Footprint, Kernel, Signature
from tilewise.kernels.registry import kernel_class

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Footprint", "Kernel", "Signature", "kernel_class"]
