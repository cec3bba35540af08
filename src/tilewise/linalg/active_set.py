"""Active-set solutions of bounded least squares, exact, for all pixels of a batch at once.

The problem at each pixel is min ||R x - c|| for 0 <= x <= upper, and sum x = 1 where that is asked. An unknown is free,
at zero, or at its upper bound. With g = R^T (c - R x), less its value at the free unknowns where their sum is known,
x is a minimiser exactly where the free ones solve the least squares on their set within the bounds and

    g_j <= 0 for those at zero,      g_j >= 0 for those at their upper bound.

Two methods follow one another, each on the pixels that are not finished:

- Block exchange (Portugal, Judice and Vicente, A comparison of block pivoting and interior-point algorithms for linear
  least squares problems with nonnegative variables, Mathematics of Computation 63, 1994): all unknowns start free, and
  all that violate a condition change sides together. It takes two or three steps where it ends, and is given up after
  p + 3: it may run in circles.
- The method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23; with upper bounds Stark and Parker,
  Bounded-variable least-squares, Computational Statistics 10, 1995): from a feasible point one unknown at a time is
  freed, that of steepest ascent, and a step that would leave the bounds is cut short. The residual falls with every
  new point, so that no set comes back and it ends. Its sets never hold dependent columns: one that would be is passed
  over, as is one that would move to the wrong side of its bound, which only rounding can make it do.

What counts as zero. g is computed within (2 p + 2) u |R|^T (|c| + |R||x|), u = 2^-53, so below 4 p u ||r_j|| (||c|| +
sum ||r_k|| x_k) a violation cannot be told from rounding. Of candidates within that of the steepest the first is
taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewise.linalg.passive_sets import Sets, U
from tilewise.linalg.subset import LANES

#: Solutions are kept within these, so that no step multiplies zero by infinity.
_FAR = 2.0**1000


@dataclass(frozen=True)
class Problem:
    """Bounded least squares of w pixels.

    Attributes
    ----------
    sets
        R, and how to solve on a set of unknowns.
    c
        (p, w) right-hand sides.
    size
        (p, w) or (p, 1) norms of the columns.
    level
        (w,) norm of the right-hand sides before compression.
    upper
        (p, w) upper bounds, or None.
    total
        (w,) ones where the unknowns sum to one, or None.
    """

    sets: Sets
    c: torch.Tensor
    size: torch.Tensor
    level: torch.Tensor
    upper: torch.Tensor | None
    total: torch.Tensor | None

    def take(self, pixels: torch.Tensor) -> Problem:
        """The problem of chosen pixels."""
        return Problem(
            self.sets.take(pixels),
            self.c[:, pixels],
            self.size if self.size.shape[1] == 1 else self.size[:, pixels],
            self.level[pixels],
            None if self.upper is None else self.upper[:, pixels],
            None if self.total is None else self.total[pixels],
        )

    def solve(self, free: torch.Tensor, above: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The point (p, w) with the free unknowns solved for, and which sets (w,) are without dependent columns."""
        c, total = self.c, self.total
        if above is None or self.upper is None or not bool(above.any()):
            z, independent = self.sets.solve(free, c, total)
            return z.clamp_(-_FAR, _FAR), independent
        held = torch.where(above, self.upper, 0.0)
        if total is not None:
            total = total - held.sum(0)
        z, independent = self.sets.solve(free, c - self.sets.product(held), total)
        z = torch.where(above, self.upper, z.clamp_(-_FAR, _FAR))
        return self._single(z, free, self.upper), independent

    def _single(self, z: torch.Tensor, free: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
        """z with a lone free unknown, which has what the sum leaves it, brought back where rounding put it outside."""
        if self.total is None:
            return z
        inside = torch.minimum(z.clamp(min=0), upper)
        lone = free & (free.sum(0) == 1) & ((z - inside).abs() <= 4 * len(z) * U)
        return torch.where(lone, inside, z)

    def gradient(self, x: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """g (p, w) at x, less its value at the free unknown of smallest column where their sum is known."""
        return self.relative(self.sets.gradient(self.c - self.sets.product(x)), free)

    def relative(self, g: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """g (p, w) less its value at the free unknown of smallest column, where the sum is known."""
        if self.total is None:
            return g
        return g - g.gather(0, self.anchor(free))

    def anchor(self, free: torch.Tensor) -> torch.Tensor:
        """The free unknown (1, w) of smallest column."""
        return torch.where(free, self.size, torch.inf).argmin(0, keepdim=True)

    def noise(self, x: torch.Tensor, free: torch.Tensor, roundings: float) -> torch.Tensor:
        """What g (p, w) may be by rounding: this part of ||r_j|| (||c|| + sum ||r_k|| |x_k|)."""
        around = (self.level + (self.size * x.abs()).sum(0)) * roundings
        size = self.size
        if self.total is not None:
            size = size + size.expand_as(x).gather(0, self.anchor(free))
        return size * around


@dataclass(frozen=True)
class Point:
    """Where each pixel stands: x (p, w), which unknowns are free and which at their upper bound, and who is done."""

    x: torch.Tensor
    free: torch.Tensor
    above: torch.Tensor | None
    done: torch.Tensor

    def take(self, pixels: torch.Tensor) -> Point:
        """The points of chosen pixels."""
        above = None if self.above is None else self.above[:, pixels]
        return Point(self.x[:, pixels], self.free[:, pixels], above, self.done[pixels])

    def put(self, pixels: torch.Tensor, other: Point) -> None:
        """Take over the points of chosen pixels."""
        self.x[:, pixels] = other.x
        self.free[:, pixels] = other.free
        if self.above is not None and other.above is not None:
            self.above[:, pixels] = other.above
        self.done[pixels] = other.done


def exchanges(p: int) -> int:
    """Steps of block exchange after which it is given up."""
    return p + 3


def minimise(problem: Problem, regular: torch.Tensor, max_iter: int) -> Point:
    """Minimisers of all pixels; `done` says where the conditions hold.

    `regular` (w,) are the pixels without dependent columns, which block exchange may serve. `max_iter` is the most
    solutions on a set that a pixel takes.
    """
    point = start(problem)
    pixels = _chosen(regular)
    spent = 0
    if len(pixels):
        everyone = bool(regular.all())
        found, spent = _block_exchange(
            problem if everyone else problem.take(pixels), min(max_iter, exchanges(len(problem.c)))
        )
        if everyone and bool(found.done.all()):
            return found
        point.put(pixels[found.done], found.take(_where(found.done)))
    pixels = _chosen(~point.done)
    if len(pixels) and max_iter > spent:
        found = _lawson_hanson(problem.take(pixels), point.take(pixels), max_iter - spent)
        point.put(pixels, found)
    return point


def start(problem: Problem) -> Point:
    """A feasible point: zero; or where the sum is known, unknowns filled to their bounds in order until it is one."""
    x = torch.zeros_like(problem.c)
    free = torch.zeros_like(x, dtype=torch.bool)
    above = None if problem.upper is None else free.clone()
    done = torch.zeros_like(free[0])
    if problem.total is None:
        return Point(x, free, above, done)
    if problem.upper is None or above is None:
        x[0], free[0] = problem.total, True
        return Point(x, free, above, done)
    left = problem.total.clone()
    last = torch.zeros_like(left, dtype=torch.long)
    for j, bound in enumerate(problem.upper):
        x[j] = torch.minimum(left, bound)
        last = torch.where(x[j] > 0, j, last)
        above[j] = (x[j] == bound) & (bound > 0)
        left = left - x[j]
    above.scatter_(0, last.unsqueeze(0), False)
    free.scatter_(0, last.unsqueeze(0), True)
    return Point(x, free, above, done)


def _block_exchange(problem: Problem, steps: int) -> tuple[Point, int]:
    """Exchange all violators of all pixels at once, until none are left or the steps are spent."""
    p, w = problem.c.shape
    free = torch.ones(p, w, dtype=torch.bool, device=problem.c.device)
    above = None if problem.upper is None else torch.zeros_like(free)
    result = Point(torch.zeros_like(problem.c), free.clone(), _copy(above), torch.zeros_like(free[0]))
    pixels = torch.arange(w, device=free.device)
    for step in range(1, steps + 1):
        z, enter, leave = _violations(problem, free, above)
        wrong = enter | leave
        done = ~wrong.any(0)
        result.put(pixels, Point(z, free, above, done))
        if above is not None and problem.upper is not None:
            above = (above & ~enter) | (leave & (z > 0))
        free = free ^ wrong
        # The sum needs someone to carry it.
        on = ~done if problem.total is None else ~done & free.any(0)
        kept = _chosen(on)
        if len(kept) == 0:
            return result, step
        if not bool(on.all()):
            pixels, problem = pixels[kept], problem.take(kept)
            free, above = free[:, kept], None if above is None else above[:, kept]
    return result, steps


def _violations(
    problem: Problem, free: torch.Tensor, above: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The point (p, w) of the free sets, the closed unknowns to be freed, and the free ones outside their bounds."""
    z, _ = problem.solve(free, above)
    g = problem.gradient(z, free)
    noise = problem.noise(z, free, 4 * len(z) * U)
    leave = free & (z < 0)
    if problem.upper is None or above is None:
        return z, (g > noise) & ~free, leave
    enter = ~free & (problem.upper > 0) & torch.where(above, g < -noise, g > noise)
    return z, enter, leave | (free & (z > problem.upper))


def _lawson_hanson(problem: Problem, point: Point, max_iter: int) -> Point:
    """Free one unknown at a time, from a feasible point, for every pixel at its own pace."""
    result = Point(point.x.clone(), point.free.clone(), _copy(point.above), point.done.clone())
    pixels = torch.arange(point.x.shape[1], device=point.x.device)
    entering = torch.full_like(pixels, -1)
    blocked = torch.zeros_like(point.free)
    for _ in range(max_iter):
        point, entering, blocked = _step(problem, point, entering, blocked)
        result.put(pixels, point)
        kept = _chosen(~point.done)
        if len(kept) == 0:
            break
        if bool(point.done.any()):
            pixels, problem, point = pixels[kept], problem.take(kept), point.take(kept)
            entering, blocked = entering[kept], blocked[:, kept]
    return result


def _step(
    problem: Problem, point: Point, entering: torch.Tensor, blocked: torch.Tensor
) -> tuple[Point, torch.Tensor, torch.Tensor]:
    """One solution on the free sets, and what follows from it: a whole step and a new candidate, or part of a step."""
    x, free, above = point.x, point.free, point.above
    rows = torch.arange(len(x), device=x.device).unsqueeze(-1)
    entered = rows == entering
    z, independent = problem.solve(free, above)
    inward = torch.where(entered, z - x, 1.0)
    came_from_above = None
    if above is not None and problem.upper is not None:
        came_from_above = entered & (x >= problem.upper)
        inward = torch.where(came_from_above, x - z, inward)
    refused = (entering >= 0) & ~(independent & (inward > 0).all(0))
    # A refused unknown goes back to its bound, and the point stays.
    back = entered & refused
    free = free & ~back
    blocked = blocked | back
    if above is not None and came_from_above is not None:
        above = above | (back & came_from_above)
    x, free, above, whole = _moved(problem, x, torch.where(refused, x, z), free, above)
    blocked = blocked & refused
    entering, found = _candidate(problem, x, free, above, blocked)
    chosen = found & whole
    entering = torch.where(chosen, entering, -1)
    entered = rows == entering
    done = whole & ~found
    free = free | entered
    if above is not None:
        above = above & ~entered
    return Point(x, free, above, done), entering, blocked


def _moved(
    problem: Problem, x: torch.Tensor, z: torch.Tensor, free: torch.Tensor, above: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """From x towards z as far as the bounds allow; those that stop it leave the free set."""
    low = free & (z < 0)
    high = torch.zeros_like(low) if problem.upper is None else free & (z > problem.upper)
    bound = torch.zeros_like(x) if problem.upper is None else torch.where(high, problem.upper, 0.0)
    outside = low | high
    length = torch.where(outside, ((x - bound) / (x - z)).clamp(0, 1), torch.inf)
    shortest = length.amin(0)
    whole = shortest == torch.inf
    stops = outside & (length <= shortest)
    if problem.total is not None:
        # One unknown stays free to carry the sum, at a bound if it must.
        last = ~(free & ~stops).any(0)
        stays = torch.zeros_like(stops).scatter_(0, problem.anchor(free), True) & last
        left = stops & ~stays
    else:
        left = stops
    moved = torch.where(free, x + shortest.clamp(max=1) * (z - x), x)
    if problem.upper is not None:
        moved = torch.minimum(moved, problem.upper)
    moved = torch.where(stops, bound, moved.clamp(min=0))
    if above is not None:
        above = above | (left & high)
    return torch.where(whole, z, moved), free & ~left, above, whole


def _candidate(
    problem: Problem, x: torch.Tensor, free: torch.Tensor, above: torch.Tensor | None, blocked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The unknown (w,) to be freed next: of those within rounding of the steepest the first; and whether there is."""
    g = problem.gradient(x, free)
    noise = problem.noise(x, free, 4 * len(x) * U)
    closed = free | blocked
    if problem.upper is not None and above is not None:
        g = torch.where(above, -g, g)
        closed = closed | (problem.upper <= 0)
    size = torch.where(problem.size > 0, problem.size, 1.0)
    score = torch.where(closed | (g <= noise), 0.0, g / size)
    best = score.amax(0)
    near = (score > 0) & (score >= best - noise / size)
    return near.to(torch.uint8).argmax(0), best > 0


def _copy(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.clone()


def _where(mask: torch.Tensor) -> torch.Tensor:
    return mask.nonzero().flatten()


def _chosen(mask: torch.Tensor) -> torch.Tensor:
    """Places of the true ones, the last repeated until vector loops have no tail: bits must not depend on position."""
    chosen = _where(mask)
    missing = -len(chosen) % (4 * LANES)
    if missing == 0 or len(mask) < 4 * LANES or bool(mask.all()):
        return chosen
    return torch.cat([chosen, chosen[-1:].expand(missing)]) if len(chosen) else chosen
