"""The ways in which bounded least squares are solved agree with one another, each forced in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles_systems import U, least_squares_bound
from tilewise.linalg.active_set import Problem, minimise
from tilewise.linalg.compression import compress_own, compress_shared
from tilewise.linalg.nonnegative import Constraints, solve_compressed


def problem(seed, n, p, w):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((n, p))), torch.from_numpy(rng.standard_normal((n, w)))


def bounds(A, b, x):
    pairs = zip(b.numpy().T, x.numpy().T, strict=True)
    return np.array([4 * least_squares_bound(A.numpy(), column, solution, A.shape[1]) for column, solution in pairs]).T


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("p", [1, 2, 5, 8, 9, 12])
def test_table_sets_and_matrices_of_each_pixel_agree(p, one):
    A, b = problem(p, 15, p, 150)
    constraints = Constraints(one, 10 * p)
    shared = compress_shared(A, None, sum_to_one=one)
    assert (shared.table is None) == (p > 8)
    rows = torch.full((150,), 15)
    own = compress_own(A.unsqueeze(-1).repeat(1, 1, 150), rows, None, sum_to_one=one, want_cond=False)
    first, second, third = (
        solve_compressed(way, b, None, constraints) for way in (shared, replace(shared, table=None), own)
    )
    bound = bounds(A, b, first.x)
    for other in (second, third):
        assert (abs(first.x - other.x).numpy() <= bound).all()
        assert not other.status.any()
    # Bounds that do not bind change nothing.
    loose = solve_compressed(shared, b, torch.full((p, 150), 1e3, dtype=torch.float64), constraints)
    assert (abs(first.x - loose.x).numpy() <= bound).all()


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_method_of_lawson_and_hanson_finds_what_block_exchange_finds(one, bounded):
    A, b = problem(3, 12, 6, 200)
    upper = torch.full((6, 200), 0.3, dtype=torch.float64) if bounded else None
    shared = compress_shared(A, None, sum_to_one=one)
    total = torch.ones(200, dtype=torch.float64) if one else None
    c = shared.project(b)
    y_upper = None if upper is None else upper * 2.0**shared.exponent
    posed = Problem(shared.sets, c, shared.size, c.norm(dim=0), y_upper, total)
    everywhere = torch.ones(200, dtype=torch.bool)
    by_blocks, by_steps = minimise(posed, everywhere, 60), minimise(posed, ~everywhere, 60)
    assert by_steps.done.all()
    assert by_blocks.done.all()
    # Both solve on the same sets with the same factors: p products of numbers up to |G||c|, and twice that between.
    size = torch.linalg.inv(shared.R[..., 0]).abs().max() * c.abs().sum(0) + 1
    assert (abs(by_blocks.x - by_steps.x) <= 4 * 6 * U * size * float(torch.linalg.cond(shared.R[..., 0]))).all()


def test_a_subset_of_regular_pixels_that_pads_to_the_width_of_the_batch():
    # 127 of 128 are regular, and a batch of them is padded to 128 again.
    A = torch.from_numpy(np.random.default_rng(4).standard_normal((5, 3, 128)))
    A[:, 1, 5] = A[:, 0, 5]
    b = torch.from_numpy(np.random.default_rng(5).standard_normal((5, 128)))
    own = compress_own(A, torch.full((128,), 5), None, sum_to_one=False, want_cond=False)
    assert own.rank[5] == 2
    found = solve_compressed(own, b, None, Constraints(False, 30))
    for i in (0, 4, 6, 127):
        alone = compress_own(A[..., i : i + 1], torch.tensor([5]), None, sum_to_one=False, want_cond=False)
        x = solve_compressed(alone, b[:, i : i + 1], None, Constraints(False, 30)).x
        bound = bounds(A[..., i], b[:, i : i + 1], x)
        assert (abs(found.x[:, i : i + 1] - x).numpy() <= bound).all()
