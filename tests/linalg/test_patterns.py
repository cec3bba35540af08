import numpy as np
import pytest
import torch

from tilewise.linalg.patterns import distinct


@pytest.mark.parametrize("rows", [1, 52, 53, 130])
@pytest.mark.parametrize("kinds", [1, 7, 200])
def test_patterns_are_those_of_numpy(rows, kinds):
    rng = np.random.default_rng(rows + kinds)
    table = (rng.random((rows, kinds)) < 0.5).astype("float64")
    mask = table[:, rng.integers(0, kinds, 300)]
    which, first = distinct(torch.from_numpy(mask))
    _, inverse = np.unique(mask, axis=1, return_inverse=True)
    assert len(first) == inverse.max() + 1
    np.testing.assert_array_equal(mask[:, first.numpy()][:, which.numpy()], mask)


def test_patterns_that_differ_in_one_row_of_many_are_told_apart():
    mask = np.ones((160, 161))
    mask[np.arange(160), np.arange(160)] = 0
    which, first = distinct(torch.from_numpy(mask))
    assert len(first) == 161
    assert sorted(which.tolist()) == list(range(161))
