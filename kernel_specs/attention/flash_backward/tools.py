"""Hooks of flash_backward for the tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from kernelmint.tools.bench import Problem

from runtime import KernelInfo

from ..tools.contenders import GRADIENTS as contenders
from ..tools.problems import Gradients, equal_sequences

__all__ = ["CASES", "contenders", "problems"]

# A random log-sum-exp would make probabilities far above 1, and gradients beyond fp16's range.
_CASE = {"B": 2, "Sq": 170, "H": 4, "Sk": 150, "Hk": 2}
CASES = ({"sizes": _CASE, "values": {"lse": (((6.0,) * 170,) * 4,) * 2}},)

_SIZES = {
    "cuda": ("16x1024", "8x2048", "4x4096", "2x8192", "1x16384"),
    "cpu": ("1x1024", "1x2048", "1x4096"),
}


def problems(kernels: Sequence[KernelInfo], device: torch.device, **values: Any) -> list[Problem]:
    """Returns sequences of about as many tokens in each cell: bf16 of d 64 and 128 unless `dtype`
    and `d_head` say otherwise, on a CPU f32 as well."""
    dtypes = ("bf16",) if device.type == "cuda" else ("f32", "bf16")
    values = {"dtype": dtypes, "d_head": (64, 128), **values}
    return equal_sequences(Gradients, kernels, _SIZES[device.type], **values)
