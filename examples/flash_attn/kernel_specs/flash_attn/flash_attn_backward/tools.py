"""What the tools know of flash_attn_backward beyond its spec and its reference."""

from ..cases import cases

__all__ = ["CASES"]

CASES = tuple(cases(dropout=False))  # the random numbers of dropout are a kernel's own
