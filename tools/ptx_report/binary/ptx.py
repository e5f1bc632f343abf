"""The kernels of PTX: how many bytes of its text each takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from codegen.core.ptxas_rows import Row

_FUNCTION = re.compile(rb"\.(?:entry\s+([\w$]+)|func\b)")
_TARGET = re.compile(rb"^\s*\.target\s+sm_(\w+)", re.MULTILINE)
_HEAD = 1 << 14  # bytes that hold the target
_LINE = 200  # bytes that directives before a function take


def kernels(text: bytes, arch: str | None, source: str) -> Iterator[Row]:
    """Yields the rows of the kernels of PTX, each with its text up to the next function.

    Args:
        text: the PTX.
        arch: compute_90a, if what holds the PTX says so.
        source: what to call its file.
    """
    if arch is None and (target := _TARGET.search(text, 0, _HEAD)):
        arch = f"compute_{target[1].decode()}"
    matches = [match for match in _FUNCTION.finditer(text) if _is_directive(text, match.start())]
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=False):
        if match[1]:
            size = end - match.start()
            yield Row(match[1].decode(), "ptx", arch, source=source, ptx_bytes=size)


def _is_directive(text: bytes, at: int) -> bool:
    """Returns whether nothing but directives, `.visible`, stand before a place in its line."""
    begin = text.rfind(b"\n", max(at - _LINE, 0), at) + 1
    is_near = begin > 0 or at < _LINE
    return is_near and all(word.startswith(b".") for word in text[begin:at].split())
