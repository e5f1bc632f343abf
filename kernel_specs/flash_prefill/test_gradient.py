"""Gradients of sequences of any lengths on the CPU, against the fp64 oracle's.

The relative error of a whole gradient is held to 2 roundings of the dtype that operands and results
have, as flash_forward's is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import runtime

from .reference import prefill

ROUNDINGS = {torch.float32: 2e-6, torch.bfloat16: 2 * 2**-8, torch.float16: 2 * 2**-11}
PLACES = torch.tensor([0, 60, 60, 61, 100], dtype=torch.int32)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def inputs(dtype=torch.float32, rows=(100,), keys=(100,), d_head=40, kv_heads=2):
    shapes = ((*rows, 4, d_head), *2 * ((*keys, kv_heads, d_head),), (4,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def check(function: Any, leaves: list[torch.Tensor], **options: Any) -> None:
    """That `function` of q, k, v and s_aux has the gradients of the oracle with these options."""
    o = function(*leaves)
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, leaves, do)
    q, k, v, s_aux = exact = [t.detach().double().requires_grad_() for t in leaves]
    if q.dim() == 3:
        q, k, v = q[None], k[None], v[None]
    expected = prefill(q, k, v, s_aux=s_aux, **options)[0].view(o.shape)
    wanted = torch.autograd.grad(expected, exact, do.double())
    for name, ours, true in zip(("q", "k", "v", "s_aux"), found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (true.shape, leaves[0].dtype)
        error = ((ours - true).norm() / true.norm().clamp_min(1e-30)).item()
        assert error < ROUNDINGS[ours.dtype], (name, error)


WINDOWS = [(-1, -1), (-1, 0), (9, 0), (5, 20)]


def packed(window, options):
    def call(q, k, v, s_aux):
        return runtime.flash_attn_varlen_func(
            q, k, v, PLACES, options["cu_seqlens_k"], 60, 60, softmax_scale=0.2,
            window_size=window, s_aux=s_aux, seqused_q=options.get("seqused_q"),
            seqused_k=options.get("seqused_k"), leftpad_k=options.get("leftpad_k"),
        )  # fmt: skip

    named = {"window_left": window[0], "window_right": window[1], "softmax_scale": 0.2}
    return call, {"cu_seqlens_q": PLACES, **options, **named}


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_packed_sequences(window, dtype):
    """Empty ones, of other numbers of queries than keys (so of rows that see none), parts used."""
    used = {"seqused_q": ints(50, 0, 1, 20), "seqused_k": ints(33, 10, 0, 30)}
    for options in (
        {"cu_seqlens_k": PLACES},
        {"cu_seqlens_k": ints(0, 33, 43, 43, 100), "leftpad_k": ints(3, 0, 0, 50)},
        {"cu_seqlens_k": ints(0, 33, 43, 43, 100), **used},
    ):
        call, options = packed(window, options)
        check(call, inputs(dtype), **options)


@pytest.mark.parametrize("causal", [False, True])
def test_batches_of_a_padded_length_and_of_few_queries(causal):
    """(Few queries are flash_decode's if nothing asks for gradients.)"""
    for rows in (30, 2):
        leftpad, used = ints(0, 7), ints(25, 30)
        check(
            lambda q, k, v, s_aux: runtime.flash_attn_func(
                q, k, v, causal=causal, s_aux=s_aux, leftpad_k=leftpad, seqused_k=used  # noqa: B023
            ),
            inputs(rows=(2, rows), keys=(2, 30)),
            leftpad_k=leftpad, seqused_k=used, window_right=0 if causal else -1,
        )  # fmt: skip


def test_compiled_and_checkpointed():
    torch.compiler.reset()
    call, options = packed((9, 0), {"cu_seqlens_k": PLACES})
    check(lambda *t: checkpoint(call, *t, use_reentrant=False), inputs(), **options)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    check(compiled, inputs(), **options)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("softcap", {"softcap": 2.0}),
        ("alibi_slopes", {"alibi_slopes": torch.rand(4)}),
        ("block_table", {"block_table": torch.zeros(4, 1, dtype=torch.int32)}),
        ("a head dimension of v, 16, that is not q's, 40,", {}),
    ],
)
def test_what_has_no_gradient_is_refused_by_name_when_the_call_is_made(reason, options):
    q, k, v, _ = inputs()
    if "block" in reason:
        k, v = (t.detach()[None] for t in (k, v))
    if not options:
        v = v[..., :16]
    with pytest.raises(runtime.InvalidArgument, match=f"with {reason} PyTorch .* has no backward"):
        runtime.flash_attn_varlen_func(q, k, v, PLACES, PLACES, 60, 60, **options)
