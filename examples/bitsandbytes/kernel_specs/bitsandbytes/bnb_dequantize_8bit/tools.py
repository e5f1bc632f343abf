"""Hooks of the tools for bnb_dequantize_8bit."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = (
    {"sizes": {"N": 5001, "B": 20}},
    {"sizes": {"N": 5001, "B": 2}, "options": {"blocksize": 4096}},
)
