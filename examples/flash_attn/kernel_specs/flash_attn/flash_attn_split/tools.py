"""Hooks of the tools for flash_attn_split."""

from ..cases import cases

__all__ = ["CASES"]

CASES = tuple(
    {**case, "options": {**case["options"], "num_splits": splits}}
    for is_split, splits in ((False, 1), (True, 3))
    for case in cases(split=is_split)
)
