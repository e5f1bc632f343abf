"""What the tools know of block_sparse beyond its spec and its reference."""

from __future__ import annotations

from typing import Any

import torch

from ..jagged import Padded
from ..tools import judge
from ..tools.bench import main as bench
from ..tools.compare import main as compare

__all__ = ["CASES", "bench", "compare", "differences"]

# One row; tails of blocks and tiles; several of both.
CASES = tuple(
    {"sizes": {"B": B, "T": T, "H": H}} for B, T, H in ((1, 1, 1), (2, 33, 2), (1, 130, 4))
)


def differences(problem: Any, results: tuple[torch.Tensor, ...]) -> list[Any]:
    """By the oracle's scores of what was selected, and with that selection."""
    o, lists = results
    tensors = [problem.tensors[name] for name in Padded._fields]
    return judge.differences(tensors, o, lists, problem.parameters)
