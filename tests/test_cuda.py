"""The same jobs on a CUDA device; skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contract
import harness
import stores
import tilewise

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]


@pytest.mark.parametrize("example", contract.examples(), ids=lambda e: e.kernel.name)
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_device_gives_the_same_answers(tmp_path: Path, example: contract.Example, kind: Any) -> None:
    inputs = {n: stores.write(tmp_path / f"{n}.zarr", {n: field}) for n, field in example.fields.items()}
    job = tilewise.Job(
        kernel=example.kernel,
        inputs=inputs,
        output=str(tmp_path / "out.zarr"),
        device="cuda",
        cluster=tilewise.Cluster(kind=kind, workers=1),
    )
    tilewise.run(job)
    expected = harness.evaluate(example.kernel, example.fields)
    for name, values in expected.items():
        got = stores.read(job.output.store, name)
        if values.dtype.kind in "fc":
            # Two devices round differently: a few units of the last place, times the condition of the examples.
            rtol = 1e3 * float(np.finfo(values.dtype).eps)
            np.testing.assert_allclose(got, values, rtol=rtol, atol=rtol * float(np.nanmax(np.abs(values))))
        else:
            np.testing.assert_array_equal(got, values)
