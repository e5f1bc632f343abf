"""flash_forward on a GPU, sm80 and sm90a: every built kernel against the fp64 oracle.

The variable KERNELS selects among them (tools/selection.py).

A kernel's error may be 1.5 times that of PyTorch's own flash attention, on the same inputs against
the same oracle: in the root of the mean square, and in the greatest element. If there are few
elements, or rows, whose elements share the roundings of their probabilities, PyTorch's error may
happen to be better than anyone has to be; there, 1.5 times two roundings to the dtype count: that
of the probabilities, which multiply the values, and that of the result.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import runtime
from tools import sanity_check
from tools.families import oracle
from tools.selection import select

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
KERNELS = {i.key: i for i in select("flash_forward").kernels if i.target != "cpu" and i.available}
SM90A = [key for key, i in KERNELS.items() if i.target == "sm90a"]
SM90A_BF16 = [key for key in SM90A if KERNELS[key].parameters["dtype"] == "bf16"]
BATCH, HEADS = 2, 4
FEW_ROWS = 64
LENGTHS = (1, 7, 64, 100, 128, 1000, 4096)
SCALES = (-0.5, 0.0, 1e-3, 3.0)

attention = oracle("flash_forward")


class Case(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    allowed_norm: float
    allowed_greatest: float


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """PyTorch's FlashAttention-2, which aligns its causal mask bottom-right."""
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], 2) for t in (k, v))
    lengths = (q.shape[1], k.shape[1])
    forward = torch.ops.aten._flash_attention_forward
    return forward(q, k, v, None, None, *lengths, 0.0, causal, False, scale=scale)[0]


