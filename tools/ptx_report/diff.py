"""What got better or worse between two reports, and whose doing it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.core.ptxas_rows import Row

# What is compared, the gravest first: the first that differs says whether a kernel got worse.
LABELS = {
    "unwritten": "reads of unwritten registers",
    "c75": "C75xx notes",
    "spill_bytes": "spill bytes",
    "used_registers": "registers",
    "stack_frame": "stack bytes",
    "smem": "shared memory bytes",
}
FIGURES = tuple(LABELS)


def figure(row: Row, name: str) -> int | None:
    """One of `FIGURES` of a row; None if the row does not hold it."""
    value: int | None = len(row.c75) if name == "c75" else getattr(row, name)
    return value


@dataclass(frozen=True)
class Change:
    """A kernel of two reports, or of one of them."""

    old: Row | None
    new: Row | None

    @property
    def row(self) -> Row:
        """The new row, the old one of a kernel that is gone."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def deltas(self) -> dict[str, tuple[int, int]]:
        """(old, new) of every figure that both rows hold and that differs, the gravest first."""
        if self.old is None or self.new is None:
            return {}
        found = {}
        for name in FIGURES:
            before, after = figure(self.old, name), figure(self.new, name)
            if before is not None and after is not None and before != after:
                found[name] = (before, after)
        return found

    @property
    def verdict(self) -> str:
        """worse, better, same, added or removed."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        for before, after in self.deltas.values():
            return "worse" if after > before else "better"
        return "same"

    @property
    def cause(self) -> str:
        """Whose doing a difference is, as far as the two rows' fingerprints tell."""
        old, new = self.old, self.new
        if old is None or new is None or not self.deltas:
            return ""
        if None in (old.toolchain, new.toolchain, old.code, new.code):
            return "unknown: a row lacks its fingerprints"
        if old.toolchain != new.toolchain:
            both = "" if old.code == new.code else ", and the code changed as well"
            return f"another compiler: {old.toolchain} -> {new.toolchain}{both}"
        return "the code changed" if old.code != new.code else "same code and compiler"


_ORDER = {"worse": 0, "removed": 1, "added": 2, "better": 3, "same": 4}


def compare(old: Iterable[Row], new: Iterable[Row]) -> list[Change]:
    """Every kernel of either report, worst first.

    Rows meet by name, kernel, architecture and kind; those that repeat (a template instantiated in
    two objects, or for two sets of arguments) meet in the
    order of their objects and arguments.
    """
    before, after = _grouped(old), _grouped(new)
    changes = []
    for name in {**before, **after}:
        olds, news = before.get(name, []), after.get(name, [])
        for index in range(max(len(olds), len(news))):
            changes.append(
                Change(
                    olds[index] if index < len(olds) else None,
                    news[index] if index < len(news) else None,
                )
            )
    return sorted(changes, key=_worst_first)


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        kernel = row.kernel if row.key else ""
        groups[row.kernel_config, kernel, row.arch or "", row.kind].append(row)
    for group in groups.values():
        if len(group) > 1:
            group.sort(key=lambda row: (row.source or "", row.arguments))
    return groups


def _worst_first(change: Change) -> tuple[object, ...]:
    deltas = change.deltas
    sizes = [-(deltas[name][1] - deltas[name][0]) if name in deltas else 0 for name in FIGURES]
    return (_ORDER[change.verdict], *sizes, change.row.kernel_config, change.row.arch or "")


def counts(changes: Sequence[Change]) -> str:
    """One line: how many got worse, better, and so on."""
    words = [f"{n} {verdict}" for verdict in _ORDER if (n := _count(changes, verdict))]
    return ", ".join(words) or "no kernels"


def _count(changes: Sequence[Change], verdict: str) -> int:
    return sum(change.verdict == verdict for change in changes)
