"""Run a kernel on in-memory arrays through its contract alone: no store, no engine, no cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tilewise.fields import FieldSpec
from tilewise.kernels.base import Kernel, Signature
from tilewise.kernels.declaration import checked_signature
from tilewise.linalg.layout import arrange

Field = tuple[Sequence[str], Any]


def declare(kernel: Kernel, fields: Mapping[str, Field]) -> Signature:
    """Signature of a kernel for (dims, array) pairs."""
    specs = {
        name: FieldSpec(name, tuple(dims), np.asarray(data).shape, str(np.asarray(data).dtype))
        for name, (dims, data) in fields.items()
    }
    return checked_signature(kernel, specs)


def evaluate(
    kernel: Kernel,
    fields: Mapping[str, Field],
    *,
    panel: int | None = None,
    dtype: str | None = None,
    signature: Signature | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs by name, each with the dims that the kernel declared, for (dims, array) pairs as one tile."""
    signature = (signature or declare(kernel, fields)).with_output_dtype(dtype)
    tensors = {}
    for name, (dims, data) in fields.items():
        array = np.array(data).astype(signature.reads[name])
        tile_dims = () if name in signature.shared else signature.tile_dims
        tensors[name] = arrange(torch.from_numpy(array), tuple(dims), signature.core[name], tile_dims)
    outputs = {out.name: np.full(out.shape, out.fill, dtype=out.dtype) for out in signature.outputs}
    state = kernel.prepare({name: tensors[name] for name in signature.shared})
    kernel.compute(
        state,
        {name: tensors[name] for name in signature.streamed},
        {name: torch.from_numpy(array) for name, array in outputs.items()},
        panel=panel or kernel.panel(signature),
    )
    return outputs
