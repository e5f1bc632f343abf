"""What the tools know of flash_forward beyond its spec and its reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runtime.operators import DTYPES

from ..reference import attention
from .bench import main as bench
from .debug import main as debug

__all__ = [
    "CASES", "RACE_CASES", "bench", "counting_inputs", "debug", "magnitude", "selected",
]  # fmt: skip

# Tails in blocks of queries and of keys; counting to 250 * 256 stays within fp16.
CASES = ({"sizes": {"B": 2, "Sq": 250, "Sk": 250, "H": 4, "Hk": 2}},)


def _racing(Sq: int, Sk: int, H: int, Hk: int, *without: str) -> dict[str, Any]:
    sizes = {"B": 1, "Sq": Sq, "Sk": Sk, "H": H, "Hk": Hk}
    return {"sizes": sizes, "options": {"return_lse": Sq % 2 == 1}, "without": without}


# Of sequences: one row; tails of blocks and tiles; several blocks and tiles; none. Of heads: more
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
    """The set that a word of the variable KERNELS means, and an expression over its kernels:
    `prog` and `prog_all` are short for sets, `64,32` are B_r and B_c."""
    if blocks := re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", word):
        return "all", f"B_r == {blocks[1]} and B_c == {blocks[2]}"
    return {"prog": "progression", "prog_all": "progression_all"}.get(word, word), None


def counting_inputs(sizes: Mapping[str, int], parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """q counts up from 0 along the rows of each head, k = -q and v = q; if fewer heads have
    keys, theirs are as the queries' heads. Of as many keys as queries, on the CPU.

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


def magnitude(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Any:
    """attention(q, k, |v|): of what is added up to each element."""
    return attention(q, k, v.abs(), causal=causal)
