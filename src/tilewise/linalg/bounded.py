"""From tensors of a kernel to tiles of bounded least squares: a shared A compressed once, others batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from tilewise.errors import ParameterError
from tilewise.linalg.batching import designs_at_once
from tilewise.linalg.compression import Compressed, compress_own, compress_shared
from tilewise.linalg.nonnegative import Constraints, Minimiser, can_sum_to_one, solve_compressed
from tilewise.linalg.pixels import Found, solve_pixels
from tilewise.linalg.projection import PROJECTED, solve_by_projection
from tilewise.linalg.regression import Design, r_squared
from tilewise.linalg.rows import Panel, Rules
from tilewise.linalg.scaling import euclidean_norm, power_of_two
from tilewise.linalg.shared import shared_rows

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Options:
    """Parameters of a bounded problem, as the kernel `nnls` has them; `upper` is empty where there is no bound."""

    policy: str
    min_valid: int
    rcond: float | None
    sum_to_one: bool
    upper: tuple[float, ...]
    max_iter: int | None
    r2: bool


@dataclass(frozen=True)
class State:
    """What all pixels share.

    Attributes
    ----------
    rules
        How rows are read.
    A, compressed
        A shared matrix (n, p), times the roots of shared weights, and the same for pixels with all rows; or None.
    upper
        (p, 1) upper bounds, or None.
    design
        The unbounded problem, where r2 asks whether a constant lies in its column space.
    """

    rules: Rules
    A: torch.Tensor | None
    compressed: Compressed | None
    upper: torch.Tensor | None
    design: Design | None


def bounded_state(shared: Tensors, dim: str, options: Options) -> State:
    """Compress what all pixels share, once: any of A (n, p), weights (n,) and upper bounds (p,).

    Raises
    ------
    ParameterError
        A shared value is not finite, or no weight; or shared bounds cannot hold.
    """
    A, weights = shared.get("A"), shared.get("weights")
    rules, A = shared_rows(A, weights, dim, policy=options.policy, min_valid=options.min_valid)
    upper = shared.get("upper")
    if upper is not None:
        _check_upper(upper, options)
        upper = upper.double().unsqueeze(-1)
    compressed = None
    if A is not None and len(A):
        compressed = compress_shared(A, options.rcond, sum_to_one=options.sum_to_one)
    design = Design.of(rules, A, None, options.rcond) if options.r2 else None
    return State(rules, A, compressed, upper, design)


def _check_upper(upper: torch.Tensor, options: Options) -> None:
    bad = (~(upper >= 0)).nonzero().flatten()
    if len(bad):
        raise ParameterError(
            "upper, which all pixels share, has a bound that cannot hold",
            got=f"{upper[bad[0]].item()} for unknown {int(bad[0])}",
            expected="numbers of at least 0, inf for no bound",
            do="mend the bounds",
        )
    if options.sum_to_one and not bool(can_sum_to_one(upper.double().unsqueeze(-1))):
        raise ParameterError(
            "the unknowns cannot sum to one",
            got=f"upper bounds that sum to {float(upper.double().sum()):.6g}",
            do="raise the bounds, or set kernel.sum_to_one to false",
        )


def solve_bounded(state: State, fields: Tensors, out: Tensors, options: Options, *, panel: int) -> None:
    """Bounded least-squares solutions of a tile, by the shared A of `state` or by the A of `fields`."""
    p = out["solution"].shape[0]
    constraints = Constraints(options.sum_to_one, options.max_iter or 10 * p)
    upper = state.upper
    if options.upper:
        values = options.upper * (p if len(options.upper) == 1 else 1)
        upper = torch.tensor(values, dtype=torch.float64, device=fields["b"].device).unsqueeze(-1)
    design = state.design if state.A is not None else Design.of(state.rules, None, None, options.rcond)

    def solve(given: Panel) -> Found:
        bounds = given.others.get("upper")
        if bounds is None and upper is not None:
            bounds = upper.expand(p, given.b.shape[1])
        found = _solved(state, given, bounds, constraints, options, out)
        if "r2" in out and design is not None and len(given.b):
            found["r2"] = r_squared(design, given, found["r2"])
        return found

    def look(some: Tensors, outputs: Tensors) -> None:
        solve_pixels(solve, state.rules, some, outputs, torch.float64, panel=panel)

    compressed, rules = state.compressed, state.rules
    plain = set(fields) == {"b"} and upper is None and rules.kept is None and rules.root is None
    if plain and compressed is not None and compressed.table is not None and set(out) <= PROJECTED:
        solve_by_projection(compressed, compressed.table, constraints, fields["b"], out, look)
        return
    look(fields, out)


def _solved(
    state: State,
    panel: Panel,
    upper: torch.Tensor | None,
    constraints: Constraints,
    options: Options,
    out: Tensors,
) -> Found:
    """Outputs of a panel; what stands for r2 is the residual norm, of weights as the panel has them."""
    width = panel.b.shape[1]
    if len(panel.b) == 0:
        return {name: view.new_zeros(*view.shape[: name == "solution"], width) for name, view in out.items()}
    if panel.weights is None and state.compressed is not None and state.A is not None:
        return _outputs(
            solve_compressed(state.compressed, panel.b, upper, constraints),
            state.A,
            panel,
            panel.b,
            out,
            state.rules.exponent,
        )
    found: Found = {}
    for where in _batches(panel, out["solution"].shape[0]):
        part = panel.take(where)
        A = part.A if state.A is None else state.A.unsqueeze(-1)
        assert A is not None
        root = None if part.weights is None else part.weights if part.binary else part.weights.sqrt()
        b = part.b if root is None else part.b * root
        A = A if root is None else A * root.unsqueeze(1)
        compressed = compress_own(
            A, part.count, options.rcond, sum_to_one=constraints.sum_to_one, want_cond="condition" in out
        )
        bounds = None if upper is None else upper[:, where]
        some = _outputs(solve_compressed(compressed, b, bounds, constraints), A, part, b, out, state.rules.exponent)
        if not found:
            found = {name: values.new_zeros(*values.shape[:-1], width) for name, values in some.items()}
        for name, values in some.items():
            found[name][..., where] = values
    return found


def _batches(panel: Panel, p: int) -> Iterator[torch.Tensor]:
    """Pixels with matrices of their own, as many as are worked on at a time: a multiple of 64 where that many are."""
    n, width = panel.b.shape
    step = designs_at_once(n, p)
    step = step // 64 * 64 if step >= 64 else step
    for start in range(0, width, step):
        yield torch.arange(start, min(start + step, width), device=panel.b.device)


def _outputs(found: Minimiser, A: torch.Tensor, panel: Panel, b: torch.Tensor, out: Tensors, exponent: int) -> Found:
    """What is wanted, of A (n, p) or (n, p, w) and b (n, w) as they were solved for."""
    outputs: Found = {"solution": found.x, "status": found.status}
    if "rank" in out:
        outputs["rank"] = found.rank.clone()
    if "condition" in out:
        outputs["condition"] = found.condition.clone()
    if "residual_norm" in out or "r2" in out:
        norm = _residual_norm(A, b, found.x)
        if "residual_norm" in out:
            outputs["residual_norm"] = norm * power_of_two((panel.exponent + exponent) // 2)
        if "r2" in out:
            outputs["r2"] = norm
    if found.infeasible is not None:
        outputs["lost"] = found.infeasible
    return outputs


def _residual_norm(A: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if A.dim() == 2:
        return euclidean_norm(torch.addmm(b, A, x, alpha=-1), dim=0)
    r = b.clone()
    for column, row in zip(A.unbind(1), x.unbind(0), strict=True):
        r.addcmul_(column, row, value=-1)
    return euclidean_norm(r, dim=0)
