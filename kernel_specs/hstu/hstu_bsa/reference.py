"""HSTU's attention with block-sparse attention inside, in PyTorch: jagged in, jagged out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..block_sparse.reference import block_sparse_attention
from ..jagged import Gates, Jagged
from ..semantics import Mode, check_selection, semantics_of


class GateMLP(nn.Module):
    """The gates of the three branches from the query: Linear, ReLU, Linear, sigmoid."""

    def __init__(self, attention_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(attention_dim, hidden), nn.ReLU(), nn.Linear(hidden, 3)
        )

    def forward(self, q: torch.Tensor) -> Gates:
        """Computes the gates, q [..., A] -> (g_cmp, g_slc, g_swa), each [...], in (0, 1)."""
        g_cmp, g_slc, g_swa = torch.sigmoid(self.layers(q)).unbind(-1)
        return g_cmp, g_slc, g_swa


def hstu_attention_with_bsa(
    *arguments: Any,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
    attention: Callable[..., tuple[torch.Tensor, torch.Tensor]] = block_sparse_attention,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns attn_output [sum N, H * L] and the zero-padded padded_q, padded_k [B, n, H, A].

    arguments: as in Jagged; attention: what computes block-sparse attention over the padded
    tensors. ValueError for what does not fit.
    """
    jagged = Jagged(*arguments)
    jagged.check()
    jagged.longest()  # checks the offsets
    check_selection(block_count, block_size, jagged.num_heads, jagged.n, semantics_of(mode))
    q, k, v, u = jagged.by_heads()
    # A gate is a function of its own row; the padding rows' results are dropped. The published code
    # has no use for the other two.
    g_cmp, _, _ = jagged.gate_model(q)
    padded_q, padded_k = jagged.pad(q), jagged.pad(k)
    o, _ = attention(
        padded_q, padded_k, *map(jagged.pad, (v, u, g_cmp)),
        block_count=block_count, block_size=block_size, mode=mode,
    )  # fmt: skip
    return jagged.unpad(o).flatten(1), padded_q, padded_k
