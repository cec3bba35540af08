from __future__ import annotations

import pytest

from tilewise.errors import DimensionError, DTypeError, KernelContractError, UnknownKernelError
from tilewise.fields import FieldSpec, OutputSpec
from tilewise.kernels.base import Kernel, Signature
from tilewise.kernels.declaration import checked_signature
from tilewise.kernels.registry import kernel_class

X = FieldSpec("x", ("t", "y"), (3, 4), "complex64")


def signature(**outputs: str) -> Signature:
    specs = [OutputSpec(name, (), (), dtype) for name, dtype in outputs.items()]
    return Signature.of({"x": X}, core={"x": ("t",)}, outputs=specs)


def test_the_jobs_dtype_goes_to_floating_outputs() -> None:
    stored = signature(a="complex128", b="float64", c="uint8").with_output_dtype("complex64")
    assert [out.dtype for out in stored.outputs] == ["complex64", "float32", "uint8"]
    assert signature(a="float64").with_output_dtype(None).outputs[0].dtype == "float64"


@pytest.mark.parametrize(("declared", "wanted"), [("complex64", "float32"), ("float32", "int16"), ("float64", "bool")])
def test_a_dtype_that_loses_more_than_digits_is_refused(declared: str, wanted: str) -> None:
    with pytest.raises(DTypeError, match=f"'a' is {declared} and cannot be stored as {wanted}"):
        signature(a=declared).with_output_dtype(wanted)


def test_kernels_are_found_by_name_and_by_place() -> None:
    assert kernel_class("norm") is kernel_class("tilewise.kernels.norm:Norm")
    with pytest.raises(UnknownKernelError, match="there is no kernel 'nrom'.*write 'norm' instead"):
        kernel_class("nrom")
    for name, text in {"nowhere:Norm": "cannot be imported", "tilewise.fields:Tile": "is not a kernel"}.items():
        with pytest.raises(UnknownKernelError, match=text):
            kernel_class(name)


def test_inputs_are_checked_by_name() -> None:
    with pytest.raises(DimensionError, match="got: y; expected: .x."):
        kernel_class("norm")(**{"dim": "t"}).declare({"y": X})


class Broken(Kernel):
    input_sets = (("x",),)

    def declare(self, fields: object) -> Signature:
        raise KeyError("band")


def test_a_kernel_that_cannot_declare_is_named() -> None:
    Broken.name = "broken"
    with pytest.raises(KernelContractError, match="'broken' fails to declare its outputs: KeyError; got: 'band'"):
        checked_signature(Broken(), {"x": X})


def test_a_shared_input_has_no_tile_dimension() -> None:
    class Shares(Kernel):
        name = "shares"

        def declare(self, fields: object) -> Signature:
            out = OutputSpec("a", (), (), "float32")
            return Signature.of({"x": X}, core={"x": ("t",)}, outputs=[out], shared=["x"])

    with pytest.raises(KernelContractError, match="shares input 'x'"):
        checked_signature(Shares(), {"x": X})
