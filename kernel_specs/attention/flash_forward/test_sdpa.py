"""kernelmint.sdpa has the signature and the meanings of F.scaled_dot_product_attention."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention

import runtime

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(lengths: tuple[int, int], kv_heads: int, device: str) -> tuple[torch.Tensor, ...]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q = torch.randn(2, 4, lengths[0], 64, device=device, dtype=dtype)
    k, v = torch.randn(2, 2, kv_heads, lengths[1], 64, device=device, dtype=dtype).unbind()
    return q, k, v


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [(70, 70), (40, 70), (70, 40), (1, 70)], ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_it_computes_what_pytorchs_does(
    device: str, lengths: tuple[int, int], options: dict[str, Any], kv_heads: int
) -> None:
    tensors = inputs(lengths, kv_heads, device)
    gqa = {"enable_gqa": kv_heads != 4}
    exact = scaled_dot_product_attention(*(t.double() for t in tensors), **options, **gqa)
    found = runtime.sdpa(*tensors, **options, **gqa)
    assert found.shape == exact.shape
    error = (found.double() - exact).norm() / exact.norm()
    assert error < (1e-6 if device == "cpu" else 5e-3)


SHAPES = {  # of query, key and value
    "a sequence": ((9, 64), (12, 64), (12, 64)),
    "heads alone": ((4, 9, 64), (4, 12, 64), (4, 12, 64)),
    "grouped heads": ((4, 9, 64), (2, 12, 64), (2, 12, 64)),
    "five dimensions": ((3, 2, 4, 9, 64), (3, 2, 4, 12, 64), (3, 2, 4, 12, 64)),
    "grouped, of five": ((3, 2, 4, 9, 64), (3, 2, 2, 12, 64), (3, 2, 2, 12, 64)),
    "a batch of one": ((3, 4, 9, 64), (1, 4, 12, 64), (1, 4, 12, 64)),
    "one query for all": ((1, 4, 9, 64), (3, 4, 12, 64), (3, 4, 12, 64)),
    "one head": ((3, 4, 9, 64), (3, 1, 12, 64), (3, 1, 12, 64)),
    "keys without a batch": ((3, 4, 9, 64), (4, 12, 64), (12, 64)),
    "broadcast, of five": ((3, 2, 4, 9, 64), (2, 1, 12, 64), (1, 2, 4, 12, 64)),
    "nobody": ((0, 4, 9, 64), (0, 4, 12, 64), (0, 4, 12, 64)),
    "no heads": ((2, 0, 9, 64), (2, 0, 12, 64), (2, 0, 12, 64)),
    "no heads of as many rows": ((2, 0, 9, 64), (2, 0, 9, 64), (2, 0, 9, 64)),
    "no heads at all": ((0, 9, 64), (0, 12, 64), (0, 12, 64)),
    "grouped, no heads": ((2, 0, 9, 64), (2, 0, 12, 64), (2, 0, 12, 64)),
    "one head for none": ((3, 0, 9, 64), (3, 1, 12, 64), (3, 1, 12, 64)),
    "no heads of wide values": ((2, 0, 9, 64), (2, 0, 12, 64), (2, 0, 12, 128)),
    "no heads of five": ((3, 2, 0, 9, 64), (3, 2, 0, 12, 64), (3, 2, 0, 12, 64)),
    "wide values": ((2, 4, 9, 64), (2, 4, 12, 64), (2, 4, 12, 128)),
    "grouped wide values": ((2, 4, 40, 64), (2, 2, 12, 64), (2, 2, 12, 32)),
    "wide values of five": ((3, 2, 4, 9, 64), (3, 2, 4, 12, 64), (3, 2, 4, 12, 32)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_it_takes_the_shapes_that_pytorchs_takes(shapes: str, is_causal: bool, device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    tensors = [torch.randn(shape, device=device, dtype=dtype) for shape in SHAPES[shapes]]
    options = {"is_causal": is_causal, "enable_gqa": "grouped" in shapes}
    found = runtime.sdpa(*tensors, **options)
    if device != "cpu" and "no heads" in shapes:  # PyTorch 2.11 divides by them: it ends there
        assert found.shape == runtime.sdpa(*(t.cpu().float() for t in tensors), **options).shape
        return
    exact = scaled_dot_product_attention(*(t.cpu().double() for t in tensors), **options)
    assert found.shape == exact.shape
    assert (found.cpu().double() - exact).norm() <= (
        1e-6 if device == "cpu" else 5e-3
    ) * exact.norm()


def test_gradients_of_what_is_broadcast_are_pytorchs() -> None:
    tensors = [torch.randn(shape, requires_grad=True) for shape in SHAPES["broadcast, of five"]]
    found = torch.autograd.grad(runtime.sdpa(*tensors).square().sum(), tensors)
    exact = torch.autograd.grad(scaled_dot_product_attention(*tensors).square().sum(), tensors)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)


def test_no_heads_have_gradients_of_no_elements() -> None:
    tensors = [torch.randn(shape, requires_grad=True) for shape in SHAPES["no heads"]]
    found = torch.autograd.grad(runtime.sdpa(*tensors).sum(), tensors)
    assert [t.shape for t in found] == [t.shape for t in tensors]


def test_its_gradients_are_pytorchs() -> None:
    for lengths in ((70, 70), (40, 70), (70, 40)):
        tensors = [t.requires_grad_() for t in inputs(lengths, 2, "cpu")]
        options = {"is_causal": True, "enable_gqa": True}
        doubles = [t.detach().double().requires_grad_() for t in tensors]
        exact = torch.autograd.grad(
            scaled_dot_product_attention(*doubles, **options).square().sum(), doubles
        )
        found = torch.autograd.grad(runtime.sdpa(*tensors, **options).square().sum(), tensors)
        for one, other in zip(found, exact, strict=True):
            assert (one.double() - other).norm() < 1e-5 * other.norm()


def test_it_has_pytorchs_parameters() -> None:
    own = inspect.signature(runtime.sdpa).parameters
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(own) == names
    q, k, v = inputs((9, 9), 4, "cpu")
    positional = (q, k, v, None, 0.0, True)
    expected = scaled_dot_product_attention(*positional)
    torch.testing.assert_close(runtime.sdpa(*positional), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.ones(70, 70, dtype=torch.bool)}, "attn_mask: got a mask"),
        ({"attn_mask": torch.zeros(70, 70)}, "attn_mask: got a mask"),
        ({"dropout_p": 1.5}, "dropout_p: got 1.5, expected 0 to 1"),
        ({"is_causal": 1}, "is_causal: got an int, expected a bool"),
        ({"enable_gqa": False}, "key: got 2 heads, expected 4 as in query; enable_gqa=True"),
        ({"query": torch.zeros(2, 3, 70, 64)}, "key: got 2 heads, expected a number that divides"),
    ],
    ids=["bool mask", "float mask", "dropout", "is_causal", "heads", "grouped heads"],
)
def test_what_no_kernel_does_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    given = dict(zip(("query", "key", "value"), inputs((70, 70), 2, "cpu"), strict=True))
    with pytest.raises(runtime.InvalidArgument, match=message):
        runtime.sdpa(**given | {"enable_gqa": True, **options})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("key", torch.zeros(2, 4, 70, 32), "key: got shape [2, 4, 70, 32], expected 64 columns"),
        ("value", torch.zeros(2, 4, 60, 64), "value: got shape [2, 4, 60, 64], expected 70 rows"),
        ("value", torch.zeros(2, 4, 70, 64).half(), "value: got dtype torch.float16, expected to"),
        ("key", torch.zeros(3, 4, 70, 64), "got shapes [2, 4, 70, 64] and [3, 4, 70, 64] and [2,"),
        ("key", torch.zeros(70), "key: got shape [70], expected [..., S, D]"),
        ("key", None, "key: got a NoneType, expected a torch.Tensor"),
    ],
)
def test_messages_show_the_callers_shapes(name: str, tensor: Any, message: str) -> None:
    given = dict(zip(("query", "key", "value"), inputs((70, 70), 4, "cpu"), strict=True))
    with pytest.raises(runtime.InvalidArgument, match=re.escape(message)):
        runtime.sdpa(**given | {name: tensor})


def test_it_compiles_with_dynamic_lengths_into_one_graph() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(runtime.sdpa, fullgraph=True, backend=counter, dynamic=True)
    for length in (70, 33, 130):
        q, k, v = inputs((length, length), 4, "cpu")
        expected = runtime.sdpa(q, k, v, is_causal=True)
        assert torch.equal(compiled(q, k, v, is_causal=True), expected)
    nodes = [node for graph in counter.graphs for node in graph.graph.nodes]
    assert sum("kernelmint." in str(node.target) for node in nodes) == 1


@pytest.mark.parametrize("traced", [(70, 70), (40, 70), (70, 40)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_traced_by_jit_it_serves_other_lengths(traced: tuple[int, int], is_causal: bool) -> None:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return runtime.sdpa(*tensors, is_causal=is_causal)

    recorded = torch.jit.trace(call, inputs(traced, 4, "cpu"), check_trace=False)
    for lengths in ((90, 93), (93, 90), (50, 50)):
        tensors = inputs(lengths, 4, "cpu")
        expected = scaled_dot_product_attention(*tensors, is_causal=is_causal)
        torch.testing.assert_close(recorded(*tensors), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_as_pytorchs_does(device: str, compiled: bool) -> None:
    torch.compiler.reset()
    q, k, v = (t.float() for t in inputs((70, 70), 4, device))
    call = runtime.sdpa
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        found, expected = call(q, k, v), scaled_dot_product_attention(q, k, v)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, runtime.sdpa(*(t.bfloat16() for t in (q, k, v))))
    with torch.autocast(device, torch.bfloat16, enabled=False):
        assert runtime.sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16()).dtype == torch.bfloat16
