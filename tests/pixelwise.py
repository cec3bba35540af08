"""Compare what a least-squares kernel says at every pixel of a tile with the exact answer of that pixel alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from contract import agree
from harness import Field, declare, evaluate
from oracles_systems import Array, U, column_scales
from oracles_weighted import EPS, Answer, Bounds, Problem, answer, bounds, condition_bound, decisive, rows_there
from tilewise.fields import Status
from tilewise.kernels.lstsq import Lstsq

U32 = 2.0**-24
ALL = ("rank", "n_valid", "condition", "residual_norm", "stderr", "r2")
#: What a job with a ridge may ask for.
RIDGED = ("rank", "n_valid", "condition", "residual_norm", "r2")
VALUES = ("solution", "residual_norm", "stderr", "r2")


def check(
    fields: Mapping[str, Field], *, panel: int | None = None, dtype: str | None = None, **parameters: Any
) -> dict[str, Array]:
    """Outputs of Lstsq over "e" with unknowns "u", once every pixel is what the oracle says."""
    ridged = "L" in fields or bool(np.any(parameters.get("ridge", 0.0)))
    parameters.setdefault("diagnostics", RIDGED if ridged else ALL)
    kernel = Lstsq(dim="e", unknown="u", **parameters)
    found = evaluate(kernel, fields, panel=panel, dtype=dtype)
    tile_dims = declare(kernel, fields).tile_dims
    for pixel, problem in problems(fields, tile_dims, kernel.ridge):
        check_pixel(kernel, {n: values[(..., *pixel)] for n, values in found.items()}, problem, str(pixel))
    return found


def problems(
    fields: Mapping[str, Field], tile_dims: tuple[str, ...], ridge: Any
) -> Iterator[tuple[tuple[int, ...], Problem]]:
    """Every pixel of a tile and its problem."""
    sizes = {dim: n for dims, data in fields.values() for dim, n in zip(dims, np.shape(data), strict=True)}
    L = np.asarray(fields["L"][1]) if "L" in fields else None
    if L is not None and fields["L"][0][0] == "u":
        L = L.T
    for pixel in product(*(range(sizes[dim]) for dim in tile_dims)):
        at = dict(zip(tile_dims, pixel, strict=True))
        A, b = select(fields["A"], at, "eu"), select(fields["b"], at, "e")
        w = select(fields["weights"], at, "e") if "weights" in fields else None
        yield pixel, Problem.of(A, b, w, ridge, L)


def select(field: Field, at: Mapping[str, int], order: str) -> Array:
    """The part of a field that a pixel uses, in double precision, its core axes in a given order."""
    dims, data = field
    picked = np.asarray(data)[tuple(at.get(dim, slice(None)) for dim in dims)]
    kept = [dim for dim in dims if dim not in at]
    picked = picked.transpose([kept.index(dim) for dim in order])
    return picked.astype(complex if np.iscomplexobj(picked) else float)


def check_pixel(kernel: Lstsq, ours: Mapping[str, Array], problem: Problem, where: str) -> None:
    right = answer(problem, kernel.nan_policy, kernel.min_valid, kernel.deficient, kernel.weights_kind)
    solved = bool(np.isfinite(right.solution).all())
    if right.status not in (Status.NO_DATA, Status.NON_FINITE):
        there, _ = rows_there(problem, kernel.nan_policy)
        assert decisive(problem.rows(there).stacked()[0], right.rank, kernel.rcond), f"{where}: a doubtful rank"
    assert (Status(int(ours["status"])), where) == (right.status, where)
    for name in ("rank", "n_valid"):
        if name in ours:
            assert (name, int(ours[name]), where) == (name, getattr(right, name), where)
    allowed = bounds(problem, kernel.nan_policy, right, unit_of(ours["solution"])) if solved else None
    for name in VALUES:
        if name in ours and (name != "r2" or not solved or centring_is_clear(kernel, problem, right)):
            check_values(name, ours[name], right, allowed, where)
    if "condition" in ours:
        check_condition(ours["condition"], right, problem.A.size + problem.penalty.size, where)


def centring_is_clear(kernel: Lstsq, problem: Problem, right: Answer) -> bool:
    """Whether floating point can tell if a constant is in the column space of A.

    The space is known to u times the condition of A: to half of the digits, unless A is ill-conditioned.
    """
    there, _ = rows_there(problem, kernel.nan_policy)
    kept = problem.rows(there)
    M = kept.stacked()[0][: len(kept.b)]
    D = column_scales(M)
    roots = np.sqrt(kept.weights)
    U, s = np.linalg.svd(M * D, full_matrices=False)[:2]
    rank = int((s > max(M.shape) * EPS * s[0]).sum())
    left = np.linalg.norm(roots - U[:, :rank] @ (U[:, :rank].conj().T @ roots)) / np.linalg.norm(roots)
    well = rank == 0 or s[0] / s[rank - 1] < EPS**-0.5
    return decisive(M, rank) and well and right.centred == (left < 1e-6)


def unit_of(solution: Array) -> float:
    return U if np.finfo(solution.dtype).eps < U32 else U32


def check_values(name: str, ours: Array, right: Answer, allowed: Bounds | None, where: str) -> None:
    exact = np.asarray(getattr(right, name))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact), err_msg=f"{name} at {where}")
    if allowed is None:
        return
    narrow = np.finfo(ours.dtype)
    bound = np.asarray(getattr(allowed, name))
    # An output is rounded to its dtype, and halves hold nothing between their subnormals either.
    with np.errstate(over="ignore", invalid="ignore"):
        bound = bound + narrow.eps * (abs(exact) + bound) + float(narrow.smallest_subnormal)
    wide = ours.astype(complex if np.iscomplexobj(ours) else float)
    with np.errstate(invalid="ignore"):
        inside = np.isnan(exact) | (abs(wide - exact) <= bound)
    assert inside.all(), f"{name} at {where}: {ours} for {exact}, which may differ by {bound}"


def check_condition(ours: Array, right: Answer, size: int, where: str) -> None:
    if not np.isfinite(right.conditions[0]):
        np.testing.assert_equal(float(ours), right.conditions[0], err_msg=f"condition at {where}")
        return
    # Rounded to its dtype, which holds no more than its largest number.
    narrow = np.finfo(ours.dtype)
    error = min(abs(float(ours) - cond) for cond in right.conditions)
    beyond = float(ours) == np.inf and max(right.conditions) > float(narrow.max)
    assert beyond or error <= condition_bound(right, size) + narrow.eps * max(right.conditions), (
        f"condition at {where}: {ours} for {right.conditions}"
    )


def between_solves(kernel: Lstsq, fields: Mapping[str, Field]) -> Any:
    """Twice what a solver may err at each pixel: the bound between two tilings, or two panels, of one job."""
    signature = declare(kernel, fields)
    shape = tuple(signature.sizes[dim] for dim in signature.tile_dims)
    p = signature.sizes["u"]
    found = {name: np.zeros((p, *shape)) for name in ("solution", "stderr")}
    found |= {name: np.zeros(shape) for name in ("residual_norm", "r2", "condition")}
    for pixel, problem in problems(fields, signature.tile_dims, kernel.ridge):
        right = answer(problem, kernel.nan_policy, kernel.min_valid, kernel.deficient, kernel.weights_kind)
        if not np.isfinite(right.solution).all():
            continue
        allowed = bounds(problem, kernel.nan_policy, right)
        for name, values in found.items():
            values[(..., *pixel)] = 2 * getattr(allowed, name)
    return lambda name, outputs: found.get(name, 0.0)


def agree_within(
    kernel: Lstsq, fields: Mapping[str, Field], one: Mapping[str, Array], other: Mapping[str, Array]
) -> None:
    """Two results of one job: counts and status alike, and values within twice what each may err."""
    bound = between_solves(kernel, fields)
    for name, values in one.items():
        agree(name, values, other[name], bound(name, one))


def gappy(rng: np.random.Generator, values: Array, share: float = 0.25) -> Array:
    """The values with a share of them missing."""
    return np.where(rng.random(values.shape) < share, np.nan, values)


def weights_of(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Weights of every kind: zero, powers of two, and others, over four decades."""
    return rng.choice([0.0, 1.0, 0.25, 1.7, 1e-2, 33.0], shape, p=[0.15, 0.25, 0.15, 0.15, 0.15, 0.15])
