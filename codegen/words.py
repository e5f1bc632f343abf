"""How a count reads. The standard library alone."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """`1 kernel`, `2 kernels`, `1,000 kernels`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
