"""debug_pt, debug_cpu and debug_cuda: every intermediate as text, and in full as .npz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from kernelmint.tools.text import number_lines
from torch import Tensor

from .trace import Step

Blocks = Mapping[tuple[int, int], Iterable[Step]]  # by head and block of queries


def write(folder: Path, name: str, blocks: Blocks, whole: Mapping[tuple[int, str], Tensor]) -> None:
    """Writes `name`.txt and `name`.npz.

    Args:
        folder: where; it is made if it does not exist.
        name: of the files, without a suffix.
        blocks: the steps of each block of queries.
        whole: tensors [Sq, d_head] of a whole head, by head and name: O_full and O_ref.

    The text has a line for each tensor, with what it is of and its shape, and then its numbers:
    groups of 8, two decimals. The .npz holds the same tensors in full precision, named
    head<h>/query<i>/key<j>/<name>, head<h>/query<i>/O_final and head<h>/<name>.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    with (folder / f"{name}.txt").open("w", encoding="utf-8") as file:

        def put(path: str, value: Tensor) -> None:
            file.write(f"{path} {list(value.shape)}\n")
            file.writelines(f"{line}\n" for line in number_lines(value))
            file.write("\n")
            arrays[path] = _array(value)

        for (head, query_block), steps in blocks.items():
            for step in steps:
                place = f"head{head}/query{query_block}/"
                put(
                    place + (f"key{step.block}/" if step.block >= 0 else "") + step.name, step.value
                )
        for (head, tensor), value in whole.items():
            put(f"head{head}/{tensor}", value)
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)


def _array(value: Tensor) -> np.ndarray:
    """Converts a tensor for numpy, which has no bfloat16; f32 holds each of its values."""
    wide = value if value.element_size() >= 4 else value.float()
    return wide.cpu().numpy()
