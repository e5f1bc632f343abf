"""The commands of README and the docs, as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAMS = "cd export git kernelmint make nvcc pip pre-commit ptx-report pytest python source"
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{_PROGRAMS.replace(' ', '|')})(?: .*)?")
_SHELLS = {"sh", "console"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """What a page tells people to type, in its order: lines of indented blocks and of ```sh; in a
    block that shows output, too, those behind a `$`."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    shell = _FENCE.sub(lambda fence: _indented(fence[2]) if fence[1] in _SHELLS else "", text)
    found = []
    for block in re.findall(r"(?:^    .*\n)+", shell, flags=re.MULTILINE):
        lines = [line.strip() for line in block.splitlines()]
        typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
        found += [line for line in typed if _COMMAND.fullmatch(line)]
    return found


def _indented(block: str) -> str:
    return "".join(f"    {line}\n" for line in block.splitlines())


def block(page: Path, first_line: str) -> str:
    """The indented block of a page that begins with this line."""
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^    {re.escape(first_line)}\n(?:    .*\n)*", text, re.MULTILINE)
    return re.sub("^    ", "", found, flags=re.MULTILINE)
