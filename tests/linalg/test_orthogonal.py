from __future__ import annotations

import numpy as np
import torch

from oracles_systems import U
from tilewise.linalg.orthogonal import back_substitute, orthogonalise, project, triangular_inverse


def batch(seed, n, p, w):
    A = np.random.default_rng(seed).standard_normal((n, p, w))
    return torch.from_numpy(A / (2 * np.linalg.norm(A, axis=0)))


def test_factors_give_the_matrix_back_and_solve_least_squares():
    A = batch(1, 7, 4, 70)
    b = torch.from_numpy(np.random.default_rng(2).standard_normal((7, 70)))
    Q = A.clone()
    R = orthogonalise(Q)
    # Each column is the sum of p products, of numbers below one.
    assert (abs(torch.einsum("nkw,kpw->npw", Q, R) - A) <= 4 * 4 * U).all()
    x = back_substitute(R, project(Q, b.clone()))
    for i in range(70):
        expected = np.linalg.lstsq(A[..., i].numpy(), b[:, i].numpy())[0]
        cond = np.linalg.cond(A[..., i].numpy())
        np.testing.assert_allclose(x[:, i], expected, rtol=0, atol=4 * 28 * U * cond**2 * np.linalg.norm(expected))
    X = triangular_inverse(R)
    product = torch.einsum("ijw,jkw->ikw", R, X)
    # Each column is solved for by substitution: |R X - I| <= gamma_p |R||X| (Higham, 8.5).
    bound = 2 * 4 * U * torch.einsum("ijw,jkw->ikw", R.abs(), X.abs())
    assert (abs(product - torch.eye(4, dtype=torch.float64).unsqueeze(-1)) <= bound).all()


def test_a_column_that_depends_on_others_becomes_zero():
    A = batch(3, 6, 3, 64)
    A[:, 2, 7] = A[:, 0, 7]
    A[:, 1, 9] = 0
    Q = A.clone()
    R = orthogonalise(Q)
    dead = R.diagonal(dim1=0, dim2=1).T == 0
    assert dead.nonzero().tolist() == [[1, 9], [2, 7]]
    assert not Q[:, 2, 7].any()
    assert R.isfinite().all()
