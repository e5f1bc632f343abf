"""flash_forward on the CPU: every built kernel against the fp64 oracle, on every instruction set.

A kernel's error may be 1.5 times that of PyTorch's own attention, in the same dtype on the same
inputs against the same oracle. On few elements PyTorch may happen to be better than anyone has to
be; then 1.5 times three roundings count instead, each taken of the greatest output: the result's,
to its dtype, and a score's and its exponent's, to f32, which change the exponential by that
rounding times the score.
"""

from __future__ import annotations

import itertools
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import runtime
from runtime import packs
from tests import warm_python
from tests.slow import slow_after
from tools.families import oracle

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
KERNELS = {info.key: info for info in runtime.kernels("flash_forward", "cpu")}
BUILT_FOR = packs.of("flash_forward").isas
ISAS = [isa for isa in runtime._native.supported_cpu_isas() if isa in BUILT_FOR]
BATCH, HEADS = 1, 4
SIZES = (1, 7, 64, 100, 128, 1000)
GRID = [  # Sq, Sk, Hk: every pair of lengths, the numbers of key heads taking turns
    (*lengths, kv_heads)
    for lengths, kv_heads in zip(
        itertools.product(SIZES, repeat=2), itertools.cycle((HEADS, 1, 1, HEADS, 1)), strict=False
    )
]

attention = oracle("flash_forward")


def first_of_each_dtype() -> list[str]:
    keys: dict[tuple[str, bool], str] = {}
    for key, info in KERNELS.items():
        keys.setdefault((info.parameters["dtype"], info.parameters["causal"]), key)
    return list(keys.values())


def pytorch(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """PyTorch's attention in the inputs' dtype; NaN in rows that see no key."""
    seq_len_q, seq_len_k = q.shape[1], k.shape[1]
    square = seq_len_q == seq_len_k
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))  # enable_gqa=True is many times slower
    mask = torch.ones(seq_len_q, seq_len_k, dtype=torch.bool).tril(seq_len_k - seq_len_q)
    return scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)),
        attn_mask=mask if causal and not square else None,
        is_causal=causal and square,
        scale=scale,
    ).transpose(1, 2)


