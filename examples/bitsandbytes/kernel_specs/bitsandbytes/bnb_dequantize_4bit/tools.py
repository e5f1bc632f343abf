"""Hooks of the tools for bnb_dequantize_4bit."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = (
    {"sizes": {"P": 2501, "B": 79}, "options": {"n": 5002}},
    {"sizes": {"P": 2501, "B": 157}, "options": {"blocksize": 32, "n": 5001}},
    {"sizes": {"P": 2501, "B": 2}, "options": {"blocksize": 4096, "n": 5001}},
)
