"""Hooks of the tools for flash_attn_backward."""

from ..cases import cases

__all__ = ["CASES"]

CASES = tuple(cases(dropout=False))  # the random numbers of dropout are a kernel's own
