"""Block-sparse attention for HSTU in PyTorch: the oracle, and every intermediate it passes through.

The compressed branch attends to the means of whole key/value blocks; its scores also choose, for
every query and head, the few blocks that the selected branch then attends to key by key. Both use
SiLU where softmax attention normalises (Zhai et al., Actions Speak Louder than Words, 2024), both
end in a LayerNorm over all heads jointly and the elementwise gate u.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..jagged import Padded
from ..semantics import LAYER_NORM_EPSILON, Mode, Semantics, check_selection, semantics_of

_GATHERED_ELEMENTS = 1 << 27
"""At most so many gathered key and value elements are held at a time."""


@dataclass(frozen=True)
class Trace:
    """Every stage. C = ceil(T / block_size) blocks, S = min(block_count, C) list entries.

    Floating tensors have the dtype that was computed in (fp32, or fp64 for the oracle).
    """

    k_cmp: torch.Tensor  # [B, C, H, A]: mean key of each block; the divisor is always block_size
    v_cmp: torch.Tensor  # [B, C, H, L]
    seen: torch.Tensor  # [T, C] bool: blocks the compressed branch of row t attends to
    scores: torch.Tensor  # [B, H, T, C]: SiLU(A q·k_cmp) / A if seen, else 0
    ranking: torch.Tensor  # [B, H, T, C]: what the selection sorts by; never NaN
    block_indices: torch.Tensor  # [B, H, T, S] int64, by ranking; -1: no block
    lists: torch.Tensor  # [B, H, T, S]: the list that the query (h, t) really uses
    o_cmp_raw: torch.Tensor  # [B, T, H, L]: before LayerNorm, gated
    o_slc_raw: torch.Tensor  # [B, T, H, L]: before LayerNorm
    o_cmp: torch.Tensor  # [B, T, H, L]: LayerNorm(o_cmp_raw) * u
    o_slc: torch.Tensor  # [B, T, H, L]: LayerNorm(o_slc_raw) * u
    o: torch.Tensor  # [B, T, H, L]: the sum


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    g_cmp: torch.Tensor,
    *,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o [B, T, H, L] and block_indices [B, H, T, min(block_count, C)] (int64, -1: none).

    q, k: [B, T, H, A]; v, u: [B, T, H, L]; g_cmp: [B, T, H]; all fp32, or all fp64. ValueError for
    what does not fit.
    """
    stages = trace(q, k, v, u, g_cmp, block_count=block_count, block_size=block_size, mode=mode)
    return stages.o, stages.block_indices


