"""${family} without a key: picks a kernel that suits the arguments."""

from __future__ import annotations

import torch

import runtime
from runtime import catalog, choice, tensors


def ${family}(
    x: torch.Tensor, y: torch.Tensor, *, alpha: float = 1.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """alpha * x + y.

    Args:
        x: what is scaled, [M, N], bf16, fp16 or f32.
        y: what is added, like x.
        alpha: the factor on x.
        out: where to write: a tensor like x.

    Returns:
        the sum, like x.

    Raises:
        KernelNotFound: no kernel suits; the message says for each candidate why.
        InvalidArgument: an argument is wrong.
    """
    sizes = dict(zip(("M", "N"), tensors.extents("x", x, 2), strict=True))
    covering = choice.covered(_tuned_ranges(x.device, x.dtype), sizes)
    kernel = runtime.kernel(_key(x.device, x.dtype, covering))
    return kernel(x, y, alpha=alpha, out=out)


def _wanted(dtype: torch.dtype) -> dict[str, str]:
    return {"dtype": catalog.dtype_name(dtype) or str(dtype)}


@choice.traced_as_constant
def _tuned_ranges(device: torch.device, dtype: torch.dtype) -> choice.Ranges:
    return choice.ranges("${family}", device, _wanted(dtype))


@choice.traced_as_constant
def _key(device: torch.device, dtype: torch.dtype, covering: tuple[int, ...]) -> str:
    return choice.choose("${family}", device, _wanted(dtype), covering=covering).info.key
