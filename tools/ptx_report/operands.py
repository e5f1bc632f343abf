"""Operands of `ptx-report diff`: files, folders, the installed packs, and the baselines that a
revision of git holds."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path

from codegen.core.ptxas_rows import ReportError, Row, parse_csv
from codegen.ptxas.fingerprints import Manifest

from . import report as reports
from .report import Report

BASELINE = ".ptxas.csv"
INSTALLED = "installed"


def read(name: str) -> Report:
    """Reads what a user names: `installed`, a file or folder as `ptx-report` reads, REV or REV:PATH
    of git. Raises ReportError."""
    if name == INSTALLED and not Path(name).exists():
        return _installed()
    if name == "-" or Path(name).exists():
        return reports.read([name])
    revision, _, path = name.partition(":")
    if (
        _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        is None
    ):
        raise ReportError(f"{name}: no such file or folder, and no revision of git here")
    return Report(_committed(revision, path), inputs=[name], is_committed=True)


def _installed() -> Report:
    """Returns the report of the installed packs; in a project's folder, of its families only."""
    report = reports.installed()
    if (path := reports.project_manifest()) is not None:
        manifest = Manifest(path)
        families = {family for family, _ in manifest.targets}
        report.rows = [
            row
            for row in report.rows
            if any(family in families for family, _ in manifest.owners(row))
        ]
    return report


def _committed(revision: str, path: str) -> list[Row]:
    """Returns the rows of a revision's baselines, or of one file of it."""
    listed = _git("ls-tree", "-r", "-z", "--full-tree", "--name-only", revision) or ""
    names = [n for n in listed.split("\0") if (n == path if path else n.endswith(BASELINE))]
    if path and not names:
        raise ReportError(f"{revision}:{path}: the revision has no such file")
    rows = []
    for name in names:
        text = _git("show", "--end-of-options", f"{revision}:{name}")
        if text is None:
            raise ReportError(f"{revision}:{name}: git cannot show it")
        rows += parse_csv(text, f"{revision}:{name}")
    return rows


def _git(*arguments: str) -> str | None:
    """Returns what git prints; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise ReportError(f"git: {error.strerror or error}") from error
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def narrowed(base: Report, head: Report) -> list[Row]:
    """Returns the rows of `base` that are to be compared with `head`.

    Committed baselines are of several compilers and architectures: of each kernel the row of head's
    compiler is taken, else that of the newest, and only for the targets and architectures that head
    has.
    """
    if not base.is_committed or head.is_committed:
        return base.rows
    built = {(_target(row), row.arch) for row in head.rows}
    toolchains = {row.toolchain for row in head.rows}
    same: dict[Hashable, list[Row]] = defaultdict(list)
    for row in base.rows:
        if (_target(row), row.arch) in built:
            same[row.symbol, row.arch].append(row)
    return [_of_compiler(rows, toolchains) for rows in same.values()]


def _of_compiler(rows: Iterable[Row], toolchains: set[str | None]) -> Row:
    return max(rows, key=lambda row: (row.toolchain in toolchains, version(row.toolchain or "")))


def version(toolchain: str) -> list[int]:
    """Returns the numbers of a compiler's version, to compare."""
    return [int(number) for number in re.findall(r"\d+", toolchain)]


def _target(row: Row) -> str | None:
    return row.key and row.key.rpartition(".")[0]
