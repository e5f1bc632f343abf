"""Hooks of the tools for torch_scatter_scatter."""

from __future__ import annotations

import torch
from kernelmint.tools.comparison import Difference
from kernelmint.tools.problem import Problem

from .. import made
from .reference import ROWS

__all__ = ["CASES", "differences"]

CASES = tuple(
    {
        "parameters": {"reduce": reduce},
        "sizes": {"B": 2, "E": 60, "K": columns, "N0": ROWS},
        "options": {"N": ROWS} | ({"return_arg": True} if reduce in ("min", "max") else {}),
    }
    for reduce in ("mul", "min", "max")
    for columns in (1, 130)
)


def differences(problem: Problem, out: tuple[torch.Tensor, ...]) -> list[Difference]:
    """Returns the differences of the results."""
    return made.differences(problem, out, problem.tensors["index"])
