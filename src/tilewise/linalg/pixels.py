"""Tiles of pixels with rows of their own: gathered into panels, looked at, solved, and written.

A solver is given clean numbers only (`rows.Panel`), and gives for each pixel its outputs, with the status that the
mathematics finds. What is wrong with the data is said here: no_data, non_finite, too_few. A pixel has the highest
status that applies to it.

Pixels of which every row is there with weight 1 are solved together, and the others apart from them, gathered without
gaps: so what a whole pixel gets does not depend on what its neighbours lack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tilewise.errors import MissingValueError
from tilewise.fields import Status
from tilewise.linalg.layout import box_of, boxes, core_of, merge_tile_axes, padded
from tilewise.linalg.rows import Look, Panel, Rules, look

Tensors = Mapping[str, torch.Tensor]
#: Outputs of one panel by name: "solution" (p, w), "status" (w,) uint8, and whatever else is declared; and "lost" (w,)
#: bool where some solutions are to be NaN.
Found = dict[str, torch.Tensor]
Solver = Callable[[Panel], Found]

#: Outputs that stand for the data and the matrix, and stay where a solution is not given.
_KEPT = ("status", "rank", "n_valid", "condition")


@dataclass(frozen=True)
class _Buffers:
    b: torch.Tensor
    A: torch.Tensor | None
    weights: torch.Tensor | None
    mask: torch.Tensor | None
    others: dict[str, torch.Tensor]


def solve_pixels(
    solve: Solver,
    rules: Rules,
    fields: Tensors,
    out: Tensors,
    dtype: torch.dtype,
    *,
    panel: int,
) -> None:
    """Solve every pixel of a tile.

    Parameters
    ----------
    solve
        Solves a panel; called with pixels whose rows are all there and count alike, and with others, apart.
    rules
        How rows are read.
    fields
        b (n, *tile), and where they vary A (n, p, *tile), weights (n, *tile), and others (k, *tile); of size 1 along
        the tile axes that they lack.
    out
        Outputs to be filled.
    dtype
        float64 or complex128: what is computed in.
    panel
        Pixels worked on at a time.

    Raises
    ------
    MissingValueError
        The policy is "raise", and a row that is there has a NaN.
    """
    tile = out["status"].shape
    names = {**fields, **out}
    core = {name: core_of(name) for name in names}
    if not tile:
        names = {name: view.unsqueeze(-1) for name, view in names.items()}
    views = merge_tile_axes(names, core)
    inputs = {name: views[name] for name in fields}
    outputs = {name: views[name] for name in out}
    whole = outputs["status"].shape
    buffers = _buffers(inputs, rules, dtype, panel)
    for box in boxes(whole, panel):
        shape = [s.stop - s.start for s in box]
        seen = _gathered({n: box_of(v, core[n], box) for n, v in inputs.items()}, rules, shape, buffers)
        if seen.nan is not None:
            _refuse(seen.nan, box, shape, whole, tile)
        found = _solved(solve, seen)
        _flag(found, seen, rules, outputs)
        for name, view in outputs.items():
            part = box_of(view, core[name], box)
            part.copy_(torch.unflatten(found[name][..., : math.prod(shape)], -1, shape))


def _buffers(inputs: Tensors, rules: Rules, dtype: torch.dtype, panel: int) -> _Buffers:
    b = inputs["b"]
    n = len(b) if rules.kept is None else len(rules.kept)
    size = {name: view.shape[:-1] for name, view in inputs.items()}

    def zeros(*shape: int, of: torch.dtype) -> torch.Tensor:
        return torch.zeros(*shape, panel, dtype=of, device=b.device)

    others = [name for name in size if name not in ("A", "b", "weights")]
    return _Buffers(
        zeros(n, of=dtype),
        zeros(n, inputs["A"].shape[1], of=dtype) if "A" in inputs else None,
        zeros(n, of=torch.float64) if "weights" in inputs else None,
        zeros(n, of=torch.float64) if rules.policy == "omit" else None,
        {name: zeros(inputs[name].shape[0], of=torch.float64) for name in others},
    )


def _gathered(part: Tensors, rules: Rules, shape: Sequence[int], buffers: _Buffers) -> Look:
    """One box in the buffers, and what is there of it; places beyond the box hold copies of its first pixel."""
    b = _fill(buffers.b, part["b"], rules.kept, shape)
    A = None if buffers.A is None else _fill(buffers.A, part["A"], rules.kept, shape)
    weights = None if buffers.weights is None else _fill(buffers.weights, part["weights"], rules.kept, shape)
    others = {name: _fill(into, part[name], None, shape) for name, into in buffers.others.items()}
    if rules.root is not None:
        _times(b, rules.root)
        if A is not None:
            _times(A, rules.root.unsqueeze(-1))
    return look(rules, b, A, weights, others, buffers.mask)


def _times(x: torch.Tensor, factor: torch.Tensor) -> None:
    """Multiply by real numbers in place, part by part: a complex product makes NaN of an infinity."""
    if x.is_complex():
        torch.view_as_real(x).mul_(factor.unsqueeze(-1))
    else:
        x *= factor


def _fill(into: torch.Tensor, view: torch.Tensor, kept: torch.Tensor | None, shape: Sequence[int]) -> torch.Tensor:
    view = view if kept is None else view.index_select(0, kept)
    used = math.prod(shape)
    torch.unflatten(into[..., :used], -1, list(shape)).copy_(view)
    if used < into.shape[-1]:
        into[..., used:] = into[..., :1]
    return into


def _solved(solve: Solver, seen: Look) -> Found:
    """Outputs of a panel: whole pixels together, the others apart."""
    panel = seen.panel
    apart = seen.partial
    if panel.A is not None and (apart is not None or seen.bad is not None):
        apart = panel.count > 0  # every matrix is factored anyway, and one of zeros is not worth it
    if apart is None or not bool(apart.any()):
        return solve(panel.whole())
    if bool(apart.all()):
        return solve(panel)
    where = apart.nonzero().flatten()
    whole_are_left = panel.A is None and bool((~apart & (panel.count > 0)).any())
    places = torch.cat([where, where[:1].expand(padded(len(where)) - len(where))])
    others = solve(panel.take(places))
    found = solve(panel.whole()) if whole_are_left else _blank(others, panel.b.shape[1])
    for name, values in others.items():
        if name not in found:
            found[name] = values.new_zeros(*values.shape[:-1], panel.b.shape[1])
        found[name][..., where] = values[..., : len(where)]
    if "lost" in found and "lost" not in others:
        found["lost"][where] = False
    return found


def _blank(like: Found, width: int) -> Found:
    return {name: values.new_zeros(*values.shape[:-1], width) for name, values in like.items()}


def _flag(found: Found, seen: Look, rules: Rules, outputs: Tensors) -> None:
    """Say what the data lack, and leave NaN where there is no answer."""
    if "n_valid" in outputs:
        found["n_valid"] = seen.count
    none = seen.count == 0
    gone = none if seen.bad is None else none | seen.bad
    status = found["status"]
    if rules.min_valid > 1:
        few = seen.count < rules.min_valid
        status = torch.where(few, status.clamp(min=int(Status.TOO_FEW)), status)
        gone = gone | few
    lost = found.pop("lost", None)
    solution = found["solution"] = _stored(found["solution"], outputs["solution"].dtype)
    spoilt = seen.bad
    if not bool(solution.sum().isfinite()):
        blown = ~solution.isfinite().all(0) & ~(gone if lost is None else gone | lost)
        spoilt = blown if spoilt is None else blown | spoilt
    if spoilt is not None:
        status = status.masked_fill(spoilt, int(Status.NON_FINITE))
        gone = gone | spoilt
    found["status"] = status.masked_fill(none, int(Status.NO_DATA))
    gone = gone if lost is None else gone | lost
    if bool(gone.any()):
        _blot(found, gone, none if spoilt is None else spoilt, none)


def _blot(found: Found, gone: torch.Tensor, spoilt: torch.Tensor, none: torch.Tensor) -> None:
    """NaN where a pixel has no answer; its rank and count stay, 0 without data and -1 where these are not finite."""
    for name, values in found.items():
        if name not in _KEPT:
            values.masked_fill_(gone, math.nan)
    if "rank" in found:
        found["rank"] = found["rank"].masked_fill(spoilt, -1).masked_fill(none, 0)
    if "condition" in found:
        found["condition"] = found["condition"].masked_fill(none | spoilt, math.nan)


def _stored(solution: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return solution if solution.dtype == dtype else solution.to(dtype)


def _refuse(column: int, box: Sequence[slice], shape: Sequence[int], whole: Sequence[int], tile: Sequence[int]) -> None:
    """Name the pixel: merging axes keeps their order, so its place counts the same in the tile's own axes."""
    corner = [s.start for s in box]
    index = [a + i for a, i in zip(corner, _unravelled(column, shape), strict=True)]
    flat = 0
    for i, size in zip(index, whole, strict=True):
        flat = flat * size + i
    raise MissingValueError(
        "a row that is there has a NaN",
        got=f"NaN at pixel {_unravelled(flat, tile)} of the tile, counted along the dimensions of status",
        expected="numbers: kernel.nan_policy is raise",
        do="set kernel.nan_policy to omit, which leaves such rows out, or to propagate, which flags the pixel",
    )


def _unravelled(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return tuple(reversed(index))
