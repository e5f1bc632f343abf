"""Hooks of flash_dropout_backward for the tools."""

from __future__ import annotations

from ..flash_dropout.tools import dropping
from ..flash_prefill_backward.tools import CASES as _CASES

__all__ = ["CASES"]

CASES = tuple(map(dropping, _CASES))
