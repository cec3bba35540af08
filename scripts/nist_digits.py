"""Correct digits of NIST's reference data sets of linear regression, as the table of docs/numbers.md.

    python scripts/nist_digits.py

Digits are -log10 of the relative error, of the worst where there are several values, at most 15, which is what is
certified; of the error itself where the certified value is zero. numpy's column is `lstsq` with its default `rcond`,
standard errors from the inverse of A^T A as people write them, and r2 from the residual. The data are read from
`../shared/data/nist_strd` beside the repository.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import tilewise

Array = np.ndarray[Any, Any]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "nist_strd"
SETS = ("Norris", "Pontius", "NoInt1", "Wampler1", "Wampler2", "Wampler4")
#: What is certified, by its heading.
QUANTITIES = {"coef": "coefficients", "std_err": "standard errors", "residual_sd": "residual sd", "r2": "r2"}


def digits(found: Any, certified: Any) -> float:
    """Correct digits of the worst value."""
    found, certified = np.atleast_1d(found).astype(float), np.atleast_1d(certified).astype(float)
    error = np.abs(found - certified) / np.where(certified == 0, 1, np.abs(certified))
    worst = float(error.max())
    return 0.0 if math.isnan(worst) else min(15.0, max(0.0, -math.log10(worst))) if worst else 15.0


def ours(A: Array, y: Array) -> Mapping[str, Any]:
    """By the kernel `lstsq`."""
    fit = tilewise.Lstsq(dim="row", diagnostics=("stderr", "r2", "residual_norm"))(
        A=xr.DataArray(A, dims=("row", "term")), b=xr.DataArray(y, dims=("row",))
    )
    sd = float(fit.residual_norm) / math.sqrt(A.shape[0] - A.shape[1])
    return {"coef": fit.solution.values, "std_err": fit.stderr.values, "residual_sd": sd, "r2": float(fit.r2)}


def numpys(A: Array, y: Array, constant: bool) -> Mapping[str, Any]:
    """By numpy, as people write it."""
    x = np.linalg.lstsq(A, y, rcond=None)[0]
    r = y - A @ x
    variance = r @ r / (A.shape[0] - A.shape[1])
    spread = np.diag(np.linalg.inv(A.T @ A))
    std_err = np.sqrt(variance * np.where(spread >= 0, spread, np.nan))
    centred = y - y.mean() if constant else y
    return {"coef": x, "std_err": std_err, "residual_sd": math.sqrt(variance), "r2": 1 - r @ r / (centred @ centred)}


def rows() -> list[str]:
    """One line of the table for each set: ours and numpy's digits of each quantity."""
    lines = []
    for name in SETS:
        data = json.loads((DATA / f"{name}.json").read_text())
        A, y = np.array(data["design_float64"]), np.array(data["y"])
        found = ours(A, y), numpys(A, y, data["model"] != "no_intercept")
        cells = [" / ".join(f"{digits(one[key], data['certified'][key]):.1f}" for one in found) for key in QUANTITIES]
        lines.append(f"| {name} ({A.shape[0]} x {A.shape[1]}) | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    """Print the table as Markdown."""
    if not DATA.exists():
        print(f"{DATA} is not there", file=sys.stderr)
        return 1
    print("| set | " + " | ".join(QUANTITIES.values()) + " |")
    print("|---" * (len(QUANTITIES) + 1) + "|")
    print("\n".join(rows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
