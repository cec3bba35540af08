"""Norms and linear solves over chunked Zarr arrays larger than memory.

Names are imported when they are first used, so that importing tilewise costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewise._version import __version__

if TYPE_CHECKING:
    from tilewise.cluster import Cluster
    from tilewise.errors import TilewiseError
    from tilewise.fields import Status
    from tilewise.job import Job
    from tilewise.kernels.base import Footprint, Kernel, Signature
    from tilewise.limits import Probe
    from tilewise.outcome import Event, Report
    from tilewise.outputs import Output
    from tilewise.packing import Encoding
    from tilewise.plans import Plan
    from tilewise.runs import probe, run
    from tilewise.sources import Input
    from tilewise.surveys import plan
    from tilewise.watching import progress

_HOMES = {
    "Cluster": "cluster",
    "Encoding": "packing",
    "Event": "outcome",
    "Footprint": "kernels",
    "Input": "sources",
    "Job": "job",
    "Kernel": "kernels",
    "Output": "outputs",
    "Plan": "plans",
    "Probe": "limits",
    "Report": "outcome",
    "Signature": "kernels",
    "Status": "fields",
    "TilewiseError": "errors",
    "plan": "surveys",
    "probe": "runs",
    "progress": "watching",
    "run": "runs",
}

__all__ = [
    "Cluster",
    "Encoding",
    "Event",
    "Footprint",
    "Input",
    "Job",
    "Kernel",
    "Output",
    "Plan",
    "Probe",
    "Report",
    "Signature",
    "Status",
    "TilewiseError",
    "__version__",
    "plan",
    "probe",
    "progress",
    "run",
]


def __getattr__(name: str) -> Any:
    """A public name, or the class of any kernel of the package."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"tilewise.{_HOMES[name]}"), name)
    if name[:1].isupper():
        kernels = importlib.import_module("tilewise.kernels").Kernel.registered().values()
        for kernel in kernels:
            if kernel.__name__ == name and kernel.__module__.startswith("tilewise."):
                return kernel
    raise AttributeError(f"module 'tilewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, kernels included."""
    kernels = importlib.import_module("tilewise.kernels").Kernel.registered().values()
    return sorted({*__all__, *(kernel.__name__ for kernel in kernels)})
