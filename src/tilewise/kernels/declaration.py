"""What a kernel declares, once it holds together: the check that every door makes before data is read."""

from __future__ import annotations

from collections.abc import Mapping

from tilewise.errors import KernelContractError, TilewiseError
from tilewise.fields import FieldSpec, OutputSpec, is_floating
from tilewise.kernels.base import Kernel, Signature


def checked_signature(kernel: Kernel, fields: Mapping[str, FieldSpec]) -> Signature:
    """What the kernel declares for these fields, once the declaration holds together.

    Raises
    ------
    KernelContractError
        A user's kernel declares something that no engine could run.
    """
    try:
        signature = kernel.declare(fields)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, SystemExit) as error:
        if isinstance(error, TilewiseError):
            raise
        raise KernelContractError(
            f"kernel {kernel.name!r} fails to declare its outputs: {type(error).__name__}",
            got=error,
            do="make declare refuse such inputs with a TilewiseError, or accept them",
        ) from error
    names = [out.name for out in signature.outputs]
    if not names or len(set(names)) != len(names):
        raise KernelContractError(
            f"kernel {kernel.name!r} declares no outputs, or two of one name",
            got=", ".join(names) or "none",
            do="declare at least one output, each under its own name",
        )
    for out in signature.outputs:
        _check_output(kernel, signature, out)
        if 0 not in signature.sizes.values():  # empty inputs are refused for what they are
            _check_storable(kernel, out)
    for name in signature.shared:
        if set(signature.fields[name].dims) & set(signature.tile_dims):
            raise KernelContractError(
                f"kernel {kernel.name!r} shares input {name!r}, which has tile dimensions",
                got=signature.fields[name].dims,
                do="share only inputs without tile dimensions",
            )
    return signature


def _check_storable(kernel: Kernel, out: OutputSpec) -> None:
    whole = not is_floating(out.dtype)
    if out.name.isidentifier() and 0 not in out.shape and not (whole and out.fill != out.fill):
        return
    raise KernelContractError(
        f"kernel {kernel.name!r} declares output {out.name!r}, which no store can hold",
        got=f"shape {out.shape}, dtype {out.dtype}, fill {out.fill}",
        expected="an identifier as its name, no empty dimension, and a whole number as the fill of a whole dtype",
        do="mend its OutputSpec",
    )


def _check_output(kernel: Kernel, signature: Signature, out: OutputSpec) -> None:
    count = len(signature.tile_dims)
    sizes = signature.sizes
    expected = {dim: sizes[dim] for dim in signature.tile_dims}
    tail = dict(zip(out.dims[len(out.dims) - count :], out.shape[len(out.shape) - count :], strict=True))
    if tail != expected or tuple(tail) != signature.tile_dims:
        raise KernelContractError(
            f"kernel {kernel.name!r} declares output {out.name!r} without every tile dimension",
            got=f"{out.dims} of shape {out.shape}",
            expected=f"own dimensions, then {expected}",
            do="build the declaration with Signature.of",
        )
