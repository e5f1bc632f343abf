"""Hooks of the tools for torch_scatter_segment_csr."""

from __future__ import annotations

import torch
from kernelmint.tools.comparison import Difference
from kernelmint.tools.problem import Problem

from .. import made

__all__ = ["CASES", "differences"]

# A thread a row (K of 1), and one an element.
CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 60, "K": columns, "P": 10},
        "options": {"return_arg": True} if reduce in ("min", "max") else {},
    }
    for reduce in ("sum", "mean", "min", "max")
    for columns in (1, 130)
)


def differences(problem: Problem, out: tuple[torch.Tensor, ...]) -> list[Difference]:
    """Returns the differences of the results."""
    src, ends = problem.tensors["src"], problem.tensors["indptr"][:, 1:].contiguous()
    places = torch.arange(src.shape[1], device=src.device).expand(len(src), -1).contiguous()
    rows = torch.searchsorted(ends, places, right=True)
    return made.differences(problem, out, rows[:, :, None].expand(src.shape))
