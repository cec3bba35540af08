"""From tensors of a kernel to least-squares tiles: what all pixels share is factored once, and each tile is solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tilewise.errors import ParameterError
from tilewise.linalg.factors import factor
from tilewise.linalg.fits import Patterns
from tilewise.linalg.pixels import Found, solve_pixels
from tilewise.linalg.precision import SINGLE, SINGLE_CONDITION, common_dtype, double_dtype, held_by_float32
from tilewise.linalg.products import Batch, Product, Solver, solve_shared, solve_varying
from tilewise.linalg.regression import Design, regress
from tilewise.linalg.rows import Panel, Rules
from tilewise.linalg.scaling import magnitude, scaled_by
from tilewise.linalg.shared import check_finite, shared_rows

Tensors = Mapping[str, torch.Tensor]
#: Diagnostics that one product or one batch of factors gives without a look at the rows.
PLAIN = frozenset({"rank", "residual_norm"})


@dataclass(frozen=True)
class Options:
    """Parameters of a least-squares problem, as the kernel `lstsq` has them."""

    policy: str = "propagate"
    min_valid: int = 1
    rcond: float | None = None
    ridge: tuple[float, ...] = ()
    precision: str = "auto"
    keep_deficient: bool = True
    absolute: bool = False


@dataclass(frozen=True)
class State:
    """What all pixels share.

    Attributes
    ----------
    design
        The shared design, factored.
    L
        (q, p) Tikhonov matrix, or None.
    single
        Whether the product of a shared A may be applied in float32 to a b that arrives in it.
    """

    design: Design
    L: torch.Tensor | None
    single: bool

    @property
    def plain(self) -> bool:
        """Whether what all pixels share leaves all rows there, with weight one and no L below them."""
        rules = self.design.rules
        return rules.kept is None and rules.root is None and self.L is None


def least_squares_state(shared: Tensors, dim: str, options: Options) -> State:
    """Factor what all pixels share, once: any of A (n, p), weights (n,) and L (q, p).

    Raises
    ------
    ParameterError
        A shared value is not finite, or no weight; or float32 is asked for and cannot hold the pseudo-inverse.
    """
    A, weights = shared.get("A"), shared.get("weights")
    rules, A = shared_rows(A, weights, dim, policy=options.policy, min_valid=options.min_valid)
    L = shared.get("L")
    if L is not None:
        check_finite("L", L, "row", do="mend L")
    if A is None:
        return State(Design.of(rules, None), L, single=False)
    penalty = _penalty(L, options.ridge, A.shape[1], A.device, rules)
    A = A if penalty is None else A.to(double_dtype(A, penalty))
    design = Design.of(rules, A, penalty, options.rcond)
    if design.fit is None:
        return State(design, L, single=False)
    P = design.fit.pseudoinverse
    held = held_by_float32(P) and held_by_float32(A)
    if options.precision == "float32" and not held:
        raise ParameterError(
            "kernel.precision float32 cannot hold A and its pseudo-inverse",
            got=f"largest entries {float(magnitude(A).max()):.3g} and {float(magnitude(P).max()):.3g}",
            expected="entries within the range of float32",
            do="set kernel.precision to auto",
        )
    well = float(design.fit.cond) <= SINGLE_CONDITION
    return State(design, L, single=shared["A"].dtype in SINGLE and well and held)


def _penalty(
    L: torch.Tensor | None, ridge: tuple[float, ...], p: int, device: torch.device, rules: Rules
) -> torch.Tensor | None:
    """Rows (q, p) of ||L x||^2 and of the ridge, an unknown with ridge 0 having none, scaled as shared weights are."""
    rows = []
    if any(ridge):
        values = torch.tensor(ridge * (p if len(ridge) == 1 else 1), dtype=torch.float64, device=device)
        rows.append(values.sqrt().diag()[values > 0])
    if L is not None:
        rows.append(L.to(double_dtype(L)))
    if not rows:
        return None
    shift = torch.tensor(-rules.exponent // 2, device=device)
    return scaled_by(torch.cat([part.to(double_dtype(*rows)) for part in rows]), shift)


def solve_least_squares(state: State, fields: Tensors, out: Tensors, options: Options, *, panel: int) -> None:
    """Least-squares solutions of a tile, by the shared design of `state` or by the A of `fields`."""
    plain = state.plain and options.policy == "propagate" and "weights" not in fields and not any(options.ridge)
    if plain and set(out) <= PLAIN | {"solution", "status"}:
        _solve_plainly(state, fields, out, options, panel=panel)
        return
    dtype = double_dtype(state.design.A, state.L, *fields.values())
    design = state.design.to(dtype)
    if design.A is None:
        penalty = _penalty(state.L, options.ridge, out["solution"].shape[0], out["solution"].device, design.rules)
        design = Design.of(design.rules, None, penalty, options.rcond)
    wanted = frozenset(out) | (frozenset({"absolute"}) if options.absolute and "stderr" in out else frozenset())
    if options.absolute:
        wanted -= {"stderr"}

    known = Patterns()

    def solve(found_in: Panel) -> Found:
        if len(found_in.b) == 0:
            return _nothing(found_in, out)
        found = regress(design, found_in, wanted, known)
        deficient = found["rank"] < found["solution"].shape[0]
        if "condition" in out:
            found["condition"] = torch.where(deficient, torch.inf, found["cond"])
        if not options.keep_deficient:
            found["lost"] = deficient
        del found["cond"]
        return found

    solve_pixels(solve, design.rules, fields, out, dtype, panel=panel)


def _nothing(panel: Panel, out: Tensors) -> Found:
    """Outputs where no row is ever there: the driver says no_data of every pixel."""
    width = panel.b.shape[1]
    return {name: view.new_zeros(*view.shape[: name in ("solution", "stderr")], width) for name, view in out.items()}


def _solve_plainly(state: State, fields: Tensors, out: Tensors, options: Options, *, panel: int) -> None:
    """Every row is there, with weight one."""
    fit = state.design.fit
    if fit is None or state.design.A is None:

        def factored(A: torch.Tensor) -> tuple[Solver, torch.Tensor]:
            factors = factor(A, options.rcond)
            return factors, _lost(factors.rank, A.shape[1], options)

        solve_varying(factored, {**fields, **out}, double_dtype(*fields.values()), panel=panel)
        return
    b = fields["b"]
    single = options.precision == "float32" or (options.precision == "auto" and state.single and b.dtype in SINGLE)
    dtype = common_dtype(single, state.design.A, b)
    ready = Product(fit.pseudoinverse.to(dtype).unsqueeze(0), fit.rank, fit.status)
    lost = _lost(fit.rank, state.design.A.shape[1], options)
    solve_shared(Batch(ready, lost, state.design.A.to(dtype).unsqueeze(0)), {**fields, **out}, dtype, panel=panel)


def _lost(rank: torch.Tensor, unknowns: int, options: Options) -> torch.Tensor:
    return torch.zeros_like(rank, dtype=torch.bool) if options.keep_deficient else rank < unknowns
