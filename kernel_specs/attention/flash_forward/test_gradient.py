"""Gradients of attention, by our kernels or PyTorch's operators on our outputs, against the fp64
oracle's.

The relative error of a whole gradient is held to 2 roundings of the dtype that operands and results
have, as forward and backward each round the probabilities once (bf16: 2 * 2**-8).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import runtime

CPU = [("cpu", torch.float32), ("cpu", torch.bfloat16), ("cpu", torch.float16)]
GPU = [
    pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in (torch.bfloat16, torch.float16)
]
ROUNDINGS = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11}
LENGTHS = [(70, 70), (33, 129), (129, 33), (1, 64)]


def attention_gradients(q, k, v, do, *, causal=False, scale=None):
    """The gradients of the oracle in fp64 (FlashAttention, Dao et al. 2022, Appendix B.2)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]
    queries, gradients = (t.double().transpose(1, 2) for t in (q, do))
    keys, values = (
        t.double().repeat_interleave(group, 2).transpose(1, 2) for t in (k, v)
    )  # [B, H, S, D]
    scores = scale * (queries @ keys.transpose(-1, -2))
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores.masked_fill_(hidden.triu(k.shape[1] - q.shape[1] + 1), -math.inf)
    p = torch.softmax(scores, -1).nan_to_num()  # rows that see no key: 0
    dp = gradients @ values.transpose(-1, -2)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
    dk, dv = (
        t.transpose(1, 2).unflatten(2, (-1, group)).sum(3)
        for t in (ds.transpose(-1, -2) @ queries, p.transpose(-1, -2) @ gradients)
    )
    return (ds @ keys).transpose(1, 2), dk, dv


def inputs(device, dtype, lengths=(70, 70), kv_heads=2, d_head=64):
    seq_len_q, seq_len_k = lengths
    shapes = (2, seq_len_q, 4, d_head), *2 * ((2, seq_len_k, kv_heads, d_head),)
    q, k, v = (torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes)
    return q, k, v, torch.randn_like(q)


