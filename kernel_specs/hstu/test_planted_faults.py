"""Planted faults: what a comparison must catch to be worth its green marks.

Each fault is a way in which an implementation of block-sparse attention has gone wrong or may; the
healthy pipeline is the reference's own stages, so that nothing but the fault differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from kernel_specs.hstu import semantics
from kernel_specs.hstu.block_sparse import reference
from kernel_specs.hstu.hstu_bsa import reference as jagged
from kernel_specs.hstu.tools import compare
from kernel_specs.hstu.tools.cases import CASES, draw
from kernel_specs.hstu.tools.implementations import Implementation, implementation_of
from kernel_specs.hstu.tools.judge import Computed, Judge
from tools.comparison import Tolerance

Judged: TypeAlias = tuple[Judge, Computed]


@dataclass(frozen=True)
class Fault:
    """One fault; `modes` are those in which it changes anything."""

    name: str
    what: str
    modes: tuple[str, ...] = ("fixed", "literal")


FAULTS = (
    Fault("transpose", "the lists' transpose is dropped: (t, h) reads another query's", ("fixed",)),
    Fault("untransposed", "the lists are transposed where the algorithm does not", ("literal",)),
    Fault("scale", "the compressed branch scales by sqrt(A) in place of A"),
    Fault("no_layer_norm", "both LayerNorms are missing"),
    Fault("layer_norm_per_head", "LayerNorm over each head in place of all jointly"),
    Fault("future_leak", "the current, incomplete block is seen by the compressed branch"),
    Fault("open_first_rows", "rows before the first complete block see all blocks", ("fixed",)),
    Fault("no_causal_mask", "the selected branch reads past its own row in its own block"),
    Fault("causal_off_by_one", "the selected branch leaves out its own row"),
    Fault("tf32", "the operands of all products are rounded to TF32"),
    Fault("tie_rule", "of equal scores the higher index wins"),
    Fault("masked_rank", "unseen blocks rank as 0", ("fixed",)),
    Fault("current_dropped", "the query's own block is ranked by its score alone"),
    Fault("fewer_blocks", "one block fewer is selected, its entry -1"),
    Fault("gate_slc", "the selected branch is gated, too"),
    Fault("no_gate", "the compressed branch is not gated"),
    Fault("heads_not_shared", "odd heads keep their own lists", ("literal",)),
    Fault("stale_head", "one head of one sequence gets its neighbour's values"),
    Fault("one_nan", "a single element is NaN"),
    Fault("padded_bit", "one element of padded_k is off by its last bit"),
)


def plant(fault: Fault | None) -> Implementation:
    """An implementation with that fault; without one, the healthy pipeline (the control)."""
    name = fault.name if fault else "control"

    def attention(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _attention(name, *tensors, **options)

    def hstu(*arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        o, padded_q, padded_k = jagged.hstu_attention_with_bsa(
            *arguments, **options, attention=attention
        )
        if name == "padded_bit":
            flat = padded_k.flatten()
            flat[7:8] = torch.nextafter(flat[7:8], torch.full_like(flat[7:8], torch.inf))
        return o, padded_q, padded_k

    return Implementation(name, f"fault {name}", attention, hstu)


_FLAGS: dict[str, Callable[[semantics.Semantics], semantics.Semantics]] = {
    "transpose": lambda flags: replace(flags, list_layout="reinterpret"),
    "untransposed": lambda flags: replace(flags, list_layout="transpose"),
    "open_first_rows": lambda flags: replace(flags, open_first_rows=True),
    "masked_rank": lambda flags: replace(flags, masked_rank=0.0),
    "heads_not_shared": lambda flags: replace(flags, share="none"),
}


def _attention(
    fault: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    g_cmp: torch.Tensor,
    *rest: torch.Tensor,
    block_count: int,
    block_size: int,
    mode: semantics.Mode,
) -> tuple[torch.Tensor, torch.Tensor]:
    flags = semantics.semantics_of(mode)
    if fault in _FLAGS:
        flags = _FLAGS[fault](flags)
    T, A = q.shape[1], q.shape[3]
    C = -(-T // block_size)
    S = min(block_count, C)
    if fault == "stale_head":
        v = v.clone()
        v[0, :, 0] = v[0, :, -1]
    rounded = _tf32 if fault == "tf32" else lambda x: x

    k_cmp, v_cmp = reference.pool(k, block_size), reference.pool(v, block_size)
    t = torch.arange(T, device=q.device)[:, None]
    c = torch.arange(C, device=q.device)
    seen = (c + 1) * block_size - 1 <= t
    if fault == "future_leak":
        seen = c * block_size <= t
    seen = seen | ((t < block_size - 1) & flags.open_first_rows)
    scale = A**0.5 if fault == "scale" else A
    logits = torch.einsum("bthd,bchd->bhtc", rounded(q * scale), rounded(k_cmp))
    scores = torch.where(seen, F.silu(logits) / scale, 0.0)
    o_cmp = torch.einsum("bhtc,bchd->bthd", rounded(scores), rounded(v_cmp))
    if fault != "no_gate":
        o_cmp = o_cmp * g_cmp[..., None]

    ranking = reference.rank(scores, seen, block_size, flags)
    if fault == "current_dropped":
        ranking = scores.masked_fill(~seen, flags.masked_rank)
    if fault == "tie_rule":
        lists = _last_first(ranking, S, block_size, flags)
    else:
        lists = reference.select(ranking, S, block_size, flags)
    if fault == "fewer_blocks":
        lists[..., -1] = -1
    used = reference.arrange(lists, flags)
    o_slc = _selected(fault, rounded(q), rounded(k), rounded(v), used, block_size)
    if fault == "gate_slc":
        o_slc = o_slc * g_cmp[..., None]

    if fault == "no_layer_norm":
        o = o_cmp * u + o_slc * u
    elif fault == "layer_norm_per_head":
        o = sum(
            (F.layer_norm(x, x.shape[-1:], eps=1e-6) * u for x in (o_cmp, o_slc)), torch.zeros(())
        )
    else:
        o = reference.layer_norm(o_cmp) * u + reference.layer_norm(o_slc) * u
    if fault == "one_nan":
        o[-1, T // 2, -1, 0] = torch.nan
    return o, lists


def _selected(
    fault: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lists: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    if fault not in ("no_causal_mask", "causal_off_by_one"):
        return reference.attend_selected(q, k, v, lists, block_size)
    # The dense form, with the fault in the mask.
    T, A = q.shape[1], q.shape[3]
    C = -(-T // block_size)
    chosen = F.one_hot(lists.clamp(min=0), C).bool() & (lists >= 0)[..., None]
    keys = chosen.any(-2).repeat_interleave(block_size, -1)[..., :T]
    t = torch.arange(T, device=q.device)
    if fault == "no_causal_mask":
        mask = t // block_size <= t[:, None] // block_size
    else:
        mask = t < t[:, None]
    weights = F.silu(torch.einsum("bthd,bjhd->bhtj", q, k)) / A
    return torch.einsum("bhtj,bjhd->bthd", torch.where(keys & mask, weights, 0.0), v)


def _last_first(
    ranking: torch.Tensor, S: int, block_size: int, flags: semantics.Semantics
) -> torch.Tensor:
    # select, ties to the higher index: the mirror image of the ranking, mirrored back
    C = ranking.shape[-1]
    values, order = torch.sort(ranking.flip(-1) + 0.0, dim=-1, descending=True, stable=True)
    chosen = C - 1 - order[..., :S]
    current = torch.arange(ranking.shape[2], device=ranking.device)[:, None] // block_size
    absent = (chosen > current) | (values[..., :S] == float("-inf"))
    chosen = chosen.masked_fill(absent, -1)
    if flags.share == "heads" and ranking.shape[1] > 1:
        chosen[:, 1::2] = chosen[:, 0::2]
    return chosen


def _tf32(x: torch.Tensor) -> torch.Tensor:
    # round to nearest, ties away from zero, at 10 explicit bits of the significand
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


TINY = (
    replace(CASES["small"], T=64, L=16),
    replace(CASES["tail_small"], T=45, B=1, L=16, block_size=8),
    replace(CASES["ties"], T=64, B=1, H=2, L=16, block_size=8),
)


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Judged]]:
    healthy = implementation_of("torch", "cpu")
    return {
        mode: [
            (judge, Computed(function, healthy, judge.inputs, mode))
            for case in TINY
            for function in case.functions
            for judge in [Judge(function, draw(case, 42, "cpu"), mode, Tolerance())]
        ]
        for mode in ("fixed", "literal")
    }


@pytest.mark.parametrize(
    ("fault", "mode"),
    [(None, "fixed"), (None, "literal")]
    + [(fault, mode) for fault in FAULTS for mode in fault.modes],
    ids=lambda x: x.name if isinstance(x, Fault) else str(x),
)
def test_each_planted_fault_is_caught_and_nothing_else(
    fault: Fault | None, mode: str, tables: dict[str, list[Judged]]
) -> None:
    planted = plant(fault)
    verdicts = [
        judge.verdict(
            ("torch", "planted"),
            (expected, Computed(judge.function, planted, judge.inputs, mode)),
        )
        for judge, expected in tables[mode]
    ]
    assert any(not verdict.passed for verdict in verdicts) == (fault is not None)


def test_a_fault_is_located_and_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = next(fault for fault in FAULTS if fault.name == "stale_head")
    loaded = {"torch": implementation_of("torch", "cpu"), "triton": plant(stale)}
    monkeypatch.setattr(compare, "implementation_of", lambda name, device, dot: loaded[name])
    arguments = ["--device", "cpu", "--cases", "small", "--mode", "fixed"]
    result = CliRunner().invoke(compare.main, arguments)
    assert result.exit_code == 1
    assert "✗ output o: MISMATCH" in result.output
    assert "beyond atol + rtol * |expected|: " in result.output
    assert "✓ torch o against fp64 with its own lists: match" in result.output
    assert "✗ stale_head o against fp64 with its own lists: MISMATCH" in result.output
    assert "worst at b=0 t=" in result.output
    assert "share beyond the tolerance, by head: " in result.output
    assert "✗ 0 of 2 pairs agree" in result.output
