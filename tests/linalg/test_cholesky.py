import numpy as np
import pytest
import torch

from tilewise.linalg.cholesky import cholesky, packed_index, packed_size

U = 2.0**-53


def factored(G):
    """Factors of matrices (p, p, w)."""
    p = len(G)
    i, k = packed_index(p)
    table = torch.empty(packed_size(p) + p, G.shape[2], dtype=torch.from_numpy(G).dtype)
    table[: packed_size(p)] = torch.from_numpy(G[i, k])
    return cholesky(table)


def matrices(p, width, dtype, seed=0):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((p, p + 3, width))
    M = M + 1j * rng.standard_normal(M.shape) if dtype == "complex128" else M
    return np.einsum("ikw,jkw->ijw", M, M.conj())


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("p", [1, 2, 3, 7, 20])
def test_solutions_are_backward_stable(p, dtype):
    """||G x - y|| <= c u ||G|| ||x||, c = 8 p^2 at most (Higham, theorem 10.4, with |L||L^T| <= p ||G||)."""
    G = matrices(p, 33, dtype)
    y = np.random.default_rng(1).standard_normal((p, 33)).astype(dtype)
    x = factored(G).solve(torch.from_numpy(y.copy())).numpy()
    rest = np.linalg.norm(np.einsum("ijw,jw->iw", G, x) - y, axis=0)
    size = np.linalg.norm(G, axis=(0, 1)) * np.linalg.norm(x, axis=0)
    assert (rest <= 8 * p**2 * U * size).all()


def test_share_is_the_determinant_of_the_matrix_scaled_to_a_unit_diagonal():
    symmetric = matrices(4, 9, "float64")
    scale = np.ldexp(1.0, np.array([-90, 0, 40, 120]))
    H = symmetric * scale[:, None, None] * scale[None, :, None]
    found = factored(H).share.numpy()
    d = np.sqrt(np.einsum("iiw->iw", symmetric))
    exact = np.linalg.det(np.moveaxis(symmetric / d[:, None] / d[None], -1, 0))
    np.testing.assert_allclose(found, exact, rtol=1e-10)  # conditions of these are below 1e4: 4^3 u 1e4 is below it


def test_a_matrix_that_is_not_positive_definite_spoils_itself_alone():
    G = matrices(3, 5, "float64")
    good = factored(G.copy()).solve(torch.ones(3, 5, dtype=torch.float64))
    G[:, :, 2] = [[1, 2, 0], [2, 1, 0], [0, 0, 1]]
    found = factored(G)
    mixed = found.solve(torch.ones(3, 5, dtype=torch.float64))
    assert not found.share[2] > 0
    keep = [0, 1, 3, 4]
    assert torch.equal(mixed[:, keep], good[:, keep])