def check(function, q, k, v, do, **options):
    """That `function(q, k, v)` has the oracle's gradients."""
    found = torch.autograd.grad(function(q, k, v), (q, k, v), do)
    expected = attention_gradients(q.detach(), k.detach(), v.detach(), do, **options)
    for name, ours, exact in zip(("dq", "dk", "dv"), found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (exact.shape, q.dtype)
        error = ((ours - exact).norm() / exact.norm().clamp_min(1e-30)).item()
        assert error < ROUNDINGS[q.dtype], (name, error)


@pytest.mark.parametrize(("device", "dtype"), [*CPU, *GPU])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_they_are_the_oracles(device, dtype, lengths, causal):
    for kv_heads in (4, 2, 1):
        arguments = inputs(device, dtype, lengths, kv_heads)
        check(
            lambda q, k, v: runtime.attention(q, k, v, causal=causal, scale=0.2),
            *arguments,
            causal=causal,
            scale=0.2,
        )


@pytest.mark.parametrize(("device", "dtype"), [CPU[0], *GPU])
def test_however_the_outputs_gradient_is_laid_out(device, dtype):
    q, k, v, do = inputs(device, dtype)
    heads_first = do.transpose(1, 2).contiguous().transpose(1, 2)
    expanded = torch.randn((), device=device, dtype=dtype).expand(do.shape)
    for laid_out in (heads_first, expanded, do.repeat(1, 1, 1, 2)[..., ::2]):
        check(lambda q, k, v: runtime.attention(q, k, v, causal=True), q, k, v, laid_out,
              causal=True)  # fmt: skip


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_in_both_layouts_with_and_without_the_log_sum_exp(layout):
    def attention(q, k, v):
        if layout == "bhsd":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        o, lse = runtime.attention(q, k, v, return_lse=True, layout=layout)
        assert not lse.requires_grad
        assert torch.equal(o, runtime.attention(q, k, v, layout=layout))
        return o.transpose(1, 2) if layout == "bhsd" else o

    check(attention, *inputs("cpu", torch.float32))


@pytest.mark.parametrize("empty", [(0, 70), (70, 0)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_without_queries_or_keys_they_are_zero(empty, causal):
    q, k, v, do = inputs("cpu", torch.float32, empty)
    found = torch.autograd.grad(runtime.attention(q, k, v, causal=causal), (q, k, v), do)
    assert not any(gradient.any() for gradient in found)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", False), ("aot_eager", True), ("inductor", None)]
)
def test_compiled_joint_graphs_have_them(device, backend, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: runtime.attention(q * 1, k, v, causal=True),
        fullgraph=True, backend=backend, dynamic=dynamic,
    )  # fmt: skip
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for length in (40, 71):
        check(compiled, *inputs(device, dtype, (length, length)), causal=True)


def test_checkpointing_and_make_fx_have_them():
    def attention(q, k, v):
        return runtime.attention(q, k, v, causal=True)

    arguments = inputs("cpu", torch.float32)
    check(lambda *a: checkpoint(attention, *a, use_reentrant=False), *arguments, causal=True)
    *qkv, do = arguments
    traced = make_fx(lambda *a: torch.autograd.grad(attention(*a), a, do))(*qkv)
    for found, expected in zip(
        traced(*qkv), torch.autograd.grad(attention(*qkv), qkv, do), strict=True
    ):
        assert torch.equal(found, expected)


def test_only_what_asks_gets_one():
    q, k, v, do = inputs("cpu", torch.float32)
    o = runtime.attention(q.detach(), k, v.detach())
    o.backward(do)
    assert q.grad is None
    assert v.grad is None
    expected = attention_gradients(q.detach(), k.detach(), v.detach(), do)[1]
    assert (k.grad - expected).norm() < ROUNDINGS[q.dtype] * expected.norm()
    with torch.no_grad():
        assert not runtime.attention(q, k, v).requires_grad


def test_the_operator_has_them():
    info = runtime.kernels("flash_forward", "cpu", "dtype == 'f32' and d_head == 64 and causal")[0]
    operator = torch.ops.kernelmint.flash_forward
    q, k, v, do = inputs("cpu", torch.float32)
    for options in ({}, {"return_lse": True}):
        opcheck(operator.default, (info.key, q, k, v), options)
    check(lambda *a: operator(info.key, *a)[0], q, k, v, do, causal=True)


def test_what_has_none_is_refused():
    q, k, v, do = inputs("cpu", torch.float32)
    refused = pytest.raises(runtime.InvalidArgument, match="requires_grad is set and grad mode is")
    with refused:
        runtime.attention(q, k, v, out=torch.empty_like(do))
    with refused:
        runtime.attention(do, do, do, out=torch.empty_like(q, requires_grad=True))
    with refused:
        runtime.attention(do, do, do, scale=torch.tensor(0.1, requires_grad=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_gradients_of_zeros_without_memory_are_zeros(device):
    *qkv, do = inputs(device, torch.float32 if device == "cpu" else torch.bfloat16)
    zeros = torch._efficientzerotensor(do.shape, dtype=do.dtype, device=device)
    for found in torch.autograd.grad(runtime.attention(*qkv), qkv, zeros):
        assert not found.any()
        assert not found._is_zerotensor()


def bhsd_sdpa(q, k, v):
    return runtime.sdpa(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("call", [runtime.attention, bhsd_sdpa], ids=["attention", "sdpa"])
def test_second_derivatives_are_refused_whichever_input_they_are_asked_for(call):
    *qkv, do = inputs("cpu", torch.float32)
    refused = pytest.raises(RuntimeError, match="flash_forward: its gradients are flash_backward's")
    for first in qkv:
        for second in qkv:
            o = call(*qkv)
            (gradient,) = torch.autograd.grad(o, first, do, create_graph=True)
            penalty = o.sum() + gradient.square().sum()
            with refused:
                torch.autograd.grad(penalty, second, retain_graph=True)
            with refused:
                penalty.backward(inputs=[second])
    with refused:
        gradient.sum().backward()


def test_an_explained_choice_names_what_gives_them():
    q, k, v, _ = inputs("cpu", torch.float32)
    assert "  gradients: flash_backward's kernels" in str(runtime.explain_choice(q, k, v))


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.gpu
def test_deterministic_gradients_are_the_same_bit_for_bit(d_head, causal):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    q, k, v, do = inputs("cuda", torch.bfloat16, (2000, 2000), 2, d_head)

    def gradients(**options):
        return torch.autograd.grad(
            runtime.attention(q, k, v, causal=causal, **options), (q, k, v), do
        )

    first = gradients(deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(10):
            for one, other in zip(first, gradients(), strict=True):
                assert torch.equal(one, other)
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_gradients_of_the_cpu():
    q, k, v, do = inputs("cpu", torch.float32)
    for deterministic in (False, True):
        check(
            lambda q, k, v, d=deterministic: runtime.attention(q, k, v, deterministic=d),
            q, k, v, do,
        )  # fmt: skip
