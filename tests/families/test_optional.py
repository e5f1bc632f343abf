"""Optional inputs: None, a null pointer, and expressions that ask."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch.library import opcheck

from runtime import InvalidArgument

from .conftest import kernel

M, K, N, G = 5, 33, 12, 4

pytestmark = pytest.mark.usefixtures("families")


@pytest.fixture
def run():
    torch.compiler.reset()
    return kernel("linear_bias", "cpu")


def inputs():
    return torch.randn(M, K), torch.randn(N, K), torch.randn(N), torch.randn(M, G)


def expected(x, w, bias=None, gates=None):
    y = x.double() @ w.double().t()
    if bias is not None:
        y = y + bias.double()
    if gates is not None:
        y = y * gates.double().repeat_interleave(N // G, 1)
    return y


def near(got, wanted):
    # Sums of K + 1 products of normal numbers, in f32.
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=K * 2**-21)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("passed", [(), ("bias",), ("bias", "gates")])
def test_what_is_left_out_is_null_for_the_kernel(run, passed, norms):
    x, w, bias, gates = inputs()
    options = {name: t for name, t in (("bias", bias), ("gates", gates)) if name in passed}
    result = run(x, w, **options, return_norms=norms)
    wanted = expected(x, w, **options)
    if not norms:
        near(result, wanted)
        return
    near(result[0], wanted)
    # Without a bias the extent is twice as much: the spec's expression asks for it.
    rest = torch.zeros(0 if "bias" in passed else M, dtype=torch.float64)
    near(result[1], torch.cat([wanted.norm(dim=1), rest]))


def test_none_and_nothing_are_one(run):
    x, w, bias, _ = inputs()
    assert torch.equal(run(x, w, None, None), run(x, w))
    assert torch.equal(run(x, w, bias, None, None), run(x, w, bias=bias))
    parameter = inspect.signature(type(run).__call__).parameters["bias"]
    assert parameter.default is None
    assert parameter.annotation == "torch.Tensor | None"


def test_an_empty_tensor_that_is_passed_is_not_absent(run):
    """PyTorch's has no memory; expressions and the kernel agree that it was passed."""
    x = torch.randn(M, K)
    y, norms = run(x, torch.empty(0, K), torch.empty(0), return_norms=True)
    assert y.shape == (M, 0)
    assert torch.equal(norms, torch.zeros(M))


def test_an_optional_tensor_may_be_changed_in_place(run):
    x, w, bias, _ = inputs()
    calls = torch.zeros(M, dtype=torch.int32)
    run(x, w, bias, calls=calls)
    run(x, w, calls=calls)
    assert calls.tolist() == [2] * M
    assert calls._version == 2


def test_what_is_passed_is_checked_and_requirements_ask(run):
    x, w, bias, gates = inputs()

    def refused(message, **options):
        with pytest.raises(InvalidArgument, match=re.escape(message)):
            run(x, w, **options)

    refused("bias: got shape [11], expected [N] with N = 12 as in w", bias=bias[1:])
    refused("bias: got dtype torch.float64", bias=bias.double())
    refused("bias: got a list", bias=[1.0])
    refused("calls: shares memory with bias", bias=bias, calls=bias.view(torch.int32)[:M])
    refused("requires bias or not gates, because a gate without a bias makes no sense here; "
            "here bias = False, gates = True", gates=gates)  # fmt: skip
    refused("requires not gates or G >= 1 and N % G == 0, because each gate serves a whole group "
            "of columns; here gates = True, G = 5, N = 12",
            bias=bias, gates=torch.randn(M, 5))  # fmt: skip
    norms = torch.empty(M)
    with pytest.raises(InvalidArgument, match=r"^out \(norms\): shares memory with calls"):
        run(x, w, bias, calls=norms.view(torch.int32), return_norms=True,
            out=(torch.empty(M, N), norms))  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"^x: got a NoneType, expected a torch\.Tensor"):
        run(None, w)


def test_the_operators_schema(run):
    operator = torch.ops.kernelmint.linear_bias
    assert str(operator.default._schema) == (
        "kernelmint::linear_bias(str key, Tensor x, Tensor w, Tensor? bias=None, "
        "Tensor? gates=None, Tensor(a!)? calls=None, *, bool return_norms=False) "
        "-> (Tensor, Tensor)"
    )
    x, w, bias, _ = inputs()
    y, norms = operator(run.info.key, x, w)
    near(y, expected(x, w))
    assert norms.shape == (0,)
    near(operator(run.info.key, x, w, bias=bias)[0], expected(x, w, bias))


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_opcheck(run, passed):
    x, w, *rest = inputs()
    calls = torch.zeros(M, dtype=torch.int32)
    key = run.info.key
    opcheck(torch.ops.kernelmint.linear_bias.default, (key, x, w, *rest[:passed]),
            {"return_norms": True})  # fmt: skip
    opcheck(torch.ops.kernelmint.linear_bias.default, (key, x, w, rest[0], None, calls))
    opcheck(torch.ops.kernelmint.linear_bias_out.default, (key, x, w, *rest[:passed]),
            {"y": torch.empty(M, N), "norms": torch.empty(M if passed else 2 * M)})  # fmt: skip


def test_it_compiles_with_and_without(run):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, w, bias, gates):
        y, norms = run(x, w, bias, gates, return_norms=True)
        return y * 2, norms

    x, w, bias, gates = inputs()
    for some in ((None, None), (bias, None), (bias, gates)):
        y, norms = layer(x, w, *some)
        near(y, 2 * expected(x, w, *some))
        assert norms.shape == (2 * M if some[0] is None else M,)
