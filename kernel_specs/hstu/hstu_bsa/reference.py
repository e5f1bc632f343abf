"""HSTU's attention with block-sparse attention inside, in PyTorch: jagged in, jagged out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ..block_sparse.reference import block_sparse_attention
from ..jagged import GateModel, Gates, Jagged
from ..semantics import Mode, check_selection, semantics_of


class GateMLP(nn.Module):
    """The gates of the three branches from the query: Linear, ReLU, Linear, sigmoid."""

    def __init__(self, attention_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(attention_dim, hidden), nn.ReLU(), nn.Linear(hidden, 3)
        )

    def forward(self, q: torch.Tensor) -> Gates:
        """q [..., A] -> (g_cmp, g_slc, g_swa), each [...], in (0, 1)."""
        g_cmp, g_slc, g_swa = torch.sigmoid(self.layers(q)).unbind(-1)
        return g_cmp, g_slc, g_swa


def hstu_attention_with_bsa(
    num_heads: int,
    attention_dim: int,
    linear_dim: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    x_offsets: torch.Tensor,
    invalid_attn_mask: torch.Tensor,
    gate_model: GateModel,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
    attention: Callable[..., tuple[torch.Tensor, torch.Tensor]] = block_sparse_attention,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns attn_output [sum N, H * L] and the zero-padded padded_q, padded_k [B, n, H, A].

    q, k: [sum N, H * A]; v, u: [sum N, H * L]; x_offsets: [B + 1] (int32 or int64), sequence b
    being the rows x_offsets[b] to x_offsets[b + 1]; invalid_attn_mask: [..., n, n], of which only
    the extent n counts; gate_model: q [..., A] -> three gates [...]; attention: what
    computes block-sparse attention over the padded tensors. ValueError for what does not fit.
    """
    n = invalid_attn_mask.shape[-1] if invalid_attn_mask.dim() else 0
    jagged = Jagged(num_heads, attention_dim, linear_dim, q, k, v, u, x_offsets, n)
    jagged.check()
    jagged.longest()  # checks the offsets
    check_selection(block_count, block_size, num_heads, n, semantics_of(mode))
    q, k, v, u = jagged.by_heads()
    # A gate is a function of its own row; the padding rows' results are dropped. The published code
    # has no use for the other two.
    g_cmp, _, _ = gate_model(q)
    padded_q, padded_k = jagged.pad(q), jagged.pad(k)
    o, _ = attention(
        padded_q,
        padded_k,
        jagged.pad(v),
        jagged.pad(u),
        jagged.pad(g_cmp),
        block_count=block_count,
        block_size=block_size,
        mode=mode,
    )
    return jagged.unpad(o).flatten(1), padded_q, padded_k
