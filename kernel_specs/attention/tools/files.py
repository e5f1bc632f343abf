"""debug_pt, debug_cpu and debug_cuda: every intermediate as text, and in full as .npz."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from kernelmint.tools.text import number_lines
from torch import Tensor


def write(folder: Path, name: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes `name`.txt and `name`.npz.

    Args:
        folder: where; it is made if it does not exist.
        name: of the files, without a suffix.
        tensors: what each is of, as a path, and its values.

    The text has a line for each tensor, with its path and its shape, and then its numbers: groups
    of 8, two decimals. The .npz holds the same tensors in full precision, under the same paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    with (folder / f"{name}.txt").open("w", encoding="utf-8") as file:
        for path, value in tensors:
            file.write(f"{path} {list(value.shape)}\n")
            file.writelines(f"{line}\n" for line in number_lines(value))
            file.write("\n")
            arrays[path] = _array(value)
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)


def _array(value: Tensor) -> np.ndarray:
    """Converts a tensor for numpy, which has no bfloat16; f32 holds each of its values."""
    wide = value if value.element_size() >= 4 else value.float()
    return wide.cpu().numpy()
