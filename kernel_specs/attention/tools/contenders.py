"""Contenders beside attention's kernels: fronts, PyTorch's attention, FlashAttention-3 and -4.

Results have the layout of the kernels'."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kernelmint.tools.bench import Call, Contender, Inputs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import kernelmint
import runtime
from kernelmint.integrations import torch as slot

from .problems import Attention, Decoding, Gradients, Packed, PackedGradients


def _named(function: Callable[..., Any], **arguments: Any) -> Call:
    """Returns a call with those arguments that this version of a function has."""
    names = inspect.signature(function).parameters
    return partial(function, **{n: value for n, value in arguments.items() if n in names})


def _flash_attention_4(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(
        importlib.import_module("flash_attn.cute.interface"), name
    )
    return function


def _flash_attention_3() -> Any:
    importlib.import_module("fa3_fwd._C")  # registers the operator
    return torch.ops.fa3_fwd.fwd


_FA3 = ("cuda", "fa3-fwd", "fa3_fwd")
_FA4 = ("cuda", "flash-attn-4", "flash_attn.cute")


# Attention


def _sdpa(backend: SDPBackend, problem: Attention | Packed, *tensors: Tensor) -> Call:
    """Returns a call of a backend on the same memory, transposed by strides."""
    q, k, v = (t.transpose(1, 2) for t in tensors)

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, enable_gqa=problem.heads != problem.kv_heads
            ).transpose(1, 2)

    return call


def _backend(backend: SDPBackend, problem: Attention, inputs: Inputs) -> Call:
    return _sdpa(backend, problem, *inputs.values())


def _forward_3(problem: Attention, inputs: Inputs) -> Call:
    options = {"softmax_scale": problem.d_head**-0.5, "is_causal": problem.causal}
    return partial(_flash_attention_3(), *inputs.values(), **options, num_splits=1)


def _forward_4(problem: Attention, inputs: Inputs) -> Call:
    return _named(_flash_attention_4("flash_attn_func"), **inputs, causal=problem.causal)


def _front(problem: Attention, inputs: Inputs) -> Call:
    return partial(runtime.attention, **inputs, causal=problem.causal)


def _fronts_key(problem: Attention, inputs: Inputs) -> str:
    return str(runtime.explain_choice(**inputs, causal=problem.causal).key)


FORWARD = {
    "PyTorch flash": Contender(partial(_backend, SDPBackend.FLASH_ATTENTION)),
    "PyTorch cuDNN": Contender(partial(_backend, SDPBackend.CUDNN_ATTENTION), "cuda"),
    "PyTorch efficient": Contender(partial(_backend, SDPBackend.EFFICIENT_ATTENTION), "cuda"),
    "PyTorch math": Contender(partial(_backend, SDPBackend.MATH)),
    "FlashAttention-3": Contender(_forward_3, *_FA3),
    "FlashAttention-4": Contender(_forward_4, *_FA4),
    "kernelmint": Contender(_front, kernel=_fronts_key),
}


# Gradients


def _transposed(backward: Callable[..., Any], inputs: Inputs, *options: Any) -> Call:
    """Returns a call of an operator of PyTorch's that takes heads before rows."""
    tensors = [inputs[name].transpose(1, 2) for name in ("dout", "q", "k", "v", "o")]
    return lambda: [t.transpose(1, 2) for t in backward(*tensors, *options)[:3]]


def _backward_cudnn(problem: Gradients, inputs: Inputs) -> Call:
    n, lse = problem.seq_len, inputs["lse"].unsqueeze(-1)
    unused = torch.zeros((), dtype=torch.int64, device=lse.device)
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    options = (lse, unused, unused, None, None, None, n, n, 0.0, problem.causal)
    return _transposed(backward, inputs, *options)


def _backward_flash(problem: Gradients, inputs: Inputs) -> Call | str:
    n, lse = problem.seq_len, inputs["lse"]
    if not lse.is_cuda:
        if problem.heads != problem.kv_heads:
            return "it has no heads that share keys"
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return _transposed(backward, inputs, lse, 0.0, problem.causal)
    unused = torch.empty(2, dtype=torch.uint64, device=lse.device)
    options = (None, None, n, n, 0.0, problem.causal, unused, unused[:0])
    return partial(torch.ops.aten._flash_attention_backward, *inputs.values(), *options)


