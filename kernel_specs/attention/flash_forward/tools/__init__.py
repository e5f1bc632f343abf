"""Hooks of flash_forward for the tools."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from kernelmint.tools.selection import keys_of_set
from rich.table import Table
from torch import Tensor

import runtime
from runtime.operators import DTYPES

from ...reference import attention
from ...tools.contenders import FORWARD as contenders
from ...tools.problems import Attention, equal_sequences
from .debug import main as debug

__all__ = [
    "CASES", "RACE_CASES", "bench_tables", "contenders", "counting_inputs", "debug", "magnitude",
    "problems", "selected",
]  # fmt: skip

# Tails in blocks of queries and of keys; counting to 250 * 256 stays within fp16.
_SIZES = {"B": 2, "Sq": 250, "Sk": 250, "H": 4, "Hk": 2}
CASES = ({"sizes": _SIZES, "options": {"return_lse": True}},)


def _racing(Sq: int, Sk: int, H: int, Hk: int, *without: str) -> dict[str, Any]:
    sizes = {"B": 1, "Sq": Sq, "Sk": Sk, "H": H, "Hk": Hk}
    return {"sizes": sizes, "options": {"return_lse": Sq % 2 == 1}, "without": without}


# Sequences of one row; tails of blocks and tiles; several blocks and tiles; none. Heads: more
# than a GPU has multiprocessors, so that persistent blocks of threads take several tiles each;
# racecheck does not know there that a warp's reads precede its first lane's arrival at an mbarrier,
# since ptxas makes no instruction of the __syncwarp() between them.
RACE_CASES = (
    _racing(1, 1, 2, 2),
    _racing(7, 100, 4, 1),
    _racing(130, 65, 2, 1),
    _racing(257, 321, 2, 2),
    _racing(66, 70, 400, 200, "racecheck"),
)


def selected(word: str) -> tuple[str, str | None]:
    """Returns the set that a word of KERNELS means, and an expression over its kernels:
    `prog` and `prog_all` are short for sets, `64,32` are B_r and B_c."""
    if blocks := re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", word):
        return "all", f"B_r == {blocks[1]} and B_c == {blocks[2]}"
    return {"prog": "progression", "prog_all": "progression_all"}.get(word, word), None


def counting_inputs(sizes: Mapping[str, int], parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """Makes inputs that count, as many keys as queries, on the CPU.

    q counts up from 0 along the rows of each head, k = -q and v = q. If fewer heads have keys,
    these are the first of the queries' heads.

    Raises:
        ValueError: counting so far would overflow the dtype.
    """
    dtype, d_head, length = DTYPES[parameters["dtype"]], parameters["d_head"], sizes["Sq"]
    last = length * d_head - 1
    if last > torch.finfo(dtype).max:
        rows = int(torch.finfo(dtype).max) // d_head
        raise ValueError(
            f"counting to {last} overflows {parameters['dtype']}: at most {rows} rows of "
            f"{d_head} fit"
        )
    count = torch.arange(last + 1, dtype=torch.float64).view(1, length, 1, d_head).to(dtype)
    q, k = (count.expand(sizes["B"], -1, sizes[heads], -1) for heads in ("H", "Hk"))
    return {"q": q, "k": -k, "v": k}


def magnitude(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, return_lse: bool = False
) -> Any:
    """Computes attention(q, k, |v|), the magnitude of the sum that makes each element, and for lse
    the largest |lse|."""
    o, lse = attention(q, k, v.abs(), causal=causal, return_lse=True)
    return (o, lse.abs().amax().expand_as(lse)) if return_lse else o


# On a GPU the number of tokens is about constant, as in FlashAttention's own benchmarks; on a CPU
# one or two sequences are enough for all cores.
problems = functools.partial(
    equal_sequences,
    Attention,
    {
        "cuda": ("16x512", "16x1024", "16x2048", "16x4096", "8x8192", "4x16384"),
        "cpu": ("2x512", "1x1024", "1x2048", "1x4096"),
    },
)


@functools.cache
def _progression() -> dict[str, str]:
    """Returns short forms by key, base to best."""
    short_forms = {info.key: info.short or info.key for info in runtime.kernels("flash_forward")}
    keys = keys_of_set("flash_forward", "progression")
    return {key: short_forms.get(key, key) for key in keys}


def bench_tables(rows: Sequence[Any], unit: str) -> list[Table]:
    """Returns the progression's table, if one of its kernels was measured."""
    if not any(row.contender in _progression() for row in rows):
        return []
    return [progression_table(rows, _progression(), unit)]


def progression_table(rows: Sequence[Any], steps: Mapping[str, str], unit: str) -> Table:
    """Returns the progression, step by step, for rows of one group: figures, and shares of the
    reference's rate.

    Args:
        rows: of one group of problems.
        steps: short forms by key, base to best; those that were not measured are left out.
        unit: of the figures.
    """
    reference = "PyTorch flash"  # FlashAttention-2
    result = Table(title=f"{rows[0].problem.group}, the progression: {unit}, and % of {reference}")
    result.add_column("step", justify="right")
    result.add_column("kernel")
    by_place = {(row.contender, row.problem.size): row for row in rows}
    sizes = list(dict.fromkeys(row.problem.size for row in rows))
    for size in sizes:
        result.add_column(size, justify="right")
    for step, (key, short) in enumerate(steps.items(), start=1):
        of_step = [by_place.get((key, size)) for size in sizes]
        if not any(of_step):
            continue
        cells = []
        for row, size in zip(of_step, sizes, strict=True):
            theirs = by_place.get((reference, size))
            share = f" {theirs.seconds.median / row.seconds.median:6.1%}" if row and theirs else ""
            cells.append(f"{row.figure(unit).median:.1f}{share}" if row else "refused")
        result.add_row(str(step), short, *cells)
    return result
