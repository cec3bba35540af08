"""Certified values of NIST's reference data sets of linear regression, at the tolerances of their README."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from harness import evaluate
from oracles_systems import U, fractions, solved, times, transposed
from shared_data import shared
from tilewise.fields import Status
from tilewise.kernels.lstsq import Lstsq

Array = np.ndarray[Any, Any]

#: Largest relative error of a coefficient.
TOLERANCE = {"Norris": 1e-11, "Pontius": 1e-10, "NoInt1": 1e-14, "Wampler1": 1e-8, "Wampler2": 1e-8, "Wampler4": 1e-6}
#: Certified values are printed with 15 digits.
PRINTED = 5e-15


@dataclass(frozen=True)
class Case:
    """One set: its design and values, and what is certified."""

    A: Array
    y: Array
    coef: Array
    std_err: Array
    residual_sd: float
    r2: float
    cond: float

    @classmethod
    def read(cls, name: str) -> Case:
        data = json.loads((shared("data/nist_strd") / f"{name}.json").read_text())
        known = data["certified"]
        return cls(
            np.array(data["design_float64"]),
            np.array(data["y"]),
            np.array(known["coef"]),
            np.array(known["std_err"]),
            known["residual_sd"],
            known["r2"],
            data["cond_column_scaled"],
        )

    @property
    def freedom(self) -> int:
        return self.A.shape[0] - self.A.shape[1]


def lstsq(A: Array, y: Array, A_dims: tuple[str, ...] = ("e", "u"), **parameters: Any) -> dict[str, Array]:
    return evaluate(Lstsq(dim="e", unknown="u", **parameters), {"A": (A_dims, A), "b": (("e", "x"), y)})


@pytest.mark.parametrize("name", TOLERANCE)
def test_coefficients(name):
    case = Case.read(name)
    one = case.y[:, None]
    for found in (
        lstsq(case.A, one),
        lstsq(case.A[None], one, ("x", "e", "u")),
        lstsq(case.A, np.repeat(one, 3, 1)),
    ):
        assert not found["status"].any(), Status.OK.meaning
        for x in range(found["solution"].shape[1]):
            np.testing.assert_allclose(found["solution"][:, x], case.coef, rtol=TOLERANCE[name])


# Standard errors, with gaps beside and without, by either path


def exact_factors(A: Array) -> Array:
    """Square roots of the diagonal of (A^T A)^-1, from exact arithmetic."""
    rows = fractions(A)
    n = A.shape[1]
    identity = fractions(np.eye(n))
    inverse = solved(times(transposed(rows), rows), identity)
    return np.array([float(inverse[i][i]) ** 0.5 for i in range(n)])


def norm_error(case: Case, name: str) -> float:
    """How far the computed ||b - A x|| may be from the exact one.

    Rounding of the products and sums gives at most (p + 2) u (|b| + |A||x|). An error d of x within its tolerance
    lengthens the shortest residual, which is orthogonal to A d, to sqrt(||r||^2 + ||A d||^2).
    """
    A, x = abs(case.A), abs(case.coef)
    rounding = float(np.linalg.norm((len(x) + 2) * U * (abs(case.y) + A @ x)))
    moved = TOLERANCE[name] * float(np.linalg.norm(A @ x))
    r = case.residual_sd * case.freedom**0.5
    return rounding + float(np.hypot(r, moved)) - r + 2 * PRINTED * r


@pytest.mark.parametrize("name", TOLERANCE)
@pytest.mark.parametrize("varying", [False, True])
def test_standard_errors_and_r2(name, varying):
    """(A^T A)^-1 from factors of the column-scaled A errs by 4 n p u cond^2 at most, relative."""
    case = Case.read(name)
    A, dims = (case.A[None], ("x", "e", "u")) if varying else (case.A, ("e", "u"))
    found = lstsq(A, case.y[:, None], dims, diagnostics=("stderr", "r2", "residual_norm", "rank"))
    assert found["rank"].tolist() == [case.A.shape[1]]
    error = norm_error(case, name)
    r = case.residual_sd * case.freedom**0.5
    assert abs(found["residual_norm"][0] - r) <= error
    factors = exact_factors(case.A)
    relative = 4 * case.A.size * U * case.cond**2 + PRINTED
    bound = factors * (error / case.freedom**0.5 * (1 + relative) + case.residual_sd * relative)
    assert (abs(found["stderr"][:, 0] - case.std_err) <= bound).all()
    centred = case.y if name == "NoInt1" else case.y - case.y.mean()
    total = float(centred @ centred)
    # The mean and the sum of n squares round by at most about 2 n u of what is summed.
    rounding = 2 * len(case.y) * U * float(case.y @ case.y) / total + PRINTED
    assert abs(found["r2"][0] - case.r2) <= error * (2 * r + error) / total + rounding
