"""Who is measured: kernels of this build, and each backend of PyTorch's attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import runtime
from runtime import KernelInfo
from tools.bench.problems import Problem

Call = Callable[[], Any]
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


def backend_call(
    backend: SDPBackend, problem: Problem, q: Tensor, k: Tensor, v: Tensor
) -> Call | None:
    """A call of that backend on the same memory, transposed by strides; None where it refuses."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, enable_gqa=problem.heads != problem.kv_heads
            )

    try:
        call()
    except RuntimeError:  # "No available kernel", or the memory that the math backend asks for
        return None
    return call
