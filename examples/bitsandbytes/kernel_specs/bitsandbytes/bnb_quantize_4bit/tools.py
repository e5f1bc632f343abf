"""Hooks of the tools for bnb_quantize_4bit."""

from __future__ import annotations

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from kernelmint.tools.problem import Problem

from ..rules import numbers_of, scaled

__all__ = ["CASES", "differences"]

CASES = tuple(
    {"parameters": {"block": block}, "sizes": {"N": 5001}, "options": {"blocksize": block}}
    for block in (32, 64, 128, 256, 512, 1024, 2048, 4096)
)


def differences(problem: Problem, out: tuple[torch.Tensor, ...]) -> list[Difference]:
    """Returns how much farther the chosen codes' numbers are than the nearest ones: upstream's
    thresholds have 6 digits, and its kernel multiplies by a reciprocal."""
    codes, absmax = out
    nearest, of_block = problem.expected
    values = scaled(problem.tensors["x"], of_block, problem.scalars["blocksize"])
    far, least = (
        (numbers_of(both, problem.parameters["quant_type"])[: len(values)] - values).abs()
        for both in (codes, nearest)
    )
    return [
        compare(far, least, name="codes", tolerance=Tolerance(0.0, 2e-6)),
        compare(absmax, of_block, name="absmax", tolerance=Tolerance(0.0, 0.0)),
    ]
