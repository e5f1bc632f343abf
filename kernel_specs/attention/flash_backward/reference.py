"""The gradients of attention in fp64, from its formula."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of o = softmax(scale * q k^T) v, given dout, the gradient of o.

    As FlashAttention's equations have it (Dao et al., 2022, appendix B.2): P = exp(S - lse), dP =
    dout v^T, D = the sum of dout o over a row, dS = P (dP - D).

    Args:
        dout: [B, Sq, H, D].
        q: [B, Sq, H, D].
        k: [B, Sk, Hk, D]; Hk divides H.
        v: [B, Sk, Hk, D].
        o: the output, [B, Sq, H, D].
        lse: log-sum-exp of each row of scores, [B, H, Sq], natural log; -inf without keys.
        scale: the factor on q k^T.
        causal: query i sees keys up to i + Sk - Sq.

    Returns:
        dq [B, Sq, H, D], dk and dv [B, Sk, Hk, D], in fp64.
    """
    group = q.shape[2] // k.shape[2]
    dout, q, o = (t.double().transpose(1, 2) for t in (dout, q, o))
    k, v = (t.double().transpose(1, 2).repeat_interleave(group, 1) for t in (k, v))
    scores = scale * q @ k.transpose(-1, -2)
    probabilities = torch.exp(scores - lse.double().unsqueeze(-1))
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        hidden = hidden.triu(k.shape[2] - q.shape[2] + 1)
        probabilities = probabilities.masked_fill(hidden, 0)
    products = dout @ v.transpose(-1, -2) - (dout * o).sum(-1, keepdim=True)
    scores_gradient = probabilities * products
    dq = scale * scores_gradient @ k
    dk = scale * scores_gradient.transpose(-1, -2) @ q
    dv = probabilities.transpose(-1, -2) @ dout
    dk, dv = (t.reshape(t.shape[0], -1, group, *t.shape[2:]).sum(2) for t in (dk, dv))
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
