"""${family} without a key: picks a kernel that suits the arguments."""

from __future__ import annotations

import torch

import runtime
from runtime import catalog, choice


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
    kernel = runtime.kernel(_key(x.device, x.dtype))
    return kernel(x, y, alpha=alpha, out=out)


@choice.traced_as_constant
def _key(device: torch.device, dtype: torch.dtype) -> str:
    wanted = {"dtype": catalog.dtype_name(dtype) or str(dtype)}
    return choice.choose("${family}", device, wanted).info.key
