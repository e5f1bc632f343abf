"""Writes docs/headers.md: the declarations and comments of the headers that kernels use.

    python tools/build/headers_page.py

`make docs` runs this. Standard library only.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/headers.md"
HEADERS = (
    "tensor_view.h", "tensor_list.h", "tensor_chunks.cuh", "integers.h", "parallel.h",
    "cpu_vector.h", "cpu_convert.h",
)  # fmt: skip
OPENING = """\
# Headers

This page is for those who write kernels: it has the declarations of headers in `runtime/include`
that kernels may use, and their comments. `python tools/build/headers_page.py` writes it from the
headers. [Launches](launches.md#a-launch-in-the-header) shows `launch.h`, `cuda_launch.cuh` and
`release_after_work.cuh`.
"""
_NOISE = re.compile(r"KERNELMINT_(ALWAYS_INLINE|HOST_DEVICE)\s*|\binline (?=constexpr)")
_CLASS = re.compile(r"(template <.*> )?class ")
_HIDDEN = ("namespace", "inline namespace", "static_assert", "private:", "public:", "}", "friend")


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """Yields each declaration of a header outside of functions, and the comment on it."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    comment: list[str] = []
    is_public, at = True, 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        if not line or line.startswith(_HIDDEN):
            is_public = line.startswith("public:") or (is_public and line != "private:")
            is_public = is_public or line.startswith("};")  # the end of a class
            comment = []
            continue
        code, remark = _split(line)
        while not re.search(r"[;{}]$", code):
            more, other = _split(lines[at].strip())
            code, remark, at = f"{code} {more}", remark or other, at + 1
        is_type = re.search(r"\b(struct|class)\b[^(;]*\{$", code) is not None
        depth = code.count("{") - code.count("}")
        while not is_type and depth > 0:
            depth += lines[at].count("{") - lines[at].count("}")
            at += 1
        if is_public:
            head = code if code.endswith(";") and "{" not in code else code.partition(" {")[0]
            head = _NOISE.sub("", re.sub(r"\) : \w+[({].*", ")", head)).strip(" ;")
            yield head, " ".join([*comment, *([remark] if remark else [])])
        is_public, comment = is_public and not (is_type and _CLASS.match(code)), []


def _split(line: str) -> tuple[str, str]:
    """Returns a line's code, and the comment after it."""
    code, _, remark = line.partition("//")
    return code.strip(), remark.strip()


def page() -> str:
    """Returns the page."""
    parts = [OPENING]
    for name in HEADERS:
        text = (ROOT / "runtime/include" / name).read_text(encoding="utf-8")
        opening, _, rest = text.partition("#pragma once\n")
        about = " ".join(" ".join(line.removeprefix("//") for line in opening.splitlines()).split())
        rows: dict[str, tuple[list[str], str]] = {}
        for code, comment in declarations(rest):
            declared, equals, value = code.partition(" = ")
            if equals and code.startswith("constexpr"):  # one value for each instruction set
                rows.setdefault(declared, ([], comment))[0].append(value)
            else:
                rows[code] = ([], comment)
        lines = [
            f"| `{code}{' = ' if values else ''}{' or '.join(dict.fromkeys(values))}` | {comment} |"
            for code, (values, comment) in rows.items()
        ]
        opened = [f"## {name}\n", *textwrap.wrap(about, 138), "", "| | |", "|---|---|"]
        parts.append("\n".join([*opened, *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