def _backward_4(deterministic: bool, problem: Gradients, inputs: Inputs) -> Call:
    options = {"softmax_scale": problem.d_head**-0.5, "causal": problem.causal}
    arguments = {**inputs, "out": inputs["o"], **options, "deterministic": deterministic}
    return _named(_flash_attention_4("_flash_attn_bwd"), **arguments)


def _gradients_front(problem: Gradients, inputs: Inputs) -> Call:
    return partial(runtime.attention_backward, **inputs, causal=problem.causal)


def _gradients_key(problem: Gradients, inputs: Inputs) -> str:
    call = {**inputs, "causal": problem.causal}
    return str(runtime.explain_call(runtime.attention_backward, **call).key)


GRADIENTS = {
    "PyTorch cuDNN": Contender(_backward_cudnn, "cuda"),
    "PyTorch flash": Contender(_backward_flash),
    "FlashAttention-4": Contender(partial(_backward_4, False), *_FA4),
    "FlashAttention-4, deterministic": Contender(partial(_backward_4, True), *_FA4),
    "kernelmint": Contender(_gradients_front, kernel=_gradients_key),
}


# Packed sequences, and decoding

_UNEQUAL = "it takes caches of one length"


def _tensors(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v: of packed sequences [tokens, heads, d], of a cache [B, S, heads, d]."""
    if "k_cache" in inputs:
        return inputs["q"], inputs["k_cache"], inputs["v_cache"]
    return inputs["q"][0], inputs["k"][0], inputs["v"][0]


def _varlen(problem: Packed, inputs: Inputs) -> Call:
    """Returns a call of the function that one would call."""
    ends, most = inputs["cu_seqlens_q"], max(problem.lengths)
    options = {
        "causal": problem.causal, "window_size": (problem.window, -1), "softcap": problem.softcap,
    }  # fmt: skip
    function = kernelmint.flash_attn_varlen_func
    return partial(function, *_tensors(inputs), ends, ends, most, most, **options)


def _with_cache(problem: Decoding, inputs: Inputs) -> Call:
    function = kernelmint.flash_attn_with_kvcache
    return partial(function, *_tensors(inputs), cache_seqlens=inputs["seqused_k"])


def _attention(problem: Decoding, inputs: Inputs) -> Call | str:
    return partial(runtime.attention, *_tensors(inputs)) if problem.equal else _UNEQUAL


def _our_sdpa(problem: Decoding, inputs: Inputs) -> Call | str:
    if not problem.equal:
        return _UNEQUAL
    q, k, v = (t.transpose(1, 2) for t in _tensors(inputs))
    return lambda: runtime.sdpa(q, k, v, enable_gqa=True).transpose(1, 2)


def _slot(problem: Decoding, inputs: Inputs) -> Call | str:
    """Returns a call of PyTorch's function; its flash attention stays ours in this process."""
    if not problem.equal:
        return _UNEQUAL
    slot.activate(otherwise="error")
    return _sdpa(SDPBackend.FLASH_ATTENTION, problem, *_tensors(inputs))


def _attentions_key(problem: Decoding, inputs: Inputs) -> str:
    return str(runtime.explain_choice(*_tensors(inputs)).key)


def _packed_flash(problem: Packed, inputs: Inputs) -> Call:
    """Returns a call of PyTorch's FlashAttention-2."""
    forward, most = torch.ops.aten._flash_attention_forward, max(problem.lengths)
    q, k, v = _tensors(inputs)
    if isinstance(problem, Decoding):
        used = inputs["seqused_k"]
        options = {} if used is None else {"seqused_k": used}
        return partial(forward, q, k, v, None, None, 1, most, 0.0, False, False, **options)
    ends, windowed = inputs["cu_seqlens_q"], problem.window >= 0
    options = {"window_size_left": problem.window, "window_size_right": 0} if windowed else {}
    causal = problem.causal and not windowed
    return partial(forward, q, k, v, ends, ends, most, most, 0.0, causal, False, **options)


def _packed_3(problem: Packed, inputs: Inputs) -> Call | str:
    """Returns a call of fa3-fwd, which chooses its splits."""
    if problem.window >= 0 or problem.dtype == "fp16":
        # fa3_fwd_config.py: DISABLE_LOCAL, DISABLE_FP16
        return "its wheels are built without windows and fp16"
    options: dict[str, Any] = {
        "softmax_scale": problem.d_head**-0.5, "is_causal": problem.causal, "num_splits": 0,
        "window_size_left": -1, "window_size_right": 0 if problem.causal else -1,
    }  # fmt: skip
    if not isinstance(problem, Decoding):
        most = max(problem.lengths)
        options |= {"max_seqlen_q": most, "max_seqlen_k": most}
        options |= {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    elif inputs["seqused_k"] is not None:
        options["seqused_k"] = inputs["seqused_k"]
    return partial(_flash_attention_3(), *_tensors(inputs), **options)


def _packed_4(problem: Packed, inputs: Inputs) -> Call:
    q, k, v = _tensors(inputs)
    options: dict[str, Any] = {"q": q, "k": k, "v": v, "causal": problem.causal}
    options["softcap"] = problem.softcap
    if problem.window >= 0:
        options |= {"causal": False, "window_size": (problem.window, 0)}
    if isinstance(problem, Decoding):
        options["seqused_k"] = inputs["seqused_k"]
    else:
        most = max(problem.lengths)
        options |= {"max_seqlen_q": most, "max_seqlen_k": most}
        options |= {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    return _named(_flash_attention_4("flash_attn_varlen_func"), **options)


def _packed_cudnn(problem: Packed, inputs: Inputs) -> Call | str:
    if problem.window >= 0 or not problem.equal:
        return "PyTorch makes its plan anew at each call of sequences of several lengths: 43 ms"
    q, k, v = _tensors(inputs)
    if not isinstance(problem, Decoding):
        rows = len(problem.lengths)
        q, k, v = (t.view(rows, -1, *t.shape[-2:]) for t in (q, k, v))
    return _sdpa(SDPBackend.CUDNN_ATTENTION, problem, q, k, v)


@functools.cache
def _flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _flex_attention(problem: Packed, inputs: Inputs) -> Call:
    """Returns a call of FlexAttention, compiled; its block mask is made before."""
    from torch.nn.attention.flex_attention import create_block_mask

    total, lengths = sum(problem.lengths), inputs["cu_seqlens_q"].diff()
    of = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)

    def mask(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = of[query] == of[key]
        if problem.causal:
            seen = seen & (key <= query)
        return seen & (query - key <= problem.window) if problem.window >= 0 else seen

    device: Any = lengths.device
    blocks = create_block_mask(mask, None, None, total, total, device=device, _compile=True)
    q, k, v = (inputs[name].transpose(1, 2) for name in "qkv")
    grouped = problem.heads != problem.kv_heads
    return lambda: _flex()(q, k, v, block_mask=blocks, enable_gqa=grouped).transpose(1, 2)


def _varlen_attn(problem: Packed, inputs: Inputs) -> Call | str:
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return "this PyTorch has none"
    from torch.nn.attention.varlen import varlen_attn

    names = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"enable_gqa": True}
    if problem.heads == problem.kv_heads:
        options = {}
    elif "enable_gqa" not in names:
        return "this PyTorch's has no heads that share keys"
    if "window_size" in names:
        options["window_size"] = (problem.window, 0 if problem.causal else -1)
    elif problem.window < 0:
        options["is_causal"] = problem.causal
    else:
        return "this PyTorch's has no windows"
    ends, most = inputs["cu_seqlens_q"], max(problem.lengths)
    return partial(varlen_attn, *_tensors(inputs), ends, ends, most, most, **options)


def _each_backward(problem: PackedGradients, inputs: Inputs) -> Call:
    """Returns calls of PyTorch's operator for the CPU, which takes a window as a mask."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    group = problem.heads // problem.kv_heads
    named = dict(inputs) | {n: inputs[n].repeat_interleave(group, 2) for n in "kv"}
    rows = [slice(*pair) for pair in itertools.pairwise(inputs["cu_seqlens_q"].tolist())]

    def mask(length: int) -> Tensor | None:
        if problem.window < 0:
            return None
        hidden = torch.ones(length, length, dtype=torch.bool)
        hidden = hidden.triu(1) | hidden.tril(-problem.window - 1)
        return torch.zeros(hidden.shape, dtype=named["q"].dtype).masked_fill(hidden, -torch.inf)

    def call() -> list[Tensor]:
        gradients = [torch.empty_like(inputs[name]) for name in "qkv"]
        for part in rows:
            tensors = [named[n][:, part].transpose(1, 2) for n in ("dout", "q", "k", "v", "o")]
            causal, hidden = problem.causal, mask(part.stop - part.start)
            dq, dk, dv = backward(
                *tensors, inputs["lse"][:, :, part].contiguous(), 0.0, causal and hidden is None,
                attn_mask=hidden,
            )  # fmt: skip
            dk, dv = (t.unflatten(1, (-1, group)).sum(2) for t in (dk, dv))
            for whole, gradient in zip(gradients, (dq, dk, dv), strict=True):
                whole[:, part] = gradient.transpose(1, 2)
        return gradients

    return call


def _packed_backward_flash(problem: PackedGradients, inputs: Inputs) -> Call:
    """Returns a call of PyTorch's FlashAttention-2, whose causal mask is a window's right end."""
    q, most = inputs["q"], max(problem.lengths)
    unused = torch.empty(2, dtype=torch.uint64, device=q.device)
    ends = inputs["cu_seqlens_q"]
    return partial(
        torch.ops.aten._flash_attention_backward,
        *(inputs[name][0] for name in ("dout", "q", "k", "v", "o", "lse")),
        *(ends, ends, most, most, 0.0, False, unused, unused[:0]),
        window_size_left=inputs["window_left"], window_size_right=inputs["window_right"],
    )  # fmt: skip


def _packed_backward_4(deterministic: bool, problem: PackedGradients, inputs: Inputs) -> Call:
    most, windowed = max(problem.lengths), problem.window >= 0
    arguments: dict[str, Any] = {name: inputs[name][0] for name in ("dout", "q", "k", "v", "lse")}
    arguments |= {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    if windowed:
        arguments |= {"window_size_left": problem.window, "window_size_right": 0}
    return _named(
        _flash_attention_4("_flash_attn_bwd"), **arguments, out=inputs["o"][0],
        softmax_scale=problem.d_head**-0.5, causal=problem.causal and not windowed,
        max_seqlen_q=most, max_seqlen_k=most, deterministic=deterministic,
        softcap=problem.softcap,
    )  # fmt: skip


def _uncapped(
    call: Callable[[Any, Inputs], Call | str], problem: Packed, inputs: Inputs
) -> Call | str:
    """Returns a contender's call, unless scores are capped, which it is not asked to do here."""
    return "it is called without a softcap" if problem.softcap else call(problem, inputs)


_BOTH = {
    "FlashAttention-3": Contender(partial(_uncapped, _packed_3), *_FA3),
    "FlashAttention-4": Contender(_packed_4, *_FA4),
    "PyTorch cuDNN": Contender(partial(_uncapped, _packed_cudnn), "cuda"),
    "PyTorch flash": Contender(partial(_uncapped, _packed_flash), "cuda"),
}
PACKED = {
    **_BOTH,
    "PyTorch varlen_attn": Contender(partial(_uncapped, _varlen_attn), "cuda"),
    "FlexAttention": Contender(partial(_uncapped, _flex_attention)),
    "kernelmint": Contender(_varlen, kernel=lambda problem, inputs: "kernelmint"),
}
PACKED_GRADIENTS = {
    "PyTorch flash": Contender(partial(_uncapped, _packed_backward_flash), "cuda"),
    "PyTorch flash, one sequence at a time": Contender(partial(_uncapped, _each_backward), "cpu"),
    "FlashAttention-4": Contender(partial(_packed_backward_4, False), *_FA4),
    "FlashAttention-4, deterministic": Contender(partial(_packed_backward_4, True), *_FA4),
}
DECODING = {
    **_BOTH,
    "kernelmint attention": Contender(_attention, kernel=_attentions_key),
    "kernelmint sdpa": Contender(_our_sdpa, kernel=_attentions_key),
    "kernelmint slot": Contender(_slot, "cuda", kernel=_attentions_key),
    "kernelmint": Contender(_with_cache, kernel=lambda problem, inputs: "kernelmint"),
}
