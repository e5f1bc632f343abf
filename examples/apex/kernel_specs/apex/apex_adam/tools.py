"""The calls that apex_adam's kernels are checked with."""

from __future__ import annotations

from ..made import cases, differences
from .reference import magnitude

__all__ = ["CASES", "differences", "magnitude"]

CASES = cases(lr=1e-2, step=3)
