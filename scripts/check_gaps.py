"""A million pixels with realistic gaps, streamed from store to store, against numpy's lstsq on a sample of pixels.

Each stack (date, y, x) of float32 holds a trend with a yearly cycle and noise; gaps are clouds of about 5 or 20 pixels,
whole dates missing in frames of satellite tracks, or all of these; and everywhere a lake without any data and a margin
with three dates.

    python scripts/check_gaps.py [--side 1000] [--sample 3000] [--kinds small,large,dates,mixed]

Bound. Both solvers are backward stable: for n rows, p unknowns, u = 2^-53, cond of the rows that are there and the
residual r, each errs by at most 4 n p u (cond ||x|| + ||b|| / s + cond ||r|| / s), s the least singular value kept
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 20.1).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

import _gaps
import _stream
import tilewise
from tilewise.fields import Status

Array = np.ndarray[Any, Any]

DATES, CHUNK = 40, 250
U = 2.0**-53
KINDS = ("small", "large", "dates", "mixed")


def design() -> Array:
    """Intercept, trend and yearly cycle of 40 dates within three years, centred."""
    years = np.sort(np.random.default_rng(0).uniform(0, 3, DATES)) - 1.5
    return np.stack([np.ones(DATES), years, np.cos(2 * np.pi * years), np.sin(2 * np.pi * years)], axis=1)


def gaps(kind: str, side: int, rng: np.random.Generator) -> Array:
    """Which values (date, y, x) are there."""
    shape = (DATES, side, side)
    there = np.ones(shape, bool)
    if kind in ("small", "mixed"):
        there &= _gaps.clouds(rng, shape, 5)
    if kind in ("large", "mixed"):
        there &= _gaps.clouds(rng, shape, 20)
    if kind in ("dates", "mixed"):
        there &= _gaps.missing_dates(rng, shape, side // 8, 0.3)
    y, x = np.ogrid[:side, :side]
    there[:, (y - side // 3) ** 2 + (x - side // 2) ** 2 < (side // 20) ** 2] = False
    there[3:, :, -side // 50 :] = False
    return there


def make(kind: str, side: int) -> tuple[str, Array]:
    """The stack in a store, and its values."""
    rng = np.random.default_rng(KINDS.index(kind))
    truth = rng.standard_normal((4, side, side), np.float32)
    b = np.einsum("np,pyx->nyx", design().astype(np.float32), truth)
    b += 0.1 * rng.standard_normal(b.shape, np.float32)
    b[~gaps(kind, side, rng)] = np.nan
    path = _stream.folder() / f"gaps-{kind}.zarr"
    group = zarr.create_group(path, overwrite=True)
    group.create_array("A", data=design(), dimension_names=("date", "term"))
    dims = ("date", "y", "x")
    group.create_array("b", data=b, chunks=(DATES, CHUNK, CHUNK), dimension_names=dims)
    return str(path), b


def run(path: str, output: str) -> tilewise.Report:
    """Stream the job."""
    job = tilewise.Job(
        kernel=tilewise.Lstsq(
            dim="date", nan_policy="omit", precision="float64", diagnostics=("n_valid", "rank", "residual_norm")
        ),
        inputs={"A": path, "b": path},
        output=output,
        memory_limit="2 GiB",
    )
    return tilewise.run(job, overwrite=True)


@dataclass(frozen=True)
class Expected:
    """What numpy says of one pixel, and how far we may be from it."""

    solution: Array
    bound: float
    residual: float
    rounding: float
    rank: int
    status: Status


def expected(A: Array, b: Array) -> Expected:
    """Least squares on the rows that a pixel has."""
    ok = np.isfinite(b)
    A, b = A[ok], b[ok].astype(float)
    n, p = A.shape
    if n == 0:
        return Expected(np.full(p, np.nan), 0.0, np.nan, 0.0, 0, Status.NO_DATA)
    solution, _, rank, s = np.linalg.lstsq(A, b, rcond=max(n, p) * 2 * U)
    cond, r = s[0] / s[rank - 1], float(np.linalg.norm(b - A @ solution))
    size = cond * np.linalg.norm(solution) + (np.linalg.norm(b) + cond * r) / s[rank - 1]
    bound = 2 * 4 * n * p * U * size
    status = Status.ILL_CONDITIONED if cond > 1 / np.sqrt(2 * U) else Status.OK
    status = Status.RANK_DEFICIENT if rank < p else status
    status = Status.UNDERDETERMINED if n < p else status
    # Sums of p products and b, squared and summed, twice.
    rounding = 2 * (n + p + 2) * U * float(np.linalg.norm(np.abs(b) + np.abs(A) @ np.abs(solution)))
    return Expected(solution, float(bound), r, rounding, int(rank), status)


def compare(b: Array, output: str, sample: int) -> list[str]:
    """What differs; nothing where everything agrees."""
    group = zarr.open_group(output, mode="r")
    found = {name: np.asarray(group[name][...]) for name in ("solution", "status", "n_valid", "rank", "residual_norm")}
    wrong = [] if (found["n_valid"] == np.isfinite(b).sum(0)).all() else ["n_valid differs"]
    A, side, worst = design(), b.shape[1], 0.0
    for y, x in np.random.default_rng(9).integers(0, side, (sample, 2)):
        want = expected(A, b[:, y, x])
        ours = found["solution"][:, y, x].astype(float)
        if (found["status"][y, x], found["rank"][y, x]) != (want.status, want.rank):
            wrong.append(f"pixel ({y}, {x}): status {found['status'][y, x]}, rank {found['rank'][y, x]}, not {want}")
        elif want.status == Status.NO_DATA:
            wrong += [f"pixel ({y}, {x}): a value without data"] * (not np.isnan(ours).all())
        else:
            error = float(np.linalg.norm(ours - want.solution))
            worst = max(worst, error / want.bound)
            norm = abs(float(found["residual_norm"][y, x]) - want.residual)
            near = norm <= np.linalg.norm(A, 2) * want.bound + want.rounding
            wrong += [f"pixel ({y}, {x}): error {error:.1e}, bound {want.bound:.1e}"] * (not error <= want.bound)
            wrong += [f"pixel ({y}, {x}): residual_norm off by {norm:.1e}"] * (not near)
    print(f"  largest error of {sample} pixels: {worst:.2g} of its bound")
    return wrong


def main() -> int:
    """Make, stream and compare each kind of gaps; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1000, help="pixels along y and x")
    parser.add_argument("--sample", type=int, default=3000, help="pixels compared with numpy")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of small, large, dates and mixed")
    options = parser.parse_args()
    lines, failed = [], False
    for kind in options.kinds.split(","):
        path, b = make(kind, options.side)
        output = str(_stream.folder() / "gaps-out.zarr")
        report = run(path, output)
        missing = 100 * float(np.isnan(b).mean())
        print(f"{kind}: {missing:.0f} % missing")
        wrong = compare(b, output, options.sample)
        failed |= bool(wrong)
        for line in wrong[:10]:
            print(f"  {line}")
        counts = ", ".join(f"{name} {count}" for name, count in report.statuses.items())
        verdict = f"{len(wrong)} DIFFER" if wrong else "all agree"
        lines.append(f"{kind}: {b[0].size} pixels in {report.seconds:.1f} s, {verdict}; {counts}")
        shutil.rmtree(output)
        shutil.rmtree(path)
    print(f"streamed with gaps, {options.sample} pixels of each against numpy within the bound of backward stability:")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
