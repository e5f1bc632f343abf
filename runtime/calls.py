"""Attention kernels called by key or configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime import catalog


def forward(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Calls one attention kernel.

    Args:
        kernel: a key or a configuration, as `runtime.kernel` takes it.
        q: queries, [B, Sq, H, D].
        k: keys, [B, Sk, Hk, D].
        v: values, [B, Sk, Hk, D].
        o: where to write the output, [B, Sq, H, D]; allocated where None.
        options: the kernel's other arguments (`scale`, `return_lse`).

    Returns:
        what the kernel returns: the output, or output and log-sum-exp.
    """
    _refuse_out(options)
    return catalog.kernel(kernel)(q, k, v, out=o, **options)


def forward_timed(
    kernel: str | Mapping[str, Any] | object,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Any, float]:
    """Like `forward`, and waits; returns (result, milliseconds), timed as `Kernel.timed` does."""
    _refuse_out(options)
    return catalog.kernel(kernel).timed(q, k, v, out=o, **options)


def _refuse_out(options: Mapping[str, Any]) -> None:
    if "out" in options:
        raise TypeError("unknown argument out: these functions take the output's memory as o")
