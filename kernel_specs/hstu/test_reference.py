"""The PyTorch reference: against a scalar loop, and what `fixed` mode promises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_specs.hstu import semantics
from kernel_specs.hstu.block_sparse import reference as block_sparse
from kernel_specs.hstu.hstu_bsa import reference as hstu_bsa

block_sparse_attention, trace = block_sparse.block_sparse_attention, block_sparse.trace
to_double, hstu_attention_with_bsa = block_sparse.to_double, hstu_bsa.hstu_attention_with_bsa
Array = npt.NDArray[Any]
FIXED, LITERAL, Semantics = semantics.FIXED, semantics.LITERAL, semantics.Semantics


def inputs(B: int, T: int, H: int, A: int, L: int, seed: int = 42) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, T, H, A, generator=g) for _ in range(2))
    v, u = (torch.randn(B, T, H, L, generator=g) for _ in range(2))
    return q, k, v, u, torch.randn(B, T, H, generator=g)


def silu(x: float) -> float:
    """x / (1 + e^-x), in whichever form does not overflow."""
    if x >= 0:
        return x / (1.0 + math.exp(-x))
    return x * math.exp(x) / (1.0 + math.exp(x)) if x > -700 else -0.0


def scalar_attention(
    q: Array, k: Array, v: Array, u: Array, g_cmp: Array, block_count: int, size: int, mode: str
) -> tuple[Array, Array]:
    """o [B, T, H, L] and block_indices [B, H, T, S] in fp64, one number at a time: written apart
    from the reference."""
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


@pytest.mark.parametrize("mode", ["fixed", "literal", "interleaved"])
@pytest.mark.parametrize(
    ("B", "T", "H", "A", "L", "size", "count"),
    [
        (1, 32, 2, 4, 3, 4, 4),
        (2, 21, 2, 4, 5, 4, 3),
        (1, 19, 1, 8, 2, 16, 4),
        (1, 7, 4, 2, 2, 8, 2),
    ],
)
def test_equals_a_scalar_loop(
    B: int, T: int, H: int, A: int, L: int, size: int, count: int, mode: str
) -> None:
    tensors = to_double(*inputs(B, T, H, A, L))
    o, lists = block_sparse_attention(*tensors, block_count=count, block_size=size, mode=mode)
    expected_o, expected_lists = scalar_attention(
        *(tensor.numpy() for tensor in tensors), count, size, mode
    )
    assert torch.equal(lists, torch.from_numpy(expected_lists))
    # fp64: sums of some hundred terms of order one, in another order
    torch.testing.assert_close(o, torch.from_numpy(expected_o), rtol=1e-10, atol=1e-11)


def test_ties_go_to_the_lower_index_and_zeros_of_either_sign_tie() -> None:
    q, k, v, u, g = inputs(1, 40, 1, 4, 4)
    k[:] = k[:, :4].repeat(1, 10, 1, 1)  # ten equal blocks: all their scores tie
    _, lists = block_sparse_attention(q, k, v, u, g, block_count=3, block_size=4)
    assert lists[0, 0, 39].tolist() == [9, 0, 1]
    q[:] = 30.0
    k[:, 0:4] = -30.0  # SiLU underflows to -0.0
    k[:, 4:8] = 0.0  # +0.0
    k[:, 8:] = -30.0
    _, lists = block_sparse_attention(q, k, v, u, g, block_count=3, block_size=4)
    assert lists[0, 0, 39].tolist() == [9, 0, 1]


shapes = st.tuples(
    st.integers(1, 2),
    st.integers(2, 40),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**31),
)


@settings(max_examples=settings.default.max_examples // 2)
@given(shapes, st.data())
def test_fixed_is_causal(shape: tuple[int, ...], data: st.DataObject) -> None:
    B, T, H, A, L, size, count, seed = shape
    past = inputs(B, T, H, A, L, seed)
    cut = data.draw(st.integers(1, T - 1))
    future = [torch.cat([x[:, :cut], 3 * torch.randn_like(x[:, cut:])], 1) for x in past]
    before = block_sparse_attention(*past, block_count=count, block_size=size)
    after = block_sparse_attention(*future, block_count=count, block_size=size)
    assert torch.equal(before[1][:, :, :cut], after[1][:, :, :cut])
    torch.testing.assert_close(before[0][:, :cut], after[0][:, :cut], rtol=0, atol=0)


def test_literal_is_not_causal() -> None:
    past = inputs(1, 64, 2, 4, 4)
    future = [torch.cat([x[:, :32], torch.randn_like(x[:, 32:])], 1) for x in past]
    before, _ = block_sparse_attention(*past, block_size=8, mode="literal")
    after, _ = block_sparse_attention(*future, block_size=8, mode="literal")
    assert not torch.allclose(before[:, :32], after[:, :32])


@settings(max_examples=settings.default.max_examples // 2)
@given(shapes, st.integers(1, 30))
def test_fixed_does_not_depend_on_padding(shape: tuple[int, ...], extra: int) -> None:
    B, T, H, A, L, size, count, seed = shape
    tensors = to_double(*inputs(B, T, H, A, L, seed))
    offsets = torch.tensor([0, T // 2, T])
    flat = [x[0].flatten(1) for x in tensors[:4]]
    gate = hstu_bsa.GateMLP(A).double()
    results = [
        hstu_attention_with_bsa(
            H, A, L, *flat, offsets, torch.ones(n, n), gate, block_count=count, block_size=size
        )[0]
        for n in (T, T + extra)
    ]
    # fp64: PyTorch's own products may add in another order if the extents differ
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_each_flag_changes_the_result() -> None:
    tensors = inputs(1, 64, 2, 4, 4)
    results = {
        name: block_sparse_attention(*tensors, block_size=8, mode=flags)[0]
        for name, flags in {
            "fixed": FIXED,
            "list_layout": Semantics("reinterpret", "none", False, -float("inf"), float("inf")),
            "heads": Semantics("transpose", "heads", False, -float("inf"), float("inf")),
            "time": Semantics("transpose", "time", False, -float("inf"), float("inf")),
            "open": Semantics("transpose", "none", True, -float("inf"), float("inf")),
            "masked": Semantics("transpose", "none", False, 0.0, float("inf")),
            "literal": LITERAL,
        }.items()
    }
    names = list(results)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not torch.allclose(results[one], results[other]), (one, other)


def test_teacher_forcing_uses_the_given_selection() -> None:
    tensors = inputs(1, 64, 2, 4, 4)
    own = trace(*tensors, block_size=8)
    forced = torch.full_like(own.block_indices, -1)
    stages = trace(*tensors, block_size=8, block_indices=forced)
    assert torch.equal(stages.o_cmp, own.o_cmp)
    assert stages.o_slc_raw.abs().max() == 0


def test_padding_is_exact_and_the_gate_is_the_stated_network() -> None:
    N, H, A, L = 11, 2, 4, 3
    g = torch.Generator().manual_seed(1)
    q, k = (torch.randn(N, H * A, generator=g) for _ in range(2))
    v, u = (torch.randn(N, H * L, generator=g) for _ in range(2))
    gate = hstu_bsa.GateMLP(A)
    o, padded_q, padded_k = hstu_attention_with_bsa(
        H, A, L, q, k, v, u, torch.tensor([0, 3, 11]), torch.ones(8, 8), gate, block_size=4
    )
    assert o.shape == (N, H * L)
    assert padded_q.shape == padded_k.shape == (2, 8, H, A)
    assert torch.equal(padded_q[0, :3].flatten(1), q[:3])
    assert torch.equal(padded_k[1].flatten(1), k[3:])
    assert padded_q[0, 3:].abs().max() == 0
    first, second = gate.layers[0], gate.layers[2]
    hidden = torch.relu(q[:, :A] @ first.weight.T + first.bias)
    expected = torch.sigmoid(hidden @ second.weight.T + second.bias)
    torch.testing.assert_close(torch.stack(gate(q[:, :A]), -1), expected)
    assert first.weight.shape == (64, A)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"block_count": 0}, "block_count is 0"),
        ({"mode": "exact"}, "expected one of fixed, literal, interleaved"),
        ({"q": torch.zeros(1, 8, 2, 3)}, "k has shape"),
        ({"v": torch.zeros(1, 8, 2, 5)}, "u has shape"),
        ({"u": torch.zeros(1, 8, 2, 4, dtype=torch.float16)}, "u is float16"),
        ({"k": torch.zeros(1, 8, 2, 4, dtype=torch.float64)}, "all tensors must agree"),
        ({"g_cmp": torch.zeros(1, 8)}, r"expected \[B, T, H\]"),
        ({"v": torch.zeros(1, 9, 2, 4)}, "first three extents"),
    ],
)
def test_bad_input_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    q, k, v, u, g_cmp = inputs(1, 8, 2, 4, 4)
    arguments: dict[str, object] = {"q": q, "k": k, "v": v, "u": u, "g_cmp": g_cmp, **change}
    with pytest.raises(ValueError, match=reason):
        block_sparse_attention(**arguments)  # type: ignore[arg-type]  # bad input is the point


def test_odd_heads_empty_sequences_and_odd_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="H must be even"):
        block_sparse_attention(*inputs(1, 8, 3, 4, 4), mode="literal")
    with pytest.raises(ValueError, match="T is 0"):
        block_sparse_attention(*inputs(1, 0, 2, 4, 4))
    by_time = Semantics("transpose", "time", False, -float("inf"), float("inf"))
    with pytest.raises(ValueError, match="block_size must be even"):
        block_sparse_attention(*inputs(1, 8, 2, 4, 4), block_size=3, mode=by_time)


@pytest.mark.parametrize(
    ("offsets", "n", "reason"),
    [
        ([0, 4, 10], 5, "sequence 1 has length 6, past n = 5"),
        ([0, 6, 4, 10], 10, "falls from 6 to 4"),
        ([0, 4, 9], 10, "runs from 0 to 9"),
        ([0, 4, 10], 0, "padded length n, is 0"),
        ([10], 10, r"expected \[B \+ 1\]"),
    ],
)
def test_bad_offsets_are_refused(offsets: list[int], n: int, reason: str) -> None:
    x = torch.randn(10, 8)
    with pytest.raises(ValueError, match=reason):
        hstu_attention_with_bsa(
            2,
            4,
            4,
            x,
            x,
            x,
            x,
            torch.tensor(offsets),
            torch.ones(n, n),
            hstu_bsa.GateMLP(4),
            block_size=4,
        )
