"""Who is measured: kernels of this build, PyTorch's attention by backend, FlashAttention-3."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from kernelmint.tools.bench.measure import Call
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import runtime
from runtime import KernelInfo

from .problems import Problem

BACKENDS = {
    "PyTorch flash": SDPBackend.FLASH_ATTENTION,
    "PyTorch cuDNN": SDPBackend.CUDNN_ATTENTION,
    "PyTorch efficient": SDPBackend.EFFICIENT_ATTENTION,
    "PyTorch math": SDPBackend.MATH,
}


def compiled_in(info: KernelInfo) -> tuple[str, int, bool]:
    """What a kernel computes: its dtype, head dimension and whether it masks."""
    p = info.parameters
    return str(p["dtype"]), int(p["d_head"]), bool(p["causal"])


def kernel_call(info: KernelInfo, q: Tensor, k: Tensor, v: Tensor) -> Call:
    """A call of the kernel that allocates its output, as PyTorch's do."""
    kernel = runtime.kernel(info.key)
    return lambda: kernel(q, k, v)


ATTENTION = "runtime.attention"


def attention_call(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Call, str]:
    """A call through `runtime.attention`, and the key of the kernel that it takes.

    Raises:
        KernelNotFound: it finds none.
    """

    def call() -> Any:
        return runtime.attention(q, k, v, causal=problem.causal)

    call()
    return call, str(runtime.explain_choice(q, k, v, causal=problem.causal).key)


def backend_call(
    backend: SDPBackend, problem: Problem, q: Tensor, k: Tensor, v: Tensor
) -> Call | None:
    """A call of that backend on the same memory, transposed by strides; None if it refuses."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, enable_gqa=problem.heads != problem.kv_heads
            )

    return _unless_refused(call)


FLASH_ATTENTION_3 = "FlashAttention-3"


def flash_attention_3_call(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Call | None:
    """A call of PyPI's fa3-fwd on the same memory; None if it is not installed, or refuses."""
    if not q.is_cuda or importlib.util.find_spec("fa3_fwd") is None:
        return None
    importlib.import_module("fa3_fwd._C")  # registers the operator
    scale = problem.d_head**-0.5

    def call() -> Tensor:
        return torch.ops.fa3_fwd.fwd(  # type: ignore[no-any-return]  # operators are untyped
            q, k, v, softmax_scale=scale, is_causal=problem.causal, num_splits=1
        )[0]

    return _unless_refused(call)


def contender_call(name: str, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Call | None:
    """A call of the contender of that name; None if it is not installed, or refuses."""
    if name == FLASH_ATTENTION_3:
        return flash_attention_3_call(problem, q, k, v)
    return backend_call(BACKENDS[name], problem, q, k, v)


def _unless_refused(call: Call) -> Call | None:
    try:
        call()
    except RuntimeError:  # "No available kernel", or the memory that the math backend asks for
        return None
    return call
