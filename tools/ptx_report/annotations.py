"""Changes for the worse where reviewers see them: SARIF, GitHub's annotations; at a spec's line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from codegen.core.ptxas_rows import Row
from codegen.ptxas.fingerprints import Manifest

from .conditions import Failure
from .diff import ALL_LABELS, Change, describe

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MOST = 10  # annotations of a kind that GitHub shows of a step
_SET = re.compile(r"^  default:", re.MULTILINE)
_SETS = re.compile(r"^sets:", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """A kernel that got worse; an error if `--fail-on` names it."""

    rule: str  # the figure
    row: Row | None
    message: str
    is_error: bool

    @property
    def level(self) -> str:
        """Returns the name that SARIF and GitHub have for it."""
        return "error" if self.is_error else "warning"


def findings(changes: Iterable[Change], failures: Sequence[Failure]) -> list[Finding]:
    """Returns the failures, then the other kernels that got worse."""
    failed = {id(failure.change) for failure in failures}
    found = [
        Finding(f.condition.name, f.change.row if f.change else None, str(f), is_error=True)
        for f in failures
    ]
    for change in changes:
        if change.is_worse and id(change) not in failed:
            text = (
                f"{change.name} [{change.row.arch or 'architecture unknown'}]: {describe(change)}"
            )
            message = "; ".join(filter(None, (text, change.why)))
            found.append(Finding(next(iter(change.deltas)), change.row, message, is_error=False))
    return found


class Places:
    """Where a kernel is written: the spec of its target, at its default set."""

    def __init__(self, manifest: Manifest | None) -> None:
        self._manifest = manifest
        self._root = next(
            (folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / ".git").exists()),
            Path.cwd(),
        )
        self._found: dict[str, tuple[str, int]] = {}

    def of(self, row: Row | None) -> tuple[str, int] | None:
        """Returns a path within the repository, and a line; None for a kernel without a spec."""
        if self._manifest is None or row is None:
            return None
        for owner in self._manifest.owners(row):
            if target := self._manifest.targets.get(owner):
                if target.spec not in self._found:
                    self._found[target.spec] = self._place(target.spec)
                return self._found[target.spec]
        return None

    def _place(self, spec: str) -> tuple[str, int]:
        assert self._manifest is not None
        folders = [*(folder.parent for folder in self._manifest.spec_dirs), Path.cwd(), self._root]
        path = next((place for f in folders if (place := f / spec).is_file()), None)
        if path is None:
            return spec, 1
        text = path.read_text(encoding="utf-8", errors="replace")
        match = _SET.search(text) or _SETS.search(text)
        name = path.resolve()
        inside = name.is_relative_to(self._root.resolve())
        shown = name.relative_to(self._root.resolve()).as_posix() if inside else spec
        return shown, 1 + text.count("\n", 0, match.start() if match else 0)


def sarif_text(found: Sequence[Finding], places: Places) -> str:
    """Returns a log of SARIF 2.1.0 with one run: a result for each finding."""
    rules = list(dict.fromkeys(finding.rule for finding in found))
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "ptx-report",
                "rules": [
                    {"id": rule, "shortDescription": {"text": f"More {ALL_LABELS.get(rule, rule)}"}}
                    for rule in rules
                ],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, rules, places) for finding in found],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(finding: Finding, rules: Sequence[str], places: Places) -> dict[str, Any]:
    row = finding.row
    who = [finding.rule, *([row.kernel_config, row.kernel, row.arch or ""] if row else [])]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.level,
        "message": {"text": finding.message},
        "partialFingerprints": {
            "kernel/v1": hashlib.sha256("\0".join(who).encode()).hexdigest()[:16]
        },
    }
    location: dict[str, Any] = {}
    if place := places.of(row):
        path, line = place
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(PurePosixPath(path).as_posix())},
            "region": {"startLine": line},
        }
    if row is not None:
        location["logicalLocations"] = [
            {"fullyQualifiedName": row.kernel_config, "kind": "function"}
        ]
    if location:
        result["locations"] = [location]
    return result


def github_lines(found: Sequence[Finding], places: Places) -> list[str]:
    """Returns GitHub's commands of a workflow: as many annotations of each kind as it shows, and a
    notice of how many more there are."""
    lines = []
    for level in ("error", "warning"):
        own = [finding for finding in found if finding.level == level]
        for finding in own[:_MOST]:
            place = places.of(finding.row)
            where = f" file={_property(place[0])},line={place[1]}," if place else " "
            lines.append(f"::{level}{where}title=ptx-report::{_data(finding.message)}")
        if len(own) > _MOST:
            lines.append(f"::notice title=ptx-report::{len(own) - _MOST} more {level}s of kernels")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
