"""Enum scalars: a text in Python, an enum in C++."""

from __future__ import annotations

import re
import typing

import pytest
import torch
from torch.library import opcheck

from runtime import InvalidArgument

from .conftest import TARGETS, device, kernel

FUNCTIONS = {
    "identity": lambda x, up: x,
    "relu": lambda x, up: x.clamp(min=0),
    "square": lambda x, up: x * x,
    "auto": lambda x, up: x.ceil() if up else x.floor(),
}

pytestmark = pytest.mark.usefixtures("families")


@pytest.mark.parametrize("rounding", ["down", "up"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_kernel_sees_which_one_was_passed(target, function, rounding):
    x = torch.randn(3, 77, device=device(target))
    y = kernel("activation", target)(x, function=function, rounding=rounding)
    assert torch.equal(y, FUNCTIONS[function](x, rounding == "up"))


def test_the_default_is_one_of_them():
    run, x = kernel("activation", "cpu"), torch.randn(3, 77)
    assert torch.equal(run(x, rounding="up"), x.clamp(min=0))
    assert torch.equal(run(x, function=None, rounding="up"), x.clamp(min=0))


def test_what_is_no_value_is_an_error_with_those_that_are():
    run, x = kernel("activation", "cpu"), torch.randn(3, 77)

    def refused(message, x=x, **options):
        with pytest.raises(InvalidArgument, match="^" + re.escape(message)):
            run(x, **{"rounding": "up", **options})

    values = "'identity', 'relu', 'square', 'auto'"
    refused(f"function: got 'rleu', expected one of {values} (did you mean 'relu'?)",
            function="rleu")  # fmt: skip
    refused(f"function: got 'RELU', expected one of {values}", function="RELU")
    refused(f"function: got '\\x00é\\ud800', expected one of {values}", function="\0é\ud800")
    refused("function: got an int, expected a str", function=1)
    refused("rounding: got None, expected a value: there is no default", rounding=None)
    refused("activation.cpu.default: requires function != square or N <= 100, because squares are "
            "summed in f32; here function = square, N = 101",
            x=torch.randn(2, 101), function="square")  # fmt: skip


def test_a_str_of_another_type_is_one(tmp_path):
    class Text(str):
        __slots__ = ()

    run, x = kernel("activation", "cpu"), torch.randn(3, 77)
    assert torch.equal(run(x, function=Text("square"), rounding="up"), x * x)


def test_the_signature_and_the_schema_say_which_there_are():
    call = type(kernel("activation", "cpu")).__call__
    hints = typing.get_type_hints(call)
    assert hints["function"] == typing.Literal["identity", "relu", "square", "auto"] | None
    assert hints["rounding"] == typing.Literal["down", "up"]
    assert str(torch.ops.kernelmint.activation.default._schema) == (
        "kernelmint::activation(str key, Tensor x, *, str? function=None, str rounding) -> Tensor"
    )


def test_it_compiles_and_opcheck_passes():
    run, x = kernel("activation", "cpu"), torch.randn(3, 77)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, function):
        return run(x, function=function, rounding="down") + 1

    for function, expected in FUNCTIONS.items():
        assert torch.equal(layer(x, function), expected(x, False) + 1)
    operator = torch.ops.kernelmint.activation.default
    opcheck(operator, (run.info.key, x), {"function": "square", "rounding": "up"})