class Case(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor
    allowed: float
    allowed_lse: float


def make_case(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Case:
    o, lse = attention(q, k, v, causal=causal, scale=scale, return_lse=True)
    theirs = 0.0
    if k.shape[1]:
        seen = ~lse.isneginf().transpose(1, 2)  # PyTorch says NaN if a row sees no key
        errors = (pytorch(q, k, v, causal, scale).double() - o).abs()[seen]
        errors = errors[errors.isfinite()]  # it says NaN for scale 0 under the mask, too
        theirs = errors.max().item() if errors.numel() else 0.0
    finite = lse[lse.isfinite()].abs()  # about the greatest score of each row
    largest_score = max(1.0, finite.max().item() if finite.numel() else 0.0)
    rounding = torch.finfo(q.dtype).eps / 2 + 2 * 2**-24 * largest_score
    unavoidable = rounding * (o.abs().max().item() if o.numel() else 0.0)
    # Rounding errors of a sum of D products in f32 grow like sqrt(D): twice that, for the largest.
    allowed_lse = 2 * q.shape[-1] ** 0.5 * 2**-24 * largest_score
    return Case(q, k, v, o, lse, 1.5 * max(theirs, unavoidable), allowed_lse)


@cache
def grid_case(
    dtype: str, d_head: int, causal: bool, seq_len_q: int, seq_len_k: int, kv_heads: int
) -> Case:
    generator = torch.Generator().manual_seed(seq_len_q * 10007 + seq_len_k * 101 + kv_heads)
    q, k, v = (
        torch.randn(BATCH, length, heads, d_head, generator=generator).to(DTYPES[dtype])
        for length, heads in ((seq_len_q, HEADS), (seq_len_k, kv_heads), (seq_len_k, kv_heads))
    )
    return make_case(q, k, v, causal)


def call(
    key: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The kernel's output and lse, in memory that held NaN before."""
    o = torch.full_like(q, float("nan"))
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    runtime.kernel(key)(q, k, v, scale=scale, return_lse=True, out=(o, lse))
    return o, lse


def assert_right(case: Case, o: Tensor, lse: Tensor) -> None:
    error = (o.double() - case.o).abs()
    greatest = error.max().item() if o.numel() else 0.0
    assert greatest <= case.allowed  # NaN fails
    unseen = case.lse.isneginf()
    assert torch.equal(lse.isneginf(), unseen)
    assert not o.transpose(1, 2)[unseen].count_nonzero()
    error_lse = (lse.double() - case.lse)[~unseen].abs()
    assert not error_lse.numel() or error_lse.max().item() <= case.allowed_lse


@pytest.mark.parametrize("key", KERNELS)
def test_matches_the_oracle(key: str) -> None:
    """Sq and Sk of 1 to 1000, one or four query heads to a key head, both layouts."""
    p = KERNELS[key].parameters
    for seq_len_q, seq_len_k, kv_heads in GRID:
        case = grid_case(p["dtype"], p["d_head"], p["causal"], seq_len_q, seq_len_k, kv_heads)
        o, lse = call(key, case.q, case.k, case.v)
        assert_right(case, o, lse)
        bhsd = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (case.q, case.k, case.v)]
        o_bhsd, lse_bhsd = call(key, *bhsd)
        assert torch.equal(o, o_bhsd)
        assert torch.equal(lse, lse_bhsd)


@pytest.mark.parametrize("key", KERNELS)
def test_matches_the_oracle_in_a_few_shapes(key: str) -> None:
    p = KERNELS[key].parameters
    for sizes in ((1, 1000, 1), (100, 64, HEADS), (128, 7, 1), (333, 333, 1)):
        case = grid_case(p["dtype"], p["d_head"], p["causal"], *sizes)
        assert_right(case, *call(key, case.q, case.k, case.v))


def test_a_head_dimension_that_no_pack_holds() -> None:
    """Whose vectors do not come in eights: ten of them, or twenty."""
    key = "flash_forward.cpu.f32-d160-r32-c64"
    runtime.kernel(key, build=True)
    for sizes in ((1, 1000, 1), (3, 64, HEADS), (128, 7, 1)):
        case = grid_case("f32", 160, False, *sizes)
        assert_right(case, *call(key, case.q, case.k, case.v))


@pytest.mark.parametrize("isa", slow_after(1, ISAS[:-1]))  # this process runs the last
def test_matches_the_oracle_on_the_other_instruction_sets(isa: str) -> None:
    """The kernels again, each time in a process that is held to one instruction set."""
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    tests = "test_matches_the_oracle_in_a_few_shapes or test_not_a_number"
    result = warm_python.run(
        program, "-qx", "-p", "no:cacheprovider", __file__, "-k", tests,
        folder=Path(__file__).parent, environment={**os.environ, "KERNELMINT_CPU_ISA": isa},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("key", slow_after(1, first_of_each_dtype()))
def test_matches_the_oracle_on_long_sequences(key: str) -> None:
    p = KERNELS[key].parameters
    case = grid_case(p["dtype"], p["d_head"], p["causal"], 4096, 4096, 1)
    assert_right(case, *call(key, case.q, case.k, case.v))


@pytest.mark.parametrize("key", KERNELS)
def test_no_keys_give_zeros_and_minus_infinity(key: str) -> None:
    d_head, dtype = KERNELS[key].parameters["d_head"], DTYPES[KERNELS[key].parameters["dtype"]]
    q, k = torch.randn(2, 5, 4, d_head).to(dtype), torch.empty(2, 0, 2, d_head, dtype=dtype)
    o, lse = call(key, q, k, k)
    assert not o.count_nonzero()
    assert lse.isneginf().all()


@pytest.mark.parametrize("key", first_of_each_dtype())
def test_scores_whose_rounding_exceeds_the_exponents_range(key: str) -> None:
    """Scaled scores of about 2^40 are rounded by more than any power of two a float can hold."""
    parameters = KERNELS[key].parameters
    shape = (BATCH, 300, HEADS, parameters["d_head"])
    q, k, v = (
        (torch.randn(shape) * factor).to(DTYPES[parameters["dtype"]])
        for factor in (2.0**12, 2.0**12, 1.0)
    )
    scale = 2.0**12
    kernel, causal = runtime.kernel(key), parameters["causal"]
    o = kernel(q, k, v, scale=scale, out=torch.full_like(q, float("nan")))
    want = attention(q, k, v, causal=causal, scale=scale)
    # All weight is on the greatest score. If two lie closer than fp32 tells apart, either may
    # be it: fewer than one row in a hundred.
    right = ((o - want).abs().amax(-1) <= 2.0**-7 * want.abs().amax(-1)).double().mean()
    assert o.isfinite().all()
    assert right > 0.99


@pytest.mark.parametrize("key", first_of_each_dtype())
def test_not_a_number_stays_in_its_row(key: str) -> None:
    """A NaN in one query makes that query's output and lse NaN, and no other's."""
    p = KERNELS[key].parameters
    q, k, v = (torch.randn(1, 300, 2, p["d_head"]).to(DTYPES[p["dtype"]]) for _ in range(3))
    clean, clean_lse = call(key, q, k, v)
    q[0, 123, 1, 7] = float("nan")
    o, lse = call(key, q, k, v)
    assert o[0, 123, 1].isnan().all()
    assert lse[0, 1, 123].isnan()
    o[0, 123, 1], lse[0, 1, 123] = clean[0, 123, 1], clean_lse[0, 1, 123]
    assert torch.equal(o, clean)
    assert torch.equal(lse, clean_lse)


@pytest.mark.parametrize("key", first_of_each_dtype())
def test_infinities_are_numbers_like_others(key: str) -> None:
    """A score of -inf has no weight, an infinite value makes its column so: also where products
    split numbers into parts, which an infinity does not have."""
    p = KERNELS[key].parameters
    q, k, v = torch.randn(3, 1, 40, 2, p["d_head"]).to(DTYPES[p["dtype"]]).unbind()
    k[0, 3, 0, 5] = float("inf")
    q[0, 11, 1, 7] = -float("inf")
    v[0, 0, 1, 2] = -float("inf")
    o, lse = call(key, q, k, v)
    want, want_lse = attention(q, k, v, causal=p["causal"], return_lse=True)
    assert want.isneginf().any()
    assert torch.equal(o.isnan(), want.isnan())
    there = want.isfinite()
    torch.testing.assert_close(o[there].double(), want[there], rtol=0.0, atol=2e-2)
    assert torch.equal(o[want.isneginf()].double(), want[want.isneginf()])
    there = want_lse.isfinite()
    torch.testing.assert_close(lse[there].double(), want_lse[there], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("key", first_of_each_dtype())
def test_any_number_of_threads_gives_the_same_bits(key: str) -> None:
    p = KERNELS[key].parameters
    case = grid_case(p["dtype"], p["d_head"], p["causal"], 1000, 1000, 1)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(call(key, case.q, case.k, case.v))
    finally:
        torch.set_num_threads(before)
    for o, lse in results[1:]:
        assert torch.equal(o, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("key", first_of_each_dtype())
@pytest.mark.parametrize("scale", [0.0, -0.125])
def test_scales_that_are_not_positive(key: str, scale: float) -> None:
    """Under the mask PyTorch's own result is NaN at scale 0."""
    p = KERNELS[key].parameters
    case = grid_case(p["dtype"], p["d_head"], p["causal"], 100, 100, 1)
    case = make_case(case.q, case.k, case.v, p["causal"], scale)
    assert_right(case, *call(key, case.q, case.k, case.v, scale))


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    """Random values of that shape within a larger tensor, its outer dimensions in any order."""
    order = draw(st.permutations(range(3)))
    margins = [draw(st.integers(0, 2)) for _ in range(4)]
    sizes = [shape[i] + margins[i] for i in (*order, 3)]
    storage = torch.full(sizes, float("nan"), dtype=dtype)
    inverse = sorted(range(3), key=lambda i: order[i])
    view = storage.permute(*inverse, 3)
    starts = [draw(st.integers(0, margin)) for margin in margins]
    for dim, start in enumerate(starts):
        view = view.narrow(dim, start, shape[dim])
    seed = draw(st.integers(0, 2**32 - 1))
    view.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    return view


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_matches_the_oracle_on_random_shapes_strides_and_scales(data: st.DataObject) -> None:
    """No element outside q, k and v is used: around them lies NaN."""
    key = data.draw(st.sampled_from(list(KERNELS)))
    p = KERNELS[key].parameters
    batch, kv_heads, group = (data.draw(st.integers(1, 3)) for _ in range(3))
    seq_len_q, seq_len_k = (data.draw(st.integers(1, 300)) for _ in range(2))
    shapes = ((seq_len_q, kv_heads * group), (seq_len_k, kv_heads), (seq_len_k, kv_heads))
    q, k, v = (
        data.draw(strided((batch, length, heads, p["d_head"]), DTYPES[p["dtype"]]))
        for length, heads in shapes
    )
    scale = data.draw(st.sampled_from([None, 0.0, -0.125, 0.5]))
    case = make_case(q, k, v, p["causal"], scale)
    assert_right(case, *call(key, q, k, v, scale))


@pytest.mark.parametrize("key", [key for key in first_of_each_dtype() if "causal" in key])
@pytest.mark.parametrize("rows", [300, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_behind_the_causal_mask_reaches_no_row(key: str, rows: int, value: float) -> None:
    """It reaches the rows that see it, in its column, as in the oracle; and no other element."""
    p = KERNELS[key].parameters
    q = torch.randn(1, rows, 2, p["d_head"]).to(DTYPES[p["dtype"]])
    k, v = (torch.randn(1, 300, 2, p["d_head"]).to(DTYPES[p["dtype"]]) for _ in range(2))
    clean, clean_lse = call(key, q, k, v)
    special = (70, 299) if rows == 300 else (297, 299)
    for i, column in zip(special, (5, 40), strict=True):
        v[0, i, 1, column] = value
    o, lse = call(key, q, k, v)
    for i, column in zip(special, (5, 40), strict=True):
        first = max(0, i - (300 - rows))
        assert not o[0, first:, 1, column].isfinite().any()
        assert o[0, :first, 1, column].isfinite().all()
        o[0, first:, 1, column] = clean[0, first:, 1, column]
    assert torch.equal(o, clean)
    assert torch.equal(lse, clean_lse)