def make_case(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Case:
    o, lse = attention(q, k, v, causal=causal, scale=scale, return_lse=True)
    seen = ~lse.isneginf().transpose(1, 2)
    theirs = (flash(q, k, v, causal, scale).double() - o)[seen]
    eps = torch.finfo(q.dtype).eps
    if theirs.isfinite().all():
        norm = theirs.norm().item()
        greatest = theirs.abs().max().item() if theirs.numel() else 0.0
    else:  # PyTorch's kernel is for positive scales: two roundings of all elements
        assert scale is not None
        assert scale <= 0
        norm, greatest = eps * o.norm().item(), 0.0
    if o[..., 0].numel() <= FEW_ROWS:
        magnitude = attention(q, k, v.abs(), causal=causal, scale=scale)
        norm = max(norm, eps / 2 * (o.norm() + magnitude.norm()).item())
    two_roundings = eps * v.abs().max().item()
    return Case(q, k, v, o, lse, 1.5 * norm, 1.5 * max(greatest, two_roundings))


def random_case(
    dtype: str, d_head: int, causal: bool, seq_q: int, seq_k: int, heads: int, kv_heads: int
) -> Case:
    q, k, v = (
        torch.randn(BATCH, length, count, d_head, device="cuda").to(DTYPES[dtype])
        for length, count in ((seq_q, heads), (seq_k, kv_heads), (seq_k, kv_heads))
    )
    return make_case(q, k, v, causal)


grid_case = cache(random_case)


def call(
    key: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The kernel's output and lse, in memory that held NaN before."""
    o = torch.full_like(q, float("nan"))
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"), device=q.device)
    runtime.kernel(key)(q, k, v, scale=scale, return_lse=True, out=(o, lse))
    return o, lse


def assert_right(case: Case, o: Tensor, lse: Tensor) -> None:
    error = o.double() - case.o
    assert error.norm().item() <= case.allowed_norm  # NaN fails
    assert error.abs().max().item() <= case.allowed_greatest
    unseen = case.lse.isneginf()
    assert not o.transpose(1, 2)[unseen].count_nonzero()
    assert_lse_right(case.lse, lse, o.shape[-1])


def assert_lse_right(want: Tensor, lse: Tensor, d_head: int) -> None:
    unseen = want.isneginf()
    assert torch.equal(lse.isneginf(), unseen)
    if not unseen.all():
        # Scores are sums of d_head products in fp32, about as large as the lse: twice their
        # rounding.
        largest = max(1.0, want[~unseen].abs().max().item())
        error = (lse.double() - want)[~unseen].abs().max().item()
        assert error <= 2 * d_head**0.5 * 2**-24 * largest + 2**-20


@pytest.mark.parametrize("key", KERNELS)
def test_matches_the_oracle(key: str) -> None:
    """Sq and Sk of 1 to 4096, one or four query heads to a key head, both layouts."""
    p = KERNELS[key].parameters
    for seq_q, seq_k, kv_heads in itertools.product(LENGTHS, LENGTHS, (HEADS, 1)):
        case = grid_case(p["dtype"], p["d_head"], p["causal"], seq_q, seq_k, HEADS, kv_heads)
        assert_right_in_both_layouts(key, case)


def assert_right_in_both_layouts(key: str, case: Case) -> None:
    o, lse = call(key, case.q, case.k, case.v)
    assert_right(case, o, lse)
    bhsd = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (case.q, case.k, case.v)]
    o_bhsd, lse_bhsd = call(key, *bhsd)
    assert torch.equal(o, o_bhsd)
    assert torch.equal(lse, lse_bhsd)


@pytest.mark.parametrize("group", [2, 3, 4, 7, 8, 16, 64, 96])
@pytest.mark.parametrize("key", KERNELS)
def test_few_queries_of_many_heads(key: str, group: int) -> None:
    """Heads that share keys, which may be rows of one tile; before the end of the keys, or past it.

    A row is computed alone: every head's results are, bit for bit, those with keys of its own, of
    which there are too few for thread blocks to share them.
    """
    p = KERNELS[key].parameters
    for seq_q in (1, 2, 5, 17, 63, 65, 200):
        for seq_k in (seq_q + 83, 40):
            case = random_case(p["dtype"], p["d_head"], p["causal"], seq_q, seq_k, 2 * group, 2)
            assert_right_in_both_layouts(key, case)
            k, v = (t.repeat_interleave(group, 2) for t in (case.k, case.v))
            for shared, own in zip(
                call(key, case.q, case.k, case.v), call(key, case.q, k, v), strict=True
            ):
                assert torch.equal(shared, own)


@pytest.mark.parametrize("key", SM90A)
def test_a_query_of_heads_that_share_keys_is_one_tile(key: str, tmp_path: Path) -> None:
    """64 heads over 8 take 8 thread blocks, as the profiler counts them; a twin packs none."""
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(1, length, heads, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
        for length, heads in ((1, 64), (16, 8), (16, 8))
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runtime.kernel(key)(q, k, v)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    grids = [event["args"]["grid"] for event in events if event.get("cat") == "kernel"]
    assert grids == [[64 if p["trace"] else 8, 1, 1]]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("key", KERNELS)
def test_matches_the_oracle_at_any_scale(key: str, scale: float) -> None:
    """Negative, zero, small and large factors on the scores."""
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(2, length, 2, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
        for length in (130, 200, 200)
    )
    case = make_case(q, k, v, p["causal"], scale)
    assert_right(case, *call(key, q, k, v, scale))


@pytest.mark.parametrize("key", KERNELS)
def test_matches_the_oracle_when_scores_grow(key: str) -> None:
    """Every block of keys raises the running maximum, by more than the kernel's slack or less."""
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(1, 1000, 2, p["d_head"], device="cuda").to(DTYPES[p["dtype"]]) for _ in range(3)
    )
    for step in (0.5, 2.0):  # the blocks are walked from the last to the first
        k[0] *= torch.linspace(step, 0, 1000, device="cuda")[:, None, None].to(k.dtype)
        case = make_case(q, k, v, p["causal"], 1.0)
        assert_right(case, *call(key, q, k, v, 1.0))


@pytest.mark.parametrize("key", KERNELS)
def test_counting_inputs_pass_the_sanity_check(key: str) -> None:
    """q counts up, k = -q, v = q: scores beyond 2^30."""
    (difference,) = sanity_check.check(KERNELS[key], counting=True, seed=0)
    assert difference.passed, difference.worst


# Log2 of the scores' size and of the step between scores, and the scale. In the first two a row's
# best scores differ by little in the exponent; in the last, where floats are 128 apart, the best
# ones are equal.
FAR = {"near 2^20": (23, 2, 0.125), "near 2^26": (30, 8, 2.0**-6), "near 2^31": (30, 8, 1.5)}


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("key", KERNELS)
def test_far_scores_lose_no_precision(key: str, far: str) -> None:
    """Scores of either sign and any size to 2^31, all exact in fp32; most rows near zero at first.

    A row's scores are those of its sign and its steps: sign * 2^size * offset + 2^step * integer,
    with an offset that changes every 90 keys. Every third row has no offset, and stays near.
    """
    p = KERNELS[key].parameters
    size, step, scale = FAR[far]
    length = 700
    dtype = DTYPES[p["dtype"]]
    generator = torch.Generator("cuda").manual_seed(0)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, device="cuda").double()

    q, k = (
        torch.zeros(1, length, 2, p["d_head"], device="cuda", dtype=torch.float64) for _ in "qk"
    )
    q[..., 0] = integers(0, 1, 1, length, 2) * 2 - 1
    q[:, ::3, :, 0] = 0
    q[..., 0] *= 2.0 ** (size // 2)
    offsets = torch.tensor([1, -1, 0.5, 0, 1, -0.5, 0, 0], device="cuda", dtype=torch.float64)
    k[..., 0] = (2.0 ** (size - size // 2) * offsets.repeat_interleave(90)[:length])[:, None]
    q[..., 8:16] = 2.0 ** (step // 2) * integers(-1, 1, 1, length, 2, 8)
    k[..., 8:16] = 2.0 ** (step // 2) * integers(-2, 2, 1, length, 2, 8)
    v = torch.randn(1, length, 2, p["d_head"], generator=generator, device="cuda")
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)

    want, want_lse = attention(q, k, v, causal=p["causal"], scale=scale, return_lse=True)
    magnitude = attention(q, k, v.abs(), causal=p["causal"], scale=scale)
    assert want_lse.abs().max() > 2.0 ** (size - 4) * scale
    # Probabilities and the result are rounded once each; what is below the least normal number, to
    # multiples of the least number.
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps / 2 * v.abs().double().sum(1, keepdim=True)
    o, lse = call(key, q, k, v, scale)
    error = (o.double() - want).abs()
    assert (error <= info.eps * (want.abs() + magnitude) + subnormal).all()  # NaN fails
    assert ((lse.double() - want_lse).abs() <= 2.0**-22 * want_lse.abs() + 2.0**-18).all()


def equal_scores(q: Tensor, k: Tensor, v: Tensor) -> float:
    """Every key the same, and a third of the queries zero: weights are equal."""
    k[:] = k[:, :1]
    q[:, ::3] = 0
    return 1.0


def one_huge_score(q: Tensor, k: Tensor, v: Tensor) -> float:
    """A key's score exceeds all others by far, each row's at a place of its own; all are exact."""
    q.zero_()
    k.zero_()
    rows = torch.arange(k.shape[1], device=k.device)
    bits = (rows[:, None] >> torch.arange(10, device=k.device) & 1) * 2 - 1
    k[..., :10] = 64 * bits[:, None].to(k.dtype)
    q[..., :10] = 64 * bits[rows * 7 % len(rows)][:, None].to(q.dtype)
    return 1.0


def values_near_the_limit(q: Tensor, k: Tensor, v: Tensor) -> float:
    """Values of 0.9 to 0.99 times fp16's greatest, of either sign: no mean of them overflows."""
    v.copy_((torch.rand_like(v, dtype=torch.float32) * 0.09 + 0.9) * 65504 * v.sign())
    return 1.0


def queries_and_keys_near_the_limit(q: Tensor, k: Tensor, v: Tensor) -> float:
    """Scores of up to 1.4e10 and equal ones among them, exact in fp32, at a scale that fits."""
    for tensor in (q, k):
        tensor[..., :4] = tensor[..., :4].sign() * 60000
        tensor[..., 4:] = 0
    return 2.0**-32


EXTREMES = (
    equal_scores,
    one_huge_score,
    values_near_the_limit,
    queries_and_keys_near_the_limit,
)


@pytest.mark.parametrize("make_extreme", EXTREMES)
@pytest.mark.parametrize("key", KERNELS)
def test_extreme_inputs(key: str, make_extreme: Callable[[Tensor, Tensor, Tensor], float]) -> None:
    """With more queries than keys, so that under the mask there are rows that see nothing."""
    p = KERNELS[key].parameters
    dtype, causal = DTYPES[p["dtype"]], p["causal"]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, 700, 2, p["d_head"], generator=generator, device="cuda").to(dtype)
        for _ in "qkv"
    )
    scale = make_extreme(q, k, v)
    q = torch.cat([q[:, :100], q], 1)
    want, want_lse = attention(q, k, v, causal=causal, scale=scale, return_lse=True)
    magnitude = attention(q, k, v.abs(), causal=causal, scale=scale)
    o, lse = call(key, q, k, v, scale)
    # Probabilities and the result are rounded once each.
    error = (o.double() - want).abs()
    assert (error <= torch.finfo(dtype).eps * (want.abs() + magnitude)).all()  # NaN fails
    unseen = want_lse.isneginf()
    assert bool(unseen.any()) == causal
    assert not o.transpose(1, 2)[unseen].count_nonzero()
    assert_lse_right(want_lse, lse, p["d_head"])


@pytest.mark.parametrize("key", KERNELS)
def test_no_keys_give_zeros_and_minus_infinity(key: str) -> None:
    d_head, dtype = KERNELS[key].parameters["d_head"], DTYPES[KERNELS[key].parameters["dtype"]]
    q = torch.randn(2, 5, 4, d_head, device="cuda").to(dtype)
    k = torch.empty(2, 0, 2, d_head, device="cuda", dtype=dtype)
    o, lse = call(key, q, k, k)
    assert not o.count_nonzero()
    assert lse.isneginf().all()


@pytest.mark.parametrize("key", KERNELS)
def test_not_a_number_stays_in_its_row(key: str) -> None:
    """A NaN in one query makes that query's output and lse NaN, and no other's."""
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(1, 300, 2, p["d_head"], device="cuda").to(DTYPES[p["dtype"]]) for _ in range(3)
    )
    clean, clean_lse = call(key, q, k, v)
    q[0, 123, 1, 7] = float("nan")
    o, lse = call(key, q, k, v)
    assert o[0, 123, 1].isnan().all()
    assert lse[0, 1, 123].isnan()
    o[0, 123, 1], lse[0, 1, 123] = clean[0, 123, 1], clean_lse[0, 1, 123]
    assert torch.equal(o, clean)
    assert torch.equal(lse, clean_lse)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("key", [key for key, i in KERNELS.items() if i.parameters["causal"]])
def test_a_value_behind_the_causal_mask_reaches_no_row(key: str, value: float) -> None:
    """It reaches the rows that see it, in its column, as in the oracle; a key reaches all columns.

    One head or seven share keys; few rows, as many as keys, and more, so that some see nothing; and
    few tiles of many keys, which thread blocks share.
    """
    p = KERNELS[key].parameters
    for rows, length, group in ((300, 300, 1), (3, 300, 7), (700, 300, 7), (1000, 1000, 1),
                                (5, 5001, 7), (60, 9001, 1)):  # fmt: skip
        shift = length - rows
        q = torch.randn(1, rows, 2 * group, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
        k, v = (torch.randn(1, length, 2, p["d_head"], device="cuda").to(q.dtype) for _ in "kv")
        clean, clean_lse = call(key, q, k, v)
        case = make_case(q, k, v, p["causal"])
        hidden = k.clone()
        hidden[0, -1, 1, 3] = value
        o, lse = call(key, q, hidden, v)
        assert torch.equal(o[:, :-1], clean[:, :-1])
        assert torch.equal(lse[..., :-1], clean_lse[..., :-1])
        special = {max(length - 230, 0): 5, length - 2: 40, length - 1: p["d_head"] - 1}
        for i, column in special.items():
            v[0, i, 1, column] = value
        o, lse = call(key, q, k, v)
        assert torch.equal(o[:, :, :group], clean[:, :, :group])
        for i, column in special.items():
            first = max(0, i - shift)
            assert not o[0, first:, group:, column].isfinite().any()
            o[0, first:, group:, column] = clean[0, first:, group:, column]
        assert_right(case, o, lse)
        assert torch.equal(lse, clean_lse)


@pytest.mark.parametrize(("seq_q", "heads"), [(100, 4), (5, 14)])
@pytest.mark.parametrize("key", KERNELS)
def test_nothing_outside_the_tensors_is_used(key: str, seq_q: int, heads: int) -> None:
    """Slices of larger tensors that are NaN elsewhere, dimensions in any order, and stay so."""
    p = KERNELS[key].parameters

    def embedded(length: int, heads: int) -> Tensor:
        storage = torch.full(
            (heads + 1, length + 3, 3, p["d_head"] + 8),
            float("nan"),
            dtype=DTYPES[p["dtype"]],
            device="cuda",
        )
        view = storage.permute(2, 1, 0, 3)[1:, 1 : length + 1, :heads, 8:]
        return view.copy_(torch.randn(view.shape, device="cuda"))

    q, k, v = embedded(seq_q, heads), embedded(77, 2), embedded(77, 2)
    case = make_case(q, k, v, p["causal"])
    out = embedded(seq_q, heads).fill_(float("nan"))
    lse = torch.full((2, heads, seq_q), float("nan"), device="cuda")
    runtime.kernel(key)(q, k, v, return_lse=True, out=(out, lse))
    assert_right(case, out, lse)
    whole = torch.empty(0, dtype=out.dtype, device="cuda").set_(out.untyped_storage())
    assert whole.isfinite().sum() == out.numel()


def first_of_each(*names: str) -> list[str]:
    """A key for each target and each combination of these parameters."""
    firsts = {
        (i.target, *(i.parameters[name] for name in names)): key
        for key, i in reversed(KERNELS.items())
    }
    return list(firsts.values())


@pytest.mark.parametrize("key", first_of_each("d_head"))
def test_offsets_may_exceed_32_bits(key: str) -> None:
    """Batch entries 2^31 elements apart, and rows 2^23 apart."""
    p = KERNELS[key].parameters
    size = (2, 300, 1, p["d_head"])

    def far(batch_stride: int, row_stride: int) -> Tensor:
        extent = batch_stride + 300 * row_stride
        storage = torch.empty(extent, dtype=DTYPES[p["dtype"]], device="cuda")
        view = storage.as_strided(size, (batch_stride, row_stride, row_stride, 1))
        return view.copy_(torch.randn(size, device="cuda"))

    q, k, v = far(2**31, p["d_head"]), far(p["d_head"], 2**23), far(2**31, p["d_head"])
    assert_right(make_case(q, k, v, p["causal"]), *call(key, q, k, v))


@pytest.mark.parametrize("key", SM90A)
def test_keys_that_thread_blocks_share(key: str) -> None:
    """Few tiles, or a few more than multiprocessors, and many keys: a block of threads takes a part
    of a tile's keys, or of two tiles'. Whoever comes first, results are the same to the last bit.
    """
    p = KERNELS[key].parameters
    for batch, heads, kv_heads, seq_q, seq_k in (
        (1, 1, 1, 1, 20000),
        (3, 2, 2, 100, 9001),
        (1, 3, 3, 64, 2000),
        (1, 20, 20, 900, 1900),
        (2, 9, 9, 1100, 3000),
        (5, 66, 66, 130, 1700),
        (1, 64, 8, 1, 9000),
        (2, 14, 2, 5, 5001),
        (3, 48, 4, 19, 3000),
    ):
        q, k, v = (
            torch.randn(batch, length, count, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
            for length, count in ((seq_q, heads), (seq_k, kv_heads), (seq_k, kv_heads))
        )
        o, lse = call(key, q, k, v)
        assert_right(make_case(q, k, v, p["causal"]), o, lse)
        for _ in range(10):
            again, lse_again = call(key, q, k, v)
            assert torch.equal(o, again)
            assert torch.equal(lse, lse_again)


@pytest.mark.parametrize("key", first_of_each("d_head", "causal", "B_c"))
def test_every_remainder_of_a_block_of_keys(key: str) -> None:
    """Sk of 1 to 300, and Sq around it, so that tiles end anywhere in a block."""
    p = KERNELS[key].parameters
    for seq_k in range(1, 301):
        for seq_q in {1, seq_k, max(seq_k - 17, 1)}:
            case = grid_case(p["dtype"], p["d_head"], p["causal"], seq_q, seq_k, HEADS, HEADS)
            assert_right(case, *call(key, case.q, case.k, case.v))


@pytest.mark.parametrize(("seq_q", "group"), [(1024, 1), (1, 8), (50, 7), (200, 16)])
@pytest.mark.parametrize("key", KERNELS)
def test_integers_are_exact(key: str, seq_q: int, group: int) -> None:
    """One key a row far above all others, and integer values: the output is that key's value.

    An operand that is overwritten while a product still reads it shows here in every bit.
    """
    p = KERNELS[key].parameters
    dtype, length, d_head, kv_heads = DTYPES[p["dtype"]], 1024, p["d_head"], 2
    generator = torch.Generator("cuda").manual_seed(0)
    chosen = torch.stack(
        [
            torch.randperm(length, generator=generator, device="cuda")[:seq_q]
            for _ in range(kv_heads * group)
        ]
    )
    keys = torch.arange(length, device="cuda")
    if p["causal"]:
        chosen = torch.minimum(chosen, keys[length - seq_q :])
    # Ten bits of a key's index, as signs: a row and its key agree in all of them.
    bits = (keys[:, None] >> torch.arange(10, device="cuda") & 1) * 2 - 1
    q = torch.zeros(1, seq_q, kv_heads * group, d_head, device="cuda", dtype=dtype)
    k = torch.zeros(1, length, kv_heads, d_head, device="cuda", dtype=dtype)
    k[..., :10] = 16 * bits[:, None].to(dtype)
    q[..., :10] = 16 * bits[chosen.T].to(dtype)
    v = torch.randint(-128, 128, k.shape, generator=generator, device="cuda").to(dtype)
    o, lse = call(key, q, k, v, 1.0)
    want = torch.stack([v[0, of_head, head // group] for head, of_head in enumerate(chosen)], 1)
    assert torch.equal(o, want[None])
    assert torch.equal(lse, torch.full_like(lse, 2560.0))


@pytest.mark.parametrize("key", KERNELS)
def test_results_are_identical_from_run_to_run(key: str) -> None:
    """Whichever block of threads takes which tile, and when: output and lse to the last bit.

    Every second run has the GPU for itself; the others find multiprocessors taken by launches on
    two other streams, so that tiles are handed out in other orders.
    """
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(4, length, 16, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
        for length in (1500, 2000, 2000)
    )
    others = [torch.cuda.Stream() for _ in range(2)]
    first, first_lse = call(key, q, k, v)
    torch.cuda.synchronize()
    for run in range(20):
        for rows, stream in zip((300, 70), others, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(3 * (run % 2)):
                    runtime.kernel(key)(q[:, :rows], k, v)
        o, lse = call(key, q, k, v)
        assert torch.equal(o, first)
        assert torch.equal(lse, first_lse)
        torch.cuda.synchronize()


LENGTHS_BESIDE_FLASH_ATTENTION_3 = (
    (128, 128), (512, 512), (1000, 1000), (300, 1111), (700, 200), (2048, 2048), (4096, 4096),
)  # fmt: skip


def few_keys_count(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Scores of a spread of 16, so that a row is made of few values."""
    q *= 16


def large_values(q: Tensor, k: Tensor, v: Tensor) -> None:
    """One value in a hundred is a thousand times as large."""
    v *= torch.where(torch.rand_like(v) < 0.01, 1000, 1)


def large_scores(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Scores that all exceed a thousand, in a third of the rows; they differ by little."""
    q[..., 0] = torch.where(torch.arange(q.shape[1], device=q.device) % 3 == 0, 256, 0)[:, None]
    k[..., 0] = 4 * q.shape[-1] ** 0.5


INPUTS_BESIDE_FLASH_ATTENTION_3: dict[str, Callable[[Tensor, Tensor, Tensor], None]] = {
    "normal": lambda q, k, v: None,
    "few keys count": few_keys_count,
    "large values": large_values,
    "large scores": large_scores,
}


@pytest.mark.skipif(find_spec("fa3_fwd") is None, reason="needs PyPI's fa3-fwd 0.0.3")
@pytest.mark.parametrize("inputs", INPUTS_BESIDE_FLASH_ATTENTION_3)
@pytest.mark.parametrize("key", SM90A_BF16)
def test_error_is_at_most_1_2_times_flash_attention_3s(key: str, inputs: str) -> None:
    """Against the same oracle, the root of the mean square; the greatest element as in `make_case`.

    FlashAttention-3's greatest error may be smaller: it takes each new maximum, so that a row's
    largest probability is 1, which needs no rounding.
    """
    importlib.import_module("fa3_fwd._C")  # registers the operator
    p = KERNELS[key].parameters
    for seq_q, seq_k in LENGTHS_BESIDE_FLASH_ATTENTION_3:
        q, k, v = (
            torch.randn(2, length, 4, p["d_head"], device="cuda")
            for length in (seq_q, seq_k, seq_k)
        )
        INPUTS_BESIDE_FLASH_ATTENTION_3[inputs](q, k, v)
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        want = attention(q, k, v, causal=p["causal"])
        theirs = torch.ops.fa3_fwd.fwd(
            q, k, v, softmax_scale=p["d_head"] ** -0.5, is_causal=p["causal"], num_splits=1
        )[0]
        ours, _ = call(key, q, k, v)
        error, of_theirs = ours.double() - want, theirs.double() - want
        assert of_theirs.isfinite().all()
        assert error.norm() <= 1.2 * of_theirs.norm()  # NaN fails
        two_roundings = torch.finfo(q.dtype).eps * v.abs().max().double()
        assert error.abs().max() <= 1.2 * torch.maximum(of_theirs.abs().max(), two_roundings)


@pytest.mark.parametrize("key", KERNELS)
def test_two_streams_and_many_launches(key: str) -> None:
    """A thousand launches on two streams, of two sizes, each right bit for bit."""
    p = KERNELS[key].parameters
    inputs = [
        [
            torch.randn(2, length, 4, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
            for _ in "qkv"
        ]
        for length in (640, 1111)
    ]
    kernel = runtime.kernel(key)
    want = [kernel(*tensors) for tensors in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[], []]
    for _ in range(50):
        for stream, tensors, collected in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                collected += [
                    kernel(*tensors, out=torch.full_like(tensors[0], float("nan")))
                    for _ in range(10)
                ]
        torch.cuda.synchronize()
        for wanted, collected in zip(want, results, strict=True):
            assert all(torch.equal(wanted, o) for o in collected)
            collected.clear()


@pytest.mark.parametrize("key", KERNELS)
def test_graphs_replayed_beside_each_other(key: str) -> None:
    """Two captured launches and an eager one, at the same time on three streams."""
    p = KERNELS[key].parameters
    q, k, v = (
        torch.randn(2, 900, 4, p["d_head"], device="cuda").to(DTYPES[p["dtype"]]) for _ in "qkv"
    )
    kernel = runtime.kernel(key)
    want = kernel(q, k, v)
    outs = [torch.empty_like(q) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in outs]
    graphs = [torch.cuda.CUDAGraph() for _ in outs[:2]]
    torch.cuda.synchronize()
    for graph, out in zip(graphs, outs, strict=False):
        with torch.cuda.graph(graph):
            kernel(q, k, v, out=out)
    for _ in range(50):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for stream, work in zip(
            streams,
            (*(g.replay for g in graphs), lambda: kernel(q, k, v, out=outs[2])),
            strict=True,
        ):
            with torch.cuda.stream(stream):
                work()
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in outs)


@pytest.mark.parametrize("key", first_of_each("d_head", "causal"))
def test_expanded_keys_and_values(key: str) -> None:
    """Strides of zero: one head's keys for all heads, one batch entry's for all."""
    p = KERNELS[key].parameters
    q = torch.randn(3, 200, 4, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
    k, v = (
        torch.randn(1, 150, 1, p["d_head"], device="cuda")
        .to(q.dtype)
        .expand(3, 150, 4, p["d_head"])
        for _ in "kv"
    )
    assert_right(make_case(q, k, v, p["causal"]), *call(key, q, k, v))


@pytest.mark.parametrize("key", first_of_each("d_head", "causal"))
def test_expanded_queries(key: str) -> None:
    """Few queries, the same for all heads, which share keys: a head's stride is zero."""
    p = KERNELS[key].parameters
    dtype = DTYPES[p["dtype"]]
    q = torch.randn(2, 5, 1, p["d_head"], device="cuda").to(dtype).expand(2, 5, 8, p["d_head"])
    k, v = (torch.randn(2, 150, 2, p["d_head"], device="cuda").to(dtype) for _ in "kv")
    case = make_case(q, k, v, p["causal"])
    assert_right(case, *call(key, q, k, v))


@pytest.mark.parametrize("expanded", ["q", "k", "v"])
@pytest.mark.parametrize("key", first_of_each("d_head", "causal"))
def test_sequences_of_one_row(key: str, expanded: str) -> None:
    """Expanded along the sequence; a tensor map has no such stride."""
    p = KERNELS[key].parameters
    tensors = []
    for name in "qkv":
        rows = 1 if name == expanded else 150
        made = torch.randn(2, rows, 4, p["d_head"], device="cuda").to(DTYPES[p["dtype"]])
        tensors.append(made.expand(-1, 150, -1, -1))
    if ".sm90a." not in key:
        assert_right(make_case(*tensors, p["causal"]), *call(key, *tensors))
        return
    with pytest.raises(runtime.InvalidArgument, match=rf"requires not expanded\({expanded}, 1\)"):
        call(key, *tensors)
    tensors = [t[:, :1].expand(-1, 1, -1, -1) for t in tensors]  # of one row it is none
    assert_right(make_case(*tensors, p["causal"]), *call(key, *tensors))


@pytest.mark.parametrize("key", first_of_each("d_head", "causal"))
def test_rows_that_share_memory(key: str) -> None:
    """Each row begins 16 bytes behind the one before it."""
    p = KERNELS[key].parameters
    size, strides = (2, 150, 2, p["d_head"]), (4096, 8, 2048, 1)
    tensors = [
        torch.randn(8192, device="cuda").to(DTYPES[p["dtype"]]).as_strided(size, strides)
        for _ in "qkv"
    ]
    assert_right(make_case(*tensors, p["causal"]), *call(key, *tensors))
