"""Kernels alone, on one thread, against what the machine can do: its own GEMM rate, and one pass over the same bytes.

Each kernel computes a tile in the layout in which it is stored; its peer does so in the same round. Printed are medians
of the ratios of the rounds, with their range.

- product: `Lstsq` with an A that all pixels share, float32, as a share of the rate at which `torch.mm` multiplies large
  square matrices of the same dtype. Beside it the same product by one `torch.mm` into a matrix that is there, panel by
  panel of the same width, which says what the shape itself costs.
- affine: `AffineNorm` of points and primitives, against points * scale + offset broadcast with the extra axis, and then
  `torch.linalg.vector_norm`.
- norm: `Norm` along a leading axis, against one pass that reads the same bytes and squares them, panel by panel into a
  buffer that stays in cache.

    python scripts/bench_kernels.py [--runs 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import _bench
import tilewise
from tilewise.fields import FieldSpec
from tilewise.kernels.base import Signature
from tilewise.session import compute_tile

#: Rows of the square matrices whose product is the GEMM rate.
SQUARE = 2048
#: Bytes of a panel of the pass: half of a small second-level cache.
PANEL_BYTES = 256 << 10


Fields = Mapping[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]]


def signature_of(kernel: tilewise.Kernel, fields: Fields) -> Signature:
    """What the kernel makes of these fields."""
    return kernel.declare(
        {name: FieldSpec(name, dims, data.shape, str(data.dtype)) for name, (dims, data) in fields.items()}
    )


def tile(kernel: tilewise.Kernel, fields: Fields) -> Callable[[], None]:
    """A call that computes one tile of in-memory arrays, everything allocated and touched beforehand."""
    signature = signature_of(kernel, fields)
    state = kernel.prepare({name: torch.from_numpy(fields[name][1]) for name in signature.shared})
    boxes = {name: fields[name][1] for name in signature.streamed}
    outputs = {out.name: np.ones(out.shape, out.dtype) for out in signature.outputs}
    panel = kernel.panel(signature)
    return lambda: compute_tile(kernel, signature, state, boxes, outputs, panel=panel)


def share(name: str, ours: Callable[[], Any], peer: Callable[[], Any], work: float, peer_work: float, runs: int) -> str:
    """Rates of both, in work a second, and their ratio round by round."""
    times = _bench.alternated({"ours": ours, "peer": peer}, runs)
    ratios = sorted((work / a) / (peer_work / b) for a, b in zip(times["ours"], times["peer"], strict=True))
    rates = [sorted(w / t for t in times[n])[runs // 2] / 1e9 for n, w in (("ours", work), ("peer", peer_work))]
    middle = ratios[len(ratios) // 2]
    return f"{name}: {rates[0]:.3g} of {rates[1]:.3g} G/s, {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def products(runs: int) -> list[str]:
    """Shared products of two shapes."""
    rng = np.random.default_rng(0)
    square = torch.rand(SQUARE, SQUARE)
    into = torch.empty_like(square)
    gemm, gemm_work = (lambda: torch.mm(square, square, out=into)), 2.0 * SQUARE**3
    lines = []
    for n, p, side in ((50, 20, 500), (200, 100, 256), (400, 300, 128)):
        A = rng.standard_normal((n, p)).astype("float32")
        b = rng.standard_normal((n, side, side)).astype("float32")
        kernel, fields = tilewise.Lstsq(dim="band"), {"A": (("band", "unknown"), A), "b": (("band", "y", "x"), b)}
        call, panel = tile(kernel, fields), kernel.panel(signature_of(kernel, fields))
        P = torch.linalg.pinv(torch.from_numpy(A))
        in_cache, in_place = products_in_cache(P, side**2, panel), products_in_place(P, b, panel)
        work = 2.0 * n * p * side * side
        name = f"product {n} -> {p}, float32, {side} x {side} pixels"
        lines.append(share(f"{name}, of the GEMM rate", call, gemm, work, gemm_work, runs))
        lines.append(share("  torch.mm in cache, of the GEMM rate", in_cache, gemm, work, gemm_work, runs))
        lines.append(share("  ours, of torch.mm in cache", call, in_cache, work, work, runs))
        lines.append(share("  ours, of torch.mm in place", call, in_place, work, work, runs))
    return lines


def products_in_cache(P: torch.Tensor, pixels: int, panel: int) -> Callable[[], None]:
    """One panel multiplied as often as pixels need panels, nothing read from memory or written to it."""
    b, out = torch.rand(P.shape[1], panel), torch.empty(P.shape[0], panel)
    whole, rest = divmod(pixels, panel)

    def call() -> None:
        for _ in range(whole):
            torch.mm(P, b, out=out)
        if rest:
            torch.mm(P, b[:, :rest], out=out[:, :rest])

    return call


def products_in_place(P: torch.Tensor, b: np.ndarray[Any, Any], panel: int) -> Callable[[], None]:
    """The product alone, panel by panel, from the tile and into the output."""
    flat = torch.from_numpy(b).flatten(1)
    out = torch.ones(P.shape[0], flat.shape[1])

    def call() -> None:
        for start in range(0, flat.shape[1], panel):
            torch.mm(P, flat[:, start : start + panel], out=out[:, start : start + panel])

    return call


def affine(runs: int) -> str:
    """Points and primitives, against the broadcast form."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((20000, 3)).astype("float32")
    primitives = rng.standard_normal((500, 6)).astype("float32")
    kernel = tilewise.AffineNorm(dim="xyz", parameter_dim="parameter")
    fields = {"points": (("point", "xyz"), points), "primitives": (("primitive", "parameter"), primitives)}
    p, q = torch.from_numpy(points)[:, None], torch.from_numpy(primitives)

    def broadcast() -> None:
        torch.linalg.vector_norm(p * q[:, :3] + q[:, 3:], dim=-1)

    work = float(len(points) * len(primitives))
    return share("affine norm, of the broadcast form (times)", tile(kernel, fields), broadcast, work, work, runs)


def norm(runs: int) -> str:
    """A leading axis, against one pass over the same bytes."""
    x = np.random.default_rng(0).standard_normal((50, 500, 1000)).astype("float32")
    flat = torch.from_numpy(x).flatten()
    buffer = torch.empty(PANEL_BYTES // 4)

    def one_pass() -> None:
        for part in flat.split(len(buffer)):
            torch.mul(part, part, out=buffer[: len(part)])

    call = tile(tilewise.Norm(dim="band"), {"x": (("band", "y", "x"), x)})
    return share("norm along a leading axis, bytes, of one pass", call, one_pass, x.nbytes, x.nbytes, runs)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    with torch.inference_mode():
        lines = [*products(options.runs), affine(options.runs), norm(options.runs)]
    print(f"kernels alone, one thread, medians of {options.runs} (range), {time.perf_counter() - begin:.0f} s")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
