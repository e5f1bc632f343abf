"""Hooks of the tools for torch_scatter_segment_csr."""

from __future__ import annotations

from typing import Any

import torch
from kernelmint.tools.bench import Call, Contender, Inputs
from kernelmint.tools.comparison import Difference
from kernelmint.tools.problem import Problem

from .. import made

__all__ = ["CASES", "contenders", "differences"]

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


def _upstream(problem: Any, inputs: Inputs) -> Call:
    import torch_scatter

    function = getattr(torch_scatter, f"segment_{problem.as_columns()['reduce']}_csr")
    return lambda: function(inputs["src"], inputs["indptr"])


contenders = {"torch_scatter": Contender(_upstream, None, "torch-scatter", "torch_scatter")}