def trace(
    *tensors: torch.Tensor,
    block_count: int = 4,
    block_size: int = 32,
    mode: Mode = "fixed",
    block_indices: torch.Tensor | None = None,
) -> Trace:
    """Computes all stages of `block_sparse_attention`; the oracle gets fp64 tensors (`to_double`).

    tensors: as in Padded.

    block_indices: a selection to use instead of the one computed here (teacher forcing): that of
    another implementation, so that its selected branch can be judged apart from its choice.
    """
    flags = semantics_of(mode)
    padded = Padded(*tensors)
    padded.check(torch.float32, torch.float64)
    q, k, v, u, g_cmp = padded
    _, T, H, A = q.shape
    check_selection(block_count, block_size, H, T, flags)
    C = -(-T // block_size)
    S = min(block_count, C)

    k_cmp, v_cmp = pool(k, block_size), pool(v, block_size)
    t = torch.arange(T, device=q.device)
    blocks = torch.arange(C, device=q.device)
    complete = (blocks + 1) * block_size - 1 <= t[:, None]
    seen = complete | ((t < block_size - 1)[:, None] & flags.open_first_rows)

    logits = torch.einsum("bthd,bchd->bhtc", q * A, k_cmp)
    scores = torch.where(seen, F.silu(logits) / A, 0.0)
    o_cmp_raw = attend(scores, v_cmp, seen.expand_as(scores), "bhtc,bchd->bthd") * g_cmp[..., None]
    ranking = rank(scores, seen, block_size, flags)
    own = select(ranking, S, block_size, flags)
    if block_indices is not None:
        if block_indices.shape != own.shape or block_indices.dtype != torch.int64:
            raise ValueError(
                f"block_indices is {block_indices.dtype} {list(block_indices.shape)}: "
                f"expected int64 {list(own.shape)}"
            )
        own = block_indices
    lists = arrange(own, flags)
    o_slc_raw = attend_selected(q, k, v, lists, block_size)
    o_cmp, o_slc = layer_norm(o_cmp_raw) * u, layer_norm(o_slc_raw) * u
    return Trace(
        k_cmp=k_cmp,
        v_cmp=v_cmp,
        seen=seen,
        scores=scores,
        ranking=ranking,
        block_indices=own,
        lists=lists,
        o_cmp_raw=o_cmp_raw,
        o_slc_raw=o_slc_raw,
        o_cmp=o_cmp,
        o_slc=o_slc,
        o=o_cmp + o_slc,
    )


def to_double(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the tensors in fp64, in which `trace` is the oracle."""
    return tuple(tensor.double() for tensor in tensors)


def pool(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """Returns the block means [B, C, H, D] of x [B, T, H, D]; the divisor is always block_size."""
    B, T, H, D = x.shape
    C = -(-T // block_size)
    padded = F.pad(x, (0, 0, 0, 0, 0, C * block_size - T))
    return padded.reshape(B, C, block_size, H, D).sum(2) / block_size


def rank(
    scores: torch.Tensor, seen: torch.Tensor, block_size: int, flags: Semantics
) -> torch.Tensor:
    """Returns the scores that are sorted, [B, H, T, C], masked and own blocks overwritten.

    NaN and +inf count as the greatest finite number: before every finite score, and behind a row's
    own block if that ranks +inf.
    """
    T, C = seen.shape
    current = torch.arange(T, device=seen.device) // block_size
    local = current[:, None] == torch.arange(C, device=seen.device)
    scores = scores.nan_to_num(nan=torch.finfo(scores.dtype).max)
    return scores.masked_fill(~seen, flags.masked_rank).masked_fill(local, flags.local_rank)


def select(ranking: torch.Tensor, S: int, block_size: int, flags: Semantics) -> torch.Tensor:
    """Returns the S best blocks [B, H, T, S], by score descending, then index ascending; -1: none.

    Adding 0.0 turns -0.0 into +0.0, so the two tie; a stable sort keeps ties in index order.
    """
    values, order = torch.sort(ranking + 0.0, dim=-1, descending=True, stable=True)
    T = ranking.shape[2]
    current = torch.arange(T, device=ranking.device)[:, None] // block_size
    chosen = order[..., :S]
    absent = (chosen > current) | (values[..., :S] == float("-inf"))
    chosen = chosen.masked_fill(absent, -1)
    if flags.share == "heads" and ranking.shape[1] > 1:
        chosen[:, 1::2] = chosen[:, 0::2]
    elif flags.share == "time":
        chosen[:, :, 1::2] = chosen[:, :, 0 : T - T % 2 : 2]
    return chosen


def arrange(block_indices: torch.Tensor, flags: Semantics) -> torch.Tensor:
    """Returns the list [B, H, T, S] that each query uses."""
    if flags.list_layout == "transpose":
        return block_indices
    B, H, T, S = block_indices.shape
    return block_indices.reshape(B, T, H, S).transpose(1, 2)


def attend(
    weights: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor, equation: str
) -> torch.Tensor:
    """Sums weighted values as the einsum `equation` says; weights that are not allowed are 0.

    What is not allowed stays out also if it is not finite, though 0 times it would be NaN. An
    allowed value that is not finite makes the sum NaN, as LayerNorm would.
    """
    finite = values.isfinite()
    total = torch.einsum(equation, weights, values.where(finite, 0.0))
    if finite.all():
        return total
    reached = torch.einsum(equation, allowed.to(weights.dtype), (~finite).to(weights.dtype)) > 0
    return total.masked_fill(reached, float("nan"))


def attend_selected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Sums SiLU(q·k_j) / A v_j over listed keys j <= t: [B, T, H, L]. Gathers chunks of rows."""
    B, T, H, A = q.shape
    L = v.shape[3]
    S = lists.shape[3]
    C = -(-T // block_size)
    padding = (0, 0, 0, 0, 0, C * block_size - T)
    k_blocks = F.pad(k, padding).reshape(B, C, block_size, H, A)
    v_blocks = F.pad(v, padding).reshape(B, C, block_size, H, L)
    b = torch.arange(B, device=q.device)[:, None, None, None]
    h = torch.arange(H, device=q.device)[None, :, None, None]
    within = torch.arange(block_size, device=q.device)
    out = q.new_empty(B, T, H, L)
    for start, stop in _chunks(T, B * H * S * block_size * (A + L)):
        chosen = lists[:, :, start:stop]
        t = torch.arange(start, stop, device=q.device)[:, None, None]
        keys = chosen[..., None] * block_size + within
        allowed = ((chosen[..., None] >= 0) & (keys < T) & (keys <= t)).flatten(3)
        index = chosen.clamp(min=0)
        k_chosen = k_blocks[b, index, :, h].flatten(3, 4)
        v_chosen = v_blocks[b, index, :, h].flatten(3, 4)
        logits = torch.einsum("bthd,bhtjd->bhtj", q[:, start:stop], k_chosen)
        weights = torch.where(allowed, F.silu(logits) / A, 0.0)
        out[:, start:stop] = attend(weights, v_chosen, allowed, "bhtj,bhtjd->bthd")
    return out


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    """Returns (x - mean) / sqrt(var + 1e-6) of x [B, T, H, L] over all H * L values of a token."""
    return F.layer_norm(x, x.shape[-2:], eps=LAYER_NORM_EPSILON)


def _chunks(rows: int, elements_per_row: int) -> Iterator[tuple[int, int]]:
    step = max(1, _GATHERED_ELEMENTS // elements_per_row)
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
