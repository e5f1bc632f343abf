"""Hooks of the tools for bnb_quantize_8bit."""

from __future__ import annotations

import torch
from kernelmint.tools.comparison import Difference, Tolerance, compare
from kernelmint.tools.problem import Problem

from ..rules import scaled

__all__ = ["CASES", "differences"]

CASES = tuple(
    {"parameters": {"block": block}, "sizes": {"N": 5001}, "options": {"blocksize": block}}
    for block in (64, 128, 256, 512, 1024, 2048, 4096)
)
# Upstream's quantiser on the CPU looks values of -1 to 1 up by 16 bits.
STEP = 2 / 65535


def differences(problem: Problem, out: tuple[torch.Tensor, ...]) -> list[Difference]:
    """Returns how much farther the chosen numbers of the table are than the nearest ones."""
    codes, absmax = out
    nearest, of_block = problem.expected
    x, table = problem.tensors["x"], problem.tensors["code"].double()
    values = scaled(x, of_block, problem.scalars["blocksize"])
    far, least = ((table[places.long()] - values).abs() for places in (codes, nearest))
    allowed = Tolerance(0.0, STEP if x.device.type == "cpu" else 2e-6)
    return [
        compare(far, least, name="codes", tolerance=allowed),
        compare(absmax, of_block, name="absmax", tolerance=Tolerance(0.0, 0.0)),
    ]
