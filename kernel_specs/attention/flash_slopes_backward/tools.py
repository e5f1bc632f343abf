"""Hooks of flash_slopes_backward for the tools."""

from __future__ import annotations

from typing import Any

from ..flash_prefill_backward.tools import CASES as _CASES

__all__ = ["CASES"]


def _biased(case: dict[str, Any]) -> dict[str, Any]:
    """Returns flash_prefill_backward's case of three sequences, with slopes."""
    return {**case, "values": {**case["values"], "alibi_slopes": ((0.1, 0.02, 0.3, 0.0),) * 3}}


CASES = tuple(map(_biased, _CASES))
