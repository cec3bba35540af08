"""What a kernel allocates on the way, counted by torch's own allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from harness import Field, declare
from tilewise.kernels.base import Kernel
from tilewise.linalg.layout import arrange


@dataclass(frozen=True)
class Use:
    """Bytes: kept by `prepare`, and the most alive at once in `prepare` and in `compute` beyond inputs and outputs."""

    state: int
    prepare: int
    compute: int


def peaks(kernel: Kernel, fields: Mapping[str, Field], panel: int) -> Use:
    """Measure the two steps of a kernel on one tile."""
    signature = declare(kernel, fields)
    tensors = {}
    for name, (dims, data) in fields.items():
        tile_dims = () if name in signature.shared else signature.tile_dims
        array = torch.from_numpy(np.array(data).astype(signature.reads[name]))
        tensors[name] = arrange(array, tuple(dims), signature.core[name], tile_dims)
    outputs = {out.name: torch.from_numpy(np.full(out.shape, out.fill, dtype=out.dtype)) for out in signature.outputs}
    state, kept, prepare = _measured(lambda: kernel.prepare({name: tensors[name] for name in signature.shared}))
    streamed = {name: tensors[name] for name in signature.streamed}
    _, _, compute = _measured(lambda: kernel.compute(state, streamed, outputs, panel=panel))
    return Use(kept, prepare, compute)


def _measured(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """What a call returns, the bytes that it leaves allocated, and the most that it had."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return result, now, most
