"""The family that takes a call: one choice for attention, sdpa, PyTorch's slot and FlashAttention's
functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import runtime
from kernelmint.integrations import torch as slot
from runtime import packs
from tools.families import oracle

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
attention_of = oracle("flash_forward")


def inputs(
    device: str,
    queries: int = 1,
    heads: int = 8,
    kv_heads: int = 2,
    keys: int = 300,
    d_head: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v, [2, S, heads, D]; on a GPU of bf16, whose kernels multiply 16 bits."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = ((2, queries, heads, d_head), *2 * [(2, keys, 2, d_head)])
    q, k, v = (torch.randn(shape).to(device, dtype) for shape in shapes)
    return q, k, v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return runtime.sdpa(q, k, v, enable_gqa=True).transpose(1, 2)


FUNCTIONS = [runtime.attention, sdpa, runtime.flash_attn_func]


@pytest.mark.parametrize("function", FUNCTIONS, ids=["attention", "sdpa", "flash_attn_func"])
@pytest.mark.parametrize("device", DEVICES)
def test_few_queries_without_gradients_go_to_flash_decode(
    device: str, function: Callable[..., Any]
) -> None:
    for queries, family in ((1, "flash_decode"), (40, "flash_forward")):
        q, k, v = inputs(device, queries)
        assert runtime.explain_call(function, q, k, v).family == family
        want = attention_of(q, k, v)
        bound = 2.0**-7 if device == "cuda" else 2.0**-20
        torch.testing.assert_close(function(q, k, v).double(), want, rtol=bound, atol=bound)
    q = inputs(device)[0].requires_grad_()
    assert runtime.explain_call(function, q, k, v).family == "flash_forward"
    with torch.no_grad():
        assert runtime.explain_call(function, q, k, v).family == "flash_decode"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 2])
def test_attention_gives_what_decode_gives(queries: int, causal: bool, device: str) -> None:
    """In both layouts, read and written through strides; with the log-sum-exp, and into memory."""
    q, k, v = inputs(device, queries, heads=4)
    want, want_lse = runtime.decode(q, k, v, causal=causal, softmax_scale=0.3, return_lse=True)
    for layout in ("bshd", "bhsd"):
        given = [t.transpose(1, 2).contiguous() if layout == "bhsd" else t for t in (q, k, v)]
        o, lse = runtime.attention(*given, causal=causal, scale=0.3, layout=layout, return_lse=True)
        out = torch.empty_like(given[0])
        again = runtime.attention(*given, causal=causal, scale=0.3, layout=layout, out=out)
        assert again is out
        assert torch.equal(out, o)
        assert torch.equal(o.transpose(1, 2) if layout == "bhsd" else o, want)
        assert torch.equal(lse, want_lse)


@pytest.mark.parametrize("device", DEVICES)
def test_pytorchs_slot_takes_the_same_family(device: str) -> None:
    q, k, v = (t.transpose(1, 2) for t in inputs(device, heads=2))
    with slot.active(otherwise="error"), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    want = runtime.decode(*(t.transpose(1, 2) for t in (q, k, v)), causal=False)
    assert torch.equal(o.transpose(1, 2), want)


def test_the_explanation_says_which_family_and_why() -> None:
    q, k, v = inputs("cpu")
    few, many = runtime.explain_choice(q, k, v), runtime.explain_choice(k, k, v)
    asking = runtime.explain_choice(q.requires_grad_(), k, v)
    assert [found.family for found in (few, many, asking)] == [
        "flash_decode", "flash_forward", "flash_forward"
    ]  # fmt: skip
    verdicts = [found.considered[0].verdict for found in (few, many, asking)]
    assert verdicts == [
        "taken: 8 query rows over 2 key heads, at most 4 each, and no gradients are asked for",
        "no: 600 query rows over 2 key heads, at most 4 each",
        "no: gradients are asked for",
    ]
    assert few.considered[-1].what == "gradients"
    assert few.considered[-1].verdict.startswith("a call that asks for them goes to flash_forward")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q, k.bfloat16(), v), "k: got dtype"),
        (lambda q, k, v: (q, k, v[:, :9]), "v: got shape"),
        (lambda q, k, v: (q, k[:1], v[:1]), "k: got shape"),
        (lambda q, k, v: (q[:, :, :1], k, v), "k: got 2 heads, expected a number that divides 1"),
    ],
)
def test_a_wrong_call_of_few_queries_is_refused_by_attentions_names(
    change: Callable[..., tuple[Tensor, ...]], message: str
) -> None:
    with pytest.raises(runtime.InvalidArgument, match=f"^{re.escape(message)}"):
        runtime.attention(*change(*inputs("cpu")))
    with pytest.raises(runtime.InvalidArgument, match=r"^(out|o)\b"):
        runtime.attention(*inputs("cpu"), out=torch.empty(3))


def test_a_kept_choice_holds_for_right_calls_without_gradients() -> None:
    """The first call of a kind decides for all; wrong calls and gradients are looked at in each."""

    def family(*call: Tensor) -> str:
        with torch.profiler.profile() as profile:
            runtime.attention(*call)
        names = [event.name for event in profile.events()]
        return next(name for name in names if "flash_" in name).partition(".")[0]

    q, k, v = inputs("cpu")
    asks = q.clone().requires_grad_()
    packs.changed()
    for _ in range(2):
        with pytest.raises(runtime.InvalidArgument, match="v: got shape"):
            runtime.attention(q, k, v[..., :32])
        assert "flash_forward" in family(asks, k, v)
        assert family(q, k, v) == "flash_decode"
        with torch.no_grad():
            assert family(asks, k, v) == "flash_decode"
        assert family(k, k, v) == "flash_forward"


class Attends(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return runtime.attention(q, k, v)


def operators(graph: torch.fx.GraphModule) -> list[str]:
    names = [str(node.target) for node in graph.graph.nodes]
    return [name for name in names if name.startswith("kernelmint")]


def test_a_graph_of_many_numbers_of_queries_keeps_flash_forward() -> None:
    """It is right for any, and the choice constrains no extent."""
    queries, keys = torch.export.Dim("queries"), torch.export.Dim("keys")
    q, k, v = inputs("cpu", 7)
    for shapes, family in (
        (({1: queries}, None, None), "flash_forward"),
        (({1: queries}, {1: keys}, {1: keys}), "flash_forward"),
        ((None, {1: keys}, {1: keys}), "flash_decode"),
    ):
        example = (q if shapes[0] else q[:, :1], k, v)
        program = torch.export.export(Attends(), example, dynamic_shapes=shapes)
        assert operators(program.graph_module) == [f"kernelmint.{family}.default"]
        for extents in program.range_constraints.values():
            assert (extents.lower, str(extents.upper)) == (0, "int_oo")
        for length in (1, 40, 500):
            given = (inputs("cpu", length)[0] if shapes[0] else q[:, :1], k, v)
            if shapes[1]:
                given = (given[0], *inputs("cpu", keys=length)[1:])
            torch.testing.assert_close(program.module()(*given), runtime.attention(*given))


def test_a_compiled_call_of_one_query_serves_all_lengths() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, given: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(Attends(), fullgraph=True, backend=backend)
    with torch.no_grad():
        for keys in (300, 30, 77, 1000):
            given = inputs("cpu", keys=keys)
            torch.testing.assert_close(compiled(*given), runtime.attention(*given))
    assert [operators(graph) for graph in graphs] == 2 * [["kernelmint.flash_decode.default"]]


@pytest.mark.gpu
def test_a_captured_call_is_replayed() -> None:
    q, k, v = inputs("cuda", d_head=128)
    runtime.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = runtime.attention(q, k, v)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    assert torch.equal(o, runtime.attention(q, k, v))
