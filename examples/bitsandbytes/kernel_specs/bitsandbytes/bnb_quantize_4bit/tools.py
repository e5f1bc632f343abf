"""Hooks of the tools for bnb_quantize_4bit."""

from __future__ import annotations

__all__ = ["CASES"]

CASES = tuple(
    {"parameters": {"block": block}, "sizes": {"N": 5001}, "options": {"blocksize": block}}
    for block in (32, 64, 128, 256, 512, 1024, 2048, 4096)
)
