"""How many matrices and right-hand sides are worked on at a time, and what that costs: integers alone, no torch."""

from __future__ import annotations

#: Vendors' batched routines fail or slow down above this many matrices.
MOST_MATRICES = 32_000 - 1
#: Elements of A worked on at a time: 2 MiB of float64, which stays in cache beside its factors.
MOST_ELEMENTS = 2**18
#: Unknowns up to which the factors of every set of them are made beforehand: 256 sets of 8 x 8 are 128 KiB.
MOST_IN_TABLE = 8


def batch_shape(panel: int, matrices: int, right_hand_sides: int, n: int, p: int) -> tuple[int, int]:
    """Matrices (n, p), and right-hand sides of each, worked on at a time: at most `panel` pixels.

    >>> batch_shape(4096, matrices=10**6, right_hand_sides=1, n=10, p=3)
    (4096, 1)
    >>> batch_shape(4096, matrices=12, right_hand_sides=10**6, n=10, p=3)
    (1, 4096)
    >>> batch_shape(4096, matrices=10**6, right_hand_sides=1, n=500, p=400)
    (1, 1)
    """
    width = max(1, min(panel, right_hand_sides))
    count = min(matrices, panel // width, MOST_MATRICES, MOST_ELEMENTS // (n * p))
    return max(1, count), width


#: Bytes of what is not counted element by element: status, masks, LAPACK's blocks.
_SMALL = 1 << 17


def shared_panel(n: int, p: int) -> int:
    """Pixels that a shared matrix (n, p) is applied to at a time: buffers of 4 MiB of float64, a multiple of 64.

    >>> shared_panel(50, 100), shared_panel(1000, 100), shared_panel(10**5, 100)
    (2048, 384, 64)
    """
    return min(4096, max(64, MOST_ELEMENTS * 2 // (n + 2 * p) // 64 * 64))


def pixel_panel(n: int, p: int, *, own: bool) -> int:
    """Pixels with rows of their own that are solved at a time, a multiple of 64.

    With a shared matrix: b, its weights, what is left over of them and the triangle of a Gram matrix in 8 MiB, for
    operations on p rows cost their start as much as their work where panels are narrow. With a matrix of their own:
    2 MiB of these.

    >>> pixel_panel(50, 6, own=False), pixel_panel(50, 6, own=True), pixel_panel(1000, 100, own=False)
    (4096, 832, 128)
    """
    if own:
        return min(4096, max(64, MOST_ELEMENTS // (n * p) // 64 * 64))
    return min(4096, max(64, 4 * MOST_ELEMENTS // (3 * n + p * (p + 1) // 2) // 64 * 64))


def residuals_at_once(n: int) -> int:
    """Pixels whose residuals of n rows are worked on at a time: 512 KiB of them.

    >>> residuals_at_once(50), residuals_at_once(10**5)
    (1280, 64)
    """
    return max(64, MOST_ELEMENTS // 4 // n // 64 * 64)


def designs_at_once(n: int, p: int) -> int:
    """Weighted designs (n, p) that are factored at a time."""
    return max(1, min(MOST_MATRICES, MOST_ELEMENTS // (n * p)))


def pixel_bytes(panel: int, n: int, p: int, itemsize: int, *, extra: int, others: int, own: bool, inverse: bool) -> int:
    """Upper bound for panels of pixels with rows of their own.

    b and weights, with masks, and again for those that are gathered apart, and again for those of these that are
    factored one by one; residuals; Gram matrices or matrices of their own; outputs; where `inverse` is wanted, one a
    pixel with its singular values; and one batch of weighted designs with its factors.
    """
    rows = 18 * n + 14 * p + 2 * others + 32
    triangles = 3 * (p * (p + 1) // 2) + (8 * p * p if inverse else 0)
    matrices = 5 * n * p if own else 0
    batch = min(panel, designs_at_once(n + extra, p))
    factored = least_squares_bytes(batch, n + extra, p, itemsize) + 4 * batch * (n + extra) * p * itemsize
    return panel * itemsize * (rows + triangles + matrices) + factored + 4 * (n + extra) * p * itemsize + _SMALL


def shared_design_bytes(n: int, p: int, extra: int, itemsize: int) -> int:
    """Upper bound for what is kept of a shared design (n, p): twice with `extra` rows below it, with and without."""
    rows = n + extra
    return (2 if extra else 1) * itemsize * (rows * (p * (p + 1) // 2) + 10 * rows * p + 8 * p * p + 4 * rows)


#: Pixels whose projections are worked on at a time.
PROJECTED_PIXELS = 4096


def projected_at_once(n: int) -> int:
    """Pixels that are projected at a time: columns of n rows in 1 MiB.

    >>> projected_at_once(50), projected_at_once(198), projected_at_once(10**5)
    (2560, 640, 64)
    """
    return min(PROJECTED_PIXELS, max(64, MOST_ELEMENTS // 2 // n // 64 * 64))


def bounded_bytes(panel: int, n: int, p: int, *, own: bool, tabled: bool) -> int:
    """Upper bound for panels of bounded least squares.

    b and weights, with masks, and again for those that are gathered apart; residuals; solutions, gradients, bounds
    and masks; the factors that are gathered for pixels; matrices of their own; and one batch of weighted matrices
    with Q, an update of it, triangles, and the columns of sets.
    """
    rows = panel * (16 * n + 48 * p + 64)
    factors = 3 * max(MOST_ELEMENTS, 64 * p * p)
    matrices = panel * 5 * n * p if own else 0
    batch = min(panel, designs_at_once(n, p)) * (8 * n * p + 24 * p * p + 48 * p)
    projected = PROJECTED_PIXELS * (3 * p * p + 24 * p + 32) + (n + p) * projected_at_once(n) + n * p if tabled else 0
    return 8 * (rows + factors + matrices + batch + projected + 4 * n * p) + _SMALL


def bounded_design_bytes(n: int, p: int, *, tabled: bool) -> tuple[int, int]:
    """Upper bounds for what is kept of a shared matrix (n, p), and for what compressing it takes."""
    sets = 2**p if tabled else 0
    state = 8 * (4 * n * p + 8 * p * p + sets * (2 * p * p + 4 * p)) + 4096
    return state, state + 8 * (12 * n * p + sets * (12 * p * p + 16 * p)) + _SMALL


def right_hand_side_bytes(count: int, width: int, n: int, p: int, itemsize: int, *, residual: bool) -> int:
    """Upper bound for `count` matrices (n, p) with `width` right-hand sides each, and for the checks of solutions.

    b scaled or projected beside b itself, the solution with its scaling, its stored form and its mask; with
    residuals, the residual and what a norm safe from overflow takes.
    """
    numbers = 3 * n + 4 * p + (5 * n if residual else 0)
    return count * width * itemsize * (numbers + 4) + _SMALL


def least_squares_bytes(count: int, n: int, p: int, itemsize: int) -> int:
    """Upper bound for factors of `count` matrices (n, p): the scaled matrices, QR, and the SVD of those in doubt.

    Those in doubt may take up to 15 more places than there are matrices, to keep their alignment. The SVD of each
    takes its copy, U, V^H and LAPACK's workspace; the minimum-norm factor a few matrices of the size of V and of K.
    """
    k = min(n, p)
    by_qr = 4 * n * p + 3 * p * k
    by_svd = 6 * n * p + 9 * p * k + 4 * k * k
    in_doubt = count + (15 if count > 1 else 0)
    return itemsize * (count * by_qr + in_doubt * by_svd + 128 * (n + p)) + _SMALL


def square_bytes(count: int, n: int, itemsize: int) -> int:
    """Upper bound for factors of `count` matrices (n, n): scaled, LU, the inverse, and singular values."""
    return itemsize * (count * 9 * n * n + 128 * n) + _SMALL
