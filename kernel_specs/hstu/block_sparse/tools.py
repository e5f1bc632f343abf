"""Hooks of block_sparse for the tools."""

from __future__ import annotations

from typing import Any

import torch

from ..jagged import Padded
from ..tools import judge
from ..tools.bench import CONTENDERS as contenders
from ..tools.bench import problems
from ..tools.compare import main as compare

__all__ = ["CASES", "compare", "contenders", "differences", "problems"]

# One row; tails of blocks and tiles; several of both.
CASES = tuple(
    {"sizes": {"B": B, "T": T, "H": H}} for B, T, H in ((1, 1, 1), (2, 33, 2), (1, 130, 4))
)


def differences(problem: Any, results: tuple[torch.Tensor, ...]) -> list[Any]:
    """Compares lists by the oracle's scores, and outputs with the oracle's of the same lists."""
    o, lists = results
    tensors = [problem.tensors[name] for name in Padded._fields]
    return judge.differences(tensors, o, lists, problem.parameters)
