"""The matrix's results: a row each in docs/matrix.csv, and the table of docs/tested.md."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from codegen.ptxas.files import write_text

from .work import ROOT

CSV = ROOT / "docs/matrix.csv"
PAGE = ROOT / "docs/tested.md"
_TABLE = re.compile(r"^\| row \| result \|.*\n(\|.*\n)+", re.MULTILINE)
_TEXTS = (":(exclude)docs", ":(exclude)*.md")  # files that change no result
CHANGED = "+"  # after a commit: of a checkout with changes


class Outcome(NamedTuple):
    """The result of a row's check."""

    result: str  # run, compiled, failed, absent
    detail: str


class Row(NamedTuple):
    """A row of the matrix, as the file holds it."""

    name: str  # torch:2.4
    result: str
    detail: str  # versions and checks; or why it failed, or could not be had
    seconds: int
    machine: str
    commit: str
    date: str


def read(path: Path) -> dict[str, Row]:
    """Returns the rows of a file by name; an absent file has no rows. Raises ValueError."""
    if not path.exists():
        return {}
    header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8"))) or [[]]
    if tuple(header) != Row._fields or any(len(line) != len(header) for line in lines):
        raise ValueError(f"{path}: expected the columns {', '.join(Row._fields)} in every line")
    rows = (Row._make([*line[:3], int(line[3]), *line[4:]]) for line in lines)
    return {row.name: row for row in rows}


def write(path: Path, page: Path, rows: Iterable[Row]) -> None:
    """Writes rows into the file, and into the page's table. Raises ValueError for a page without
    one."""
    rows = list(rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([Row._fields, *rows])
    before = page.read_text(encoding="utf-8")
    after, count = _TABLE.subn(lambda _: table(rows), before, count=1)
    if not count:
        raise ValueError(f"{page}: no table in it that begins `| row | result |`")
    write_text(path, text.getvalue())
    write_text(page, after)


def table(rows: Iterable[Row]) -> str:
    """Returns the rows as a table in Markdown."""
    lines = [["row", "result", "what", "on", "commit"], ["---"] * 5]
    for row in rows:
        detail = row.detail.replace("|", "\\|")
        result = {"absent": "not had"}.get(row.result, row.result)
        lines.append([f"`{row.name}`", result, detail, row.machine, f"{row.commit}, {row.date}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def commit() -> str:
    """Returns the checkout's commit, with a sign if files of a build differ from it."""
    head = _git("rev-parse", "--short=7", "HEAD").stdout.strip()
    return head if _git("diff", "--quiet", "HEAD", "--", ".", *_TEXTS).returncode == 0 else (
        head + CHANGED
    )  # fmt: skip


def is_done(row: Row | None) -> bool:
    """Returns whether a row was run or compiled at a commit from which only texts differ."""
    if row is None or row.result not in {"run", "compiled"} or row.commit.endswith(CHANGED):
        return False
    return _git("diff", "--quiet", row.commit, "--", ".", *_TEXTS).returncode == 0


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
