"""Block-sparse attention spelled out, one number at a time: written apart from the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def silu(x: float) -> float:
    """x / (1 + e^-x), in whichever form does not overflow."""
    if x >= 0:
        return x / (1.0 + math.exp(-x))
    return x * math.exp(x) / (1.0 + math.exp(x)) if x > -700 else -0.0


def attention(
    q: Array, k: Array, v: Array, u: Array, g_cmp: Array, block_count: int, size: int, mode: str
) -> tuple[Array, Array]:
    """o [B, T, H, L] and block_indices [B, H, T, S] in fp64."""
    literal = mode == "literal"
    B, T, H, A = q.shape
    L = v.shape[3]
    C = math.ceil(T / size)
    S = min(block_count, C)
    scale = float(A)
    compressed = np.zeros((B, T, H, L))
    lists = np.zeros((B, H, T, S), dtype=np.int64)
    for b in range(B):
        for h in range(H):
            keys, values = [[0.0] * A for _ in range(C)], [[0.0] * L for _ in range(C)]
            for j in range(T):
                for a in range(A):
                    keys[j // size][a] += float(k[b, j, h, a]) / size
                for x in range(L):
                    values[j // size][x] += float(v[b, j, h, x]) / size
            for t in range(T):
                ranked = []
                for c in range(C):
                    visible = c * size + size - 1 <= t or (literal and t < size - 1)
                    logit = 0.0
                    for a in range(A):
                        logit += float(q[b, t, h, a]) * keys[c][a]
                    score = silu(scale * logit) / scale if visible else 0.0
                    for x in range(L):
                        compressed[b, t, h, x] += score * values[c][x] * float(g_cmp[b, t, h])
                    if not visible:
                        score = 0.0 if literal else -math.inf
                    if c == t // size:
                        score = 1.0 if literal else math.inf
                    ranked.append((-score + 0.0, c))
                ranked.sort()
                for s in range(S):
                    negated, c = ranked[s]
                    none = c > t // size or negated == math.inf
                    lists[b, h, t, s] = -1 if none else c
        if literal and H > 1:
            for h in range(1, H, 2):
                lists[b, h] = lists[b, h - 1]
    if mode == "interleaved":
        for t in range(1, T, 2):
            lists[:, :, t] = lists[:, :, t - 1]
    selected = np.zeros((B, T, H, L))
    for b in range(B):
        flat = lists[b].reshape(H * T, S)
        for t in range(T):
            for h in range(H):
                row = flat[t * H + h] if literal else lists[b, h, t]
                for c in row:
                    if c < 0:
                        continue
                    for j in range(c * size, min(T, (c + 1) * size)):
                        if j > t:
                            continue
                        logit = 0.0
                        for a in range(A):
                            logit += float(q[b, t, h, a]) * float(k[b, j, h, a])
                        weight = silu(logit) / scale
                        for x in range(L):
                            selected[b, t, h, x] += weight * float(v[b, j, h, x])
    return normalised(compressed, u) + normalised(selected, u), lists


def normalised(x: Array, u: Array) -> Array:
    """LayerNorm of each token over all heads, gated by u."""
    out = np.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            values = x[b, t].ravel()
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / len(values)
            out[b, t] = (x[b, t] - mean) / math.sqrt(variance + 1e-6) * u[b, t]
    return out
