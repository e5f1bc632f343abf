"""Hooks of hstu_bsa for the tools."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from kernelmint.tools.comparison import refused

from ..jagged import Padded
from ..tools import judge

__all__ = ["CASES", "differences"]


def _case(H: int, *lengths: int) -> dict[str, Any]:
    offsets = [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    return {
        "sizes": {"N": offsets[-1], "H": H, "E": len(offsets)},
        "values": {"x_offsets": offsets},
    }


# Sequences of one row; without any; with tails of blocks and tiles; of several of both.
CASES = (_case(1, 1), _case(2, 33, 0, 1, 64), _case(4, 130))


def differences(problem: Any, results: tuple[torch.Tensor, ...]) -> list[Any]:
    """Returns the differences of each sequence, taken as a batch of one of block_sparse."""
    o, lists = results
    p, compared = problem.parameters, []
    tensors = [problem.tensors[name] for name in Padded._fields]
    for start, stop in itertools.pairwise(problem.tensors["x_offsets"].tolist()):
        blocks = min(p["block_count"], -(-(stop - start) // p["block_size"]))
        if bool((lists[start:stop, :, blocks:] != -1).any()):
            compared.append(refused("block_indices", "a block past the last is listed"))
        if start < stop:
            listed = lists[start:stop, :, :blocks].permute(1, 0, 2)[None].contiguous()
            own = [tensor[start:stop][None] for tensor in tensors]
            compared += judge.differences(own, o[start:stop][None], listed, p)
    return compared
