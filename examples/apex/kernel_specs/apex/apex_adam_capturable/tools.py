"""The calls that apex_adam_capturable's kernels are checked with."""

from __future__ import annotations

import functools

from .. import made
from .reference import magnitudes as magnitude

__all__ = ["CASES", "differences", "magnitude"]

CASES = made.cases()
differences = functools.partial(made.differences, rounded=True)
