"""The record of one step: what a traced kernel writes for a block of queries and one of keys.

The layout is that of kernel_specs/flash_forward/trace.h, and the names and their order are those
of `simulate` in flash_forward's reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

STEP = ("Q", "K", "S_pre_scaling", "M", "L", "P", "V", "O_scale", "O")
FINAL = "O_final"


def shapes(parameters: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a record, in its order, for a kernel of these B_r, B_c and d_head."""
    B_r, B_c, d_head = (parameters[name] for name in ("B_r", "B_c", "d_head"))
    rows = {
        "Q": (B_r, d_head),
        "K": (B_c, d_head),
        "S_pre_scaling": (B_r, B_c),
        "P": (B_r, B_c),
        "V": (B_c, d_head),
        "O": (B_r, d_head),
    }
    return {name: rows.get(name, (B_r,)) for name in STEP}


def floats(parameters: Mapping[str, Any]) -> int:
    """How many f32 a record takes."""
    return sum(math.prod(shape) for shape in shapes(parameters).values())


def unpack(record: Tensor, parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a record, a vector of `floats` numbers."""
    extents = shapes(parameters)
    parts = torch.split(record, [math.prod(shape) for shape in extents.values()])
    return {
        name: part.view(shape) for (name, shape), part in zip(extents.items(), parts, strict=True)
    }
