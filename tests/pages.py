"""What README and the docs tell people to type, as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
_PROGRAMS = "cd export git kernelmint make nvcc pip pre-commit ptx-report pytest python source"
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{_PROGRAMS.replace(' ', '|')})(?: .*)?")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)


def steps(page: Path) -> list[str]:
    """A page's commands and its examples in Python, in their order, each as a shell runs it.

    Commands are lines of indented blocks and of ```sh; in a block that shows output, too, those
    behind a `$`. A ```python block that begins with a docstring is a file, not an example.
    """
    found: list[str] = []
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    for language, fenced, indented in _BLOCK.findall(text):
        if language == "python" and not fenced.startswith('"""'):
            found.append(f"python - <<'END'\n{fenced}END")
        elif language in ("", "sh", "console"):
            lines = [line.strip() for line in (fenced or indented).splitlines()]
            typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
            found += [line for line in typed if _COMMAND.fullmatch(line)]
    return found


def block(page: Path, first_line: str) -> str:
    """The indented block of a page that begins with this line."""
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^    {re.escape(first_line)}\n(?:    .*\n)*", text, re.MULTILINE)
    return re.sub("^    ", "", found, flags=re.MULTILINE)
