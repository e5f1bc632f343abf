"""block_sparse_attention: block-sparse attention for HSTU, with a kernel that suits."""

from __future__ import annotations

import torch

from runtime import tensors
from runtime.errors import InvalidArgument

from ..fronts import flags, front_of
from ..semantics import check_selection, semantics_of

_front = front_of("block_sparse")


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    g_cmp: torch.Tensor,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: str = "fixed",
    target: str | None = None,
    dot: str | None = None,
    schedule: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes block-sparse attention for HSTU (docs/block_sparse.md).

    Args:
        q: queries, float32, [B, T, H, A].
        k: keys, like q.
        v: values, float32, [B, T, H, L].
        u: the elementwise gate of the output, like v.
        g_cmp: the gate of the compressed branch, float32, [B, T, H].
        block_count: how many blocks a query selects, its own among them.
        block_size: tokens of a block.
        mode: "fixed", causal and independent of padding; "interleaved", the same but for odd
            positions, which take the list of the even position before; or "literal", as published.
        target: "cpu", "sm80", ...; the first that is available if None.
        dot: precision of the products, one of the target's; its most exact if None.
        schedule: how the kernel goes about it, "blocks" or "tiles", if the target has both; the
            faster one for this length if None. The result is the same, bit for bit.

    Returns:
        o, float32, [B, T, H, L], and block_indices, int64, [B, H, T, min(block_count, C)] with
        C = ceil(T / block_size): the selected blocks by score, -1 for none.

    Raises:
        InvalidArgument: an argument is wrong.
        KernelNotFound: no kernel suits; the message says for each candidate why.
    """
    _, length, heads, _ = tensors.extents("q", q, 4)
    try:
        check_selection(block_count, block_size, heads, length, semantics_of(mode))
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    chosen = flags(q, block_count, block_size, mode, target, dot, schedule)
    o, block_indices = _front((q, k, v, u, g_cmp), (), (), None, chosen)
    return o, block_indices
