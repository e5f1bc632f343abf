"""The implementations besides PyTorch's: right, causal, and indifferent to padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime
from kernel_specs.hstu.block_sparse import reference
from kernel_specs.hstu.hstu_bsa import reference as hstu_bsa
from runtime import block_sparse_attention, hstu_attention_with_bsa
from tools.comparison import compare

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]
A, L, SIZE = 16, 32, 16  # a built configuration


def inputs(B: int, T: int, H: int, seed: int = 42) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, T, H, A, generator=g) for _ in range(2))
    v, u = (torch.randn(B, T, H, L, generator=g) for _ in range(2))
    return q, k, v, u, torch.randn(B, T, H, generator=g)


def triton_attention(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pytest.importorskip("triton")
    from kernel_specs.hstu.block_sparse import triton_kernels

    device = "cpu" if triton_kernels.INTERPRETED else "cuda"
    o, lists = triton_kernels.block_sparse_attention(
        *(tensor.to(device) for tensor in tensors), **options, dot="ieee"
    )
    return o.cpu(), lists.cpu()


IMPLEMENTATIONS = pytest.mark.parametrize(
    "attention", [block_sparse_attention, triton_attention], ids=["cpu", "triton"]
)
lengths = st.integers(1, 150)
heads = st.sampled_from([1, 2, 3, 8])
seeds = st.integers(0, 2**31)


@settings(max_examples=settings.default.max_examples // 2)
@given(lengths, heads, seeds, st.sampled_from(["fixed", "literal", "interleaved"]))
def test_the_cpu_kernel_equals_the_oracle(T: int, H: int, seed: int, mode: str) -> None:
    if mode == "literal" and H == 3:
        H = 4
    tensors = inputs(2, T, H, seed)
    o, lists = block_sparse_attention(*tensors, block_size=SIZE, mode=mode)
    stages = reference.trace(
        *reference.to_double(*tensors), block_size=SIZE, mode=mode, block_indices=lists
    )
    # the tool's tolerance; fp32 errs by some 2e-5 if LayerNorm divides by a small deviation
    found = compare(o, stages.o, name="o", dims=("b", "t", "h", "d"))
    assert found.passed, str(found.worst)


@IMPLEMENTATIONS
def test_changing_the_future_changes_nothing_before_it(attention: Attention) -> None:
    T = 90
    past = inputs(1, T, 2)
    before = attention(*past, block_size=SIZE)
    for cut in (1, 15, 16, 17, 48, 89):
        future = [torch.cat([x[:, :cut], 3 * torch.randn_like(x[:, cut:])], 1) for x in past]
        after = attention(*future, block_size=SIZE)
        assert torch.equal(before[0][:, :cut], after[0][:, :cut]), cut
        assert torch.equal(before[1][:, :, :cut], after[1][:, :, :cut]), cut


@IMPLEMENTATIONS
def test_padding_changes_no_bit(attention: Attention) -> None:
    tensors = inputs(2, 70, 2)
    o, lists = attention(*tensors, block_size=SIZE)
    for extra in (1, 10, 58):
        padded = [
            torch.nn.functional.pad(x, (0,) * (2 * x.dim() - 4) + (0, extra)) for x in tensors
        ]
        o_padded, lists_padded = attention(*padded, block_size=SIZE)
        assert torch.equal(o_padded[:, :70], o)
        S = lists.shape[-1]
        assert torch.equal(lists_padded[:, :, :70, :S], lists)


@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=5), heads, st.integers(0, 60), seeds)
def test_jagged_sequences_give_the_same_bits_whatever_n(
    sizes: list[int], H: int, extra: int, seed: int
) -> None:
    if sum(sizes) == 0:
        sizes = [*sizes, 1]
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    N, n = int(offsets[-1]), max(sizes)
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(N, H * A, generator=g) for _ in range(2))
    v, u = (torch.randn(N, H * L, generator=g) for _ in range(2))
    gate = hstu_bsa.GateMLP(A).requires_grad_(False)
    call = (H, A, L, q, k, v, u, offsets)
    o, padded_q, padded_k = hstu_attention_with_bsa(*call, torch.ones(n, n), gate, block_size=SIZE)
    wider = n + extra
    again, _, _ = hstu_attention_with_bsa(*call, torch.ones(wider, wider), gate, block_size=SIZE)
    assert torch.equal(o, again)
    alone = [
        hstu_attention_with_bsa(
            H, A, L, *(x[start:stop] for x in (q, k, v, u)), torch.tensor([0, stop - start]),
            torch.ones(n, n), lambda x, s=start, e=stop: tuple(
                t[s:e] for t in gate(q.view(N, H, A))
            ), block_size=SIZE,
        )[0]
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        if stop > start
    ]  # fmt: skip
    assert torch.equal(o, torch.cat(alone))  # nor does one sequence touch another
    expected, expected_q, expected_k = hstu_bsa.hstu_attention_with_bsa(
        *call, torch.ones(n, n), gate, block_size=SIZE
    )
    assert torch.equal(padded_q, expected_q)
    assert torch.equal(padded_k, expected_k)
    assert compare(o, expected, name="o").passed


def test_the_literal_mode_pads_and_depends_on_n() -> None:
    H, N = 2, 70
    g = torch.Generator().manual_seed(3)
    q, k = (torch.randn(N, H * A, generator=g) for _ in range(2))
    v, u = (torch.randn(N, H * L, generator=g) for _ in range(2))
    call = (H, A, L, q, k, v, u, torch.tensor([0, 20, 70]))
    gate = hstu_bsa.GateMLP(A).requires_grad_(False)
    options = {"block_size": SIZE, "mode": "literal"}
    o, _, _ = hstu_attention_with_bsa(*call, torch.ones(80, 80), gate, **options)
    expected, _, _ = hstu_bsa.hstu_attention_with_bsa(*call, torch.ones(80, 80), gate, **options)
    assert compare(o, expected, name="o").passed
    other, _, _ = hstu_attention_with_bsa(*call, torch.ones(96, 96), gate, **options)
    assert not torch.allclose(o, other)


def test_interleaved_positions_share_a_list_and_pad_nothing() -> None:
    H, N = 2, 121
    tensors = inputs(1, N, H)
    _, lists = block_sparse_attention(*tensors, block_size=SIZE, mode="interleaved")
    _, own = block_sparse_attention(*tensors, block_size=SIZE, mode="fixed")
    assert torch.equal(lists[:, :, ::2], own[:, :, ::2])
    assert torch.equal(lists[:, :, 1::2], lists[:, :, :-1:2])
    assert not torch.equal(lists, own)
    q, k, v, u = (x.flatten(0, 1).flatten(1) for x in tensors[:4])
    call = (H, A, L, q, k, v, u, torch.tensor([0, 20, 121]))
    gate = hstu_bsa.GateMLP(A).requires_grad_(False)
    options = {"block_size": SIZE, "mode": "interleaved"}
    o, _, _ = hstu_attention_with_bsa(*call, torch.ones(101, 101), gate, **options)
    expected, _, _ = hstu_bsa.hstu_attention_with_bsa(*call, torch.ones(101, 101), gate, **options)
    assert compare(o, expected, name="o").passed
    wider, _, _ = hstu_attention_with_bsa(*call, torch.ones(128, 128), gate, **options)
    assert torch.equal(o, wider)


@IMPLEMENTATIONS
def test_equal_blocks_tie_towards_the_lower_index(attention: Attention) -> None:
    q, k, v, u, gate = inputs(1, 160, 1)
    k[:] = k[:, :SIZE].repeat(1, 10, 1, 1)
    _, lists = attention(q, k, v, u, gate, block_size=SIZE)
    assert lists[0, 0, 159].tolist() == [9, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"block_count": -1}, "block_count is -1"),
        ({"mode": "exact"}, "expected one of fixed, literal"),
        ({"g_cmp": torch.zeros(1, 8, 3)}, "g_cmp: got shape .* with H = 2 as in q"),
        (
            {"q": torch.zeros(1, 8, 2, A, dtype=torch.float64)},
            "q: got dtype torch.float64, expected",
        ),
        (
            {"u": torch.zeros(1, 8, 2, L, dtype=torch.bfloat16)},
            "u: got dtype torch.bfloat16, expected",
        ),
    ],
)
def test_bad_input_is_an_invalid_argument(change: dict[str, Any], reason: str) -> None:
    q, k, v, u, g_cmp = inputs(1, 8, 2)
    arguments = {"q": q, "k": k, "v": v, "u": u, "g_cmp": g_cmp, "block_size": SIZE, **change}
    with pytest.raises(runtime.InvalidArgument, match=reason):
        block_sparse_attention(**arguments)


@pytest.mark.parametrize("name", ["block_count", "mode"])
def test_a_tensor_without_memory_for_an_option_is_an_invalid_argument(name: str) -> None:
    freed = torch.zeros(4)
    freed.untyped_storage().resize_(0)  # its repr() may crash
    with pytest.raises(
        runtime.InvalidArgument, match=rf"{name} is a Tensor of shape \[4\]: expected"
    ):
        block_sparse_attention(*inputs(1, 8, 2), block_size=SIZE, **{name: freed})


def test_bad_lengths_and_heads_are_invalid_arguments() -> None:
    with pytest.raises(runtime.InvalidArgument, match="T is 0"):
        block_sparse_attention(*inputs(1, 0, 2), block_size=SIZE)
    with pytest.raises(runtime.InvalidArgument, match="H must be even"):
        block_sparse_attention(*inputs(1, 8, 3), block_size=SIZE, mode="literal")
    q, v = torch.zeros(10, 2 * A), torch.zeros(10, 2 * L)
    with pytest.raises(runtime.InvalidArgument, match="sequence 1 has length 6, past n = 5"):
        hstu_attention_with_bsa(
            2, A, L, q, q, v, v, torch.tensor([0, 4, 10]), torch.ones(5, 5), hstu_bsa.GateMLP(A)
        )
    with pytest.raises(runtime.InvalidArgument, match="expected int32 or int64"):
        hstu_attention_with_bsa(
            2, A, L, q, q, v, v, torch.tensor([0.0, 10.0]), torch.ones(10, 10), hstu_bsa.GateMLP(A)
        )


def test_what_is_not_built_is_refused_with_reasons() -> None:
    tensors = inputs(1, 8, 2)
    with pytest.raises(runtime.KernelNotFound, match="block_size is 16, not 24") as caught:
        block_sparse_attention(*tensors, block_size=24)
    assert "kernelmint regenerate" in str(caught.value)
    with pytest.raises(runtime.KernelNotFound, match="it has no parameter dot"):
        block_sparse_attention(*tensors, block_size=SIZE, dot="bf16")


@pytest.mark.gpu
@pytest.mark.parametrize("H", [1, 2, 17, 64, 128])
def test_the_gpu_kernel_normalises_over_any_number_of_heads(H: int) -> None:
    tensors = [x.cuda() for x in inputs(2, 40, H)]
    o, lists = block_sparse_attention(*tensors, block_size=SIZE)
    stages = reference.trace(*reference.to_double(*tensors), block_size=SIZE, block_indices=lists)
    assert compare(o, stages.o, name="o").passed
    q, k, v, u, gate = tensors
    offsets = torch.tensor([0, 13, 13, 80], device="cuda")
    flat = [x.reshape(80, -1) for x in (q, k, v, u)]
    jagged_o, _, _ = hstu_attention_with_bsa(
        H, A, L, *flat, offsets, torch.ones(67, 67), lambda _: (gate.reshape(80, H),) * 3,
        block_size=SIZE,
    )  # fmt: skip
    rows = slice(13, 80)
    alone = [x.reshape(80, *x.shape[2:])[rows][None].contiguous() for x in tensors]
    expected, _ = block_sparse_attention(*alone, block_size=SIZE)
    assert torch.equal(jagged_o[rows].reshape_as(expected[0]), expected[0])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fixed", "literal", "interleaved"])
@pytest.mark.parametrize("T", [1, 17, 250, 1024])
def test_the_gpu_kernel_equals_the_oracle(T: int, mode: str) -> None:
    tensors = [x.cuda() for x in inputs(2, T, 4)]
    o, lists = block_sparse_attention(*tensors, block_size=SIZE, mode=mode)
    stages = reference.trace(
        *reference.to_double(*tensors), block_size=SIZE, mode=mode, block_indices=lists
    )
    found = compare(o, stages.o, name="o", dims=("b", "t", "h", "d"))
    assert found.passed, str(found.worst)
    again, _ = block_sparse_attention(*tensors, block_size=SIZE, mode=mode)
    assert torch.equal(o, again)  # no order of execution shows


def wide_inputs(B: int, T: int, H: int, seed: int = 42) -> list[torch.Tensor]:
    """Of the head sizes that both schedules are built for, on the GPU."""
    g = torch.Generator("cuda").manual_seed(seed)
    sizes = (32, 32, 64, 64)
    rows = [torch.randn(B, T, H, size, generator=g, device="cuda") for size in sizes]
    return [*rows, torch.randn(B, T, H, generator=g, device="cuda")]


@pytest.mark.gpu
@pytest.mark.parametrize("H", [1, 3, 8, 24])
@pytest.mark.parametrize("T", [1, 31, 32, 33, 127, 128, 129, 250, 1024, 3001])
def test_both_schedules_give_the_same_bits(T: int, H: int) -> None:
    tensors = wide_inputs(2, T, H)
    by_blocks = block_sparse_attention(*tensors, dot="bf16", schedule="blocks")
    by_tiles = block_sparse_attention(*tensors, dot="bf16", schedule="tiles")
    assert torch.equal(by_blocks[1], by_tiles[1])
    assert torch.equal(by_blocks[0], by_tiles[0])
    if T * H < 1000:  # LayerNorm may divide by little, of which bf16 leaves little
        return
    stages = reference.trace(*reference.to_double(*tensors), block_indices=by_tiles[1])
    found = compare(by_tiles[0], stages.o, name="o")
    assert found.rms_ratio < 5e-3, found.rms_ratio  # bf16 products err by some 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dot", ["tf32x3", "bf16"])
def test_neither_future_nor_padding_changes_a_bit_on_the_gpu(dot: str) -> None:
    tensors = wide_inputs(2, 1000, 4)
    o, lists = block_sparse_attention(*tensors, dot=dot)
    for T in (1001, 1024, 3000):  # of which the last is long enough for the other schedule
        longer = [
            torch.cat([x, 3 * torch.randn(2, T - 1000, *x.shape[2:], device="cuda")], 1)
            for x in tensors
        ]
        o_longer, lists_longer = block_sparse_attention(*longer, dot=dot)
        assert torch.equal(o_longer[:, :1000], o)
        assert torch.equal(lists_longer[:, :, :1000], lists)


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["blocks", "tiles"])
def test_jagged_sequences_equal_padded_ones_bit_for_bit(schedule: str) -> None:
    H, lengths = 4, [1, 31, 0, 32, 33, 700, 128, 129]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda")
    q, k, v, u, gate = (x[0] for x in wide_inputs(1, sum(lengths), H))
    o, _, _ = hstu_attention_with_bsa(
        H, 32, 64, *(x.flatten(1) for x in (q, k, v, u)), offsets, torch.ones(900, 900),
        lambda _: (gate, gate, gate), dot="bf16", schedule=schedule,
    )  # fmt: skip
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if stop == start:
            continue
        alone = [x[None, start:stop] for x in (q, k, v, u, gate)]
        expected, _ = block_sparse_attention(*alone, dot="bf16", schedule="blocks")
        assert torch.equal(o[start:stop].view_as(expected[0]), expected[0]), (start, stop)


def test_a_cpu_call_allocates_no_scratch_of_a_gpu() -> None:
    T, H = 2048, 8
    tensors = inputs(1, T, H)
    kernel = runtime.kernel(f"block_sparse.cpu.a{A}-l{L}-bs{SIZE}-s4-fixed")
    kernel(*tensors)
    with torch.profiler.profile(profile_memory=True) as profile:
        o, lists = kernel(*tensors)
    changes = [event.self_cpu_memory_usage for event in profile.events()]
    allocated = sum(change for change in changes if change > 0)
    means = 4 * H * (T // SIZE) * (A + L)
    assert allocated == o.nbytes + lists.nbytes + means + o.nbytes  # the compressed branch is as o
    assert sum(changes) == o.nbytes + lists.nbytes  # scratch memory is given back


def test_a_schedule_is_refused_where_there_is_none() -> None:
    with pytest.raises(runtime.KernelNotFound, match="it has no parameter schedule"):
        block_sparse_attention(*inputs(1, 40, 2), block_size=SIZE, schedule="tiles")
