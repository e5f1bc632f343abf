"""${family} without a key: picks a kernel that suits the arguments."""

from __future__ import annotations

import torch

from runtime import choice, tensors


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
    m, n = tensors.extents("x", x, 2)
    kernel = choice.take("${family}", x.device, {"dtype": x.dtype}, {"M": m, "N": n})
    return kernel(x, y, alpha=alpha, out=out)
