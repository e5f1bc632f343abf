"""The calls that apex_adam_master's kernels are checked with."""

from __future__ import annotations

from ..made import cases, differences

__all__ = ["CASES", "differences"]

CASES = cases()
