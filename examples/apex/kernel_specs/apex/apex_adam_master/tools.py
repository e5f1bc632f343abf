"""The calls that apex_adam_master's kernels are checked with."""

from __future__ import annotations

from ..made import cases, differences
from .reference import magnitude

__all__ = ["CASES", "differences", "magnitude"]

CASES = cases()
