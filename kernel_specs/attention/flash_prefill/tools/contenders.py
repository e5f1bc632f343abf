"""Who is measured: kernels of this build, what the functions of FlashAttention's names take, and
other implementations of the same."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import click
import torch
from kernelmint.tools.bench.measure import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import kernelmint
import runtime
from runtime import KernelInfo

from .problems import Problem

OURS = "kernelmint"


class Operands:
    """A problem's tensors, and what goes with them."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem
        self.q, self.k, self.v = problem.inputs(device)
        ends = torch.tensor([0, *problem.lengths], device=device).cumsum(0)
        self.ends = ends.to(torch.int32)
        self.used = None if self.equal else self.ends.diff()
        self.most = max(problem.lengths)
        self.window = (problem.window, 0 if problem.causal else -1)

    @property
    def equal(self) -> bool:
        """Whether all sequences are of one length, so that they are batches of one shape."""
        return len(set(self.problem.lengths)) == 1

    def batches(self, *of: Tensor) -> list[Tensor]:
        """[B, heads, S, d], of the same memory."""
        rows = len(self.problem.lengths)
        return [t.view(rows, -1, *t.shape[-2:]).transpose(1, 2) for t in of]


def ours(operands: Operands) -> Call:
    """The function that one would call."""
    q, k, v = operands.q, operands.k, operands.v
    causal, window = operands.problem.causal, (operands.problem.window, -1)
    if operands.problem.cached:
        return lambda: kernelmint.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=operands.used, causal=causal, window_size=window
        )
    return lambda: kernelmint.flash_attn_varlen_func(
        q, k, v, operands.ends, operands.ends, operands.most, operands.most, causal=causal,
        window_size=window,
    )  # fmt: skip


def kernel_call(info: KernelInfo, operands: Operands) -> Call:
    """A kernel of flash_prefill by its key, of packed sequences."""
    kernel = runtime.kernel(info.key)
    given: dict[str, Any] = {
        "cu_seqlens_q": operands.ends, "cu_seqlens_k": operands.ends,
        "window_left": operands.window[0], "window_right": operands.window[1],
    }  # fmt: skip
    q, k, v = (t[None] for t in (operands.q, operands.k, operands.v))
    return lambda: kernel(q, k, v, **given)


def flash_attention_2(operands: Operands) -> Call | None:
    """PyTorch's FlashAttention-2."""
    left, right = operands.window
    windowed: dict[str, Any] = {}
    if left >= 0:
        windowed = {"window_size_left": left, "window_size_right": right}
    ends, most = operands.ends, operands.most
    causal = operands.problem.causal and not windowed
    q, k, v = operands.q, operands.k, operands.v
    if operands.problem.cached:
        if operands.used is not None:
            windowed["seqused_k"] = operands.used
        return lambda: torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], most, 0.0, causal, False, **windowed
        )
    return lambda: torch.ops.aten._flash_attention_forward(
        q, k, v, ends, ends, most, most, 0.0, causal, False, **windowed
    )


def flash_attention_3(operands: Operands) -> Call | None:
    """PyPI's fa3-fwd, which chooses its splits; None if it is not installed, and of windows and
    fp16, which its wheels are built without (fa3_fwd_config.py: DISABLE_LOCAL, DISABLE_FP16)."""
    if importlib.util.find_spec("fa3_fwd") is None:
        return None
    if operands.problem.window >= 0 or operands.problem.dtype == "fp16":
        return None
    importlib.import_module("fa3_fwd._C")  # registers the operator
    given: dict[str, Any] = {
        "softmax_scale": operands.problem.d_head**-0.5, "is_causal": operands.problem.causal,
        "window_size_left": operands.window[0], "window_size_right": operands.window[1],
        "num_splits": 0,
    }  # fmt: skip
    if operands.used is not None and operands.problem.cached:
        given["seqused_k"] = operands.used
    if not operands.problem.cached:
        given |= {
            "cu_seqlens_q": operands.ends, "cu_seqlens_k": operands.ends,
            "max_seqlen_q": operands.most, "max_seqlen_k": operands.most,
        }  # fmt: skip
    q, k, v = operands.q, operands.k, operands.v
    return lambda: torch.ops.fa3_fwd.fwd(q, k, v, **given)


def cudnn(operands: Operands) -> Call | None:
    """PyTorch's cuDNN backend, of sequences of one length. For packed ones PyTorch makes cuDNN's
    plan anew at each call, 43 ms on an H200, and no CUDA graph captures it."""
    problem = operands.problem
    if problem.window >= 0 or not operands.equal or problem.cached > 1:
        return None  # of several queries over a cache its mask is aligned to the first key
    if problem.cached:
        q, k, v = (t.transpose(1, 2) for t in (operands.q, operands.k, operands.v))
    else:
        q, k, v = operands.batches(operands.q, operands.k, operands.v)
    grouped = problem.heads != problem.kv_heads

    def call() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal and not problem.cached, enable_gqa=grouped
            )

    return call


@functools.cache
def _flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_attention(operands: Operands) -> Call | None:
    """FlexAttention, compiled; its block mask is made before."""
    from torch.nn.attention.flex_attention import create_block_mask

    problem = operands.problem
    if problem.cached:
        return None
    total = sum(problem.lengths)
    lengths = operands.ends.diff()
    of = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)

    def mask(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = of[query] == of[key]
        if problem.causal:
            seen = seen & (key <= query)
        return seen & (query - key <= problem.window) if problem.window >= 0 else seen

    device: Any = operands.q.device
    blocks = create_block_mask(mask, None, None, total, total, device=device, _compile=True)
    q, k, v = (t[None].transpose(1, 2) for t in (operands.q, operands.k, operands.v))
    grouped = problem.heads != problem.kv_heads
    return lambda: _flex()(q, k, v, block_mask=blocks, enable_gqa=grouped)


def varlen_attn(operands: Operands) -> Call | None:
    """PyTorch's varlen_attn; None if it does not know what the problem has."""
    problem = operands.problem
    if problem.cached or importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return None
    from torch.nn.attention.varlen import varlen_attn as call

    known = inspect.signature(call).parameters
    given: dict[str, Any] = {}
    if "window_size" in known:
        given["window_size"] = operands.window
    elif problem.window < 0:
        given["is_causal"] = problem.causal
    else:
        return None
    if problem.heads != problem.kv_heads:
        if "enable_gqa" not in known:
            return None
        given["enable_gqa"] = True
    ends, most = operands.ends, operands.most
    return lambda: call(operands.q, operands.k, operands.v, ends, ends, most, most, **given)


OTHERS: dict[str, Callable[[Operands], Call | None]] = {
    "FlashAttention-3": flash_attention_3,
    "PyTorch cuDNN": cudnn,
    "PyTorch FlashAttention-2": flash_attention_2,
    "PyTorch varlen_attn": varlen_attn,
    "FlexAttention": flex_attention,
}


def contender(name: str, operands: Operands) -> Call | None:
    """A call of that name; None if it is not there, or refuses, which is said on stderr.

    PyTorch's operators refuse by RuntimeError ("No available kernel", an argument that an older
    schema lacks, a device without the operator, no memory left), its Python functions by
    ValueError. What else is raised is an error of the call itself.
    """
    try:
        call = OTHERS[name](operands)
        if call is not None:
            call()
    except (RuntimeError, ValueError) as error:
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        problem = operands.problem
        click.echo(f"{problem.group}, {problem.size}: {name} is left out: {reason}", err=True)
        return None
    return call
