"""Changes between two reports: better or worse, and whose doing they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from codegen.core.ptxas_rows import Row
from codegen.core.words import counted

from .joining import group, pairs
from .occupancy import Occupancy, reserved

# Figures that are compared, the gravest first: the first that differs decides the verdict.
LABELS = {
    "unwritten": "reads of unwritten registers",
    "in_flight": "uses of registers in flight",
    "c75": "C75xx notes",
    "spill_bytes": "spill bytes",
    "used_registers": "registers",
    "stack_frame": "stack bytes",
    "smem": "shared memory bytes",
}
FIGURES = tuple(LABELS)
# Figures that are shown besides: they follow from the others, or do no harm by themselves.
DETAILS = {"barriers": "barriers", "occupancy": "occupancy %", "code_bytes": "code bytes"}
UNKNOWN = "unknown: a row lacks its fingerprints"  # whose doing a change is
ALL_LABELS = {**LABELS, **DETAILS}
_OF_BINARIES = {"object", "ptx"}  # kinds of rows that logs do not hold


def figure(row: Row, name: str) -> int | None:
    """Returns one of a row's figures; None if the row does not hold it."""
    value: int | None = len(row.c75) if name == "c75" else getattr(row, name)
    return value


def _declared(row: Row) -> int | None:
    """Returns the shared memory without the driver's, which only a binary's figure includes."""
    if row.smem is None or row.kind != "object":
        return row.smem
    return max(row.smem - reserved(row.arch), 0)


@dataclass(frozen=True)
class Change:
    """A kernel of two reports, or of one of them.

    Attributes:
        old: its row in the first.
        new: its row in the second.
        function: what tells the kernels of a configuration apart; None if there is one.
        occupancy: percent of the warps that a multiprocessor holds, before and after.
    """

    old: Row | None
    new: Row | None
    function: str | None = None
    occupancy: tuple[int | None, int | None] = (None, None)

    @property
    def row(self) -> Row:
        """Returns the new row; the old one of a kernel that is gone."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def name(self) -> str:
        """Returns the kernel's name, with its function if the configuration has several."""
        return " ".join(filter(None, (self.row.kernel_config, self.function)))

    def values(self, name: str) -> tuple[int | None, int | None]:
        """Returns a figure of both rows; None where it is unknown, or there is no row."""
        if name == "occupancy":
            return self.occupancy
        if name == "smem" and self.old and self.new and self.old.kind != self.new.kind:
            return _declared(self.old), _declared(self.new)
        old, new = (row and figure(row, name) for row in (self.old, self.new))
        return old, new

    def _differing(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        if self.old is None or self.new is None:
            return {}
        found = {}
        for name in names:
            before, after = self.values(name)
            if before is not None and after is not None and before != after:
                found[name] = (before, after)
        return found

    @property
    def deltas(self) -> dict[str, tuple[int, int]]:
        """Returns (old, new) of each figure that differs and that both rows hold, gravest first."""
        return self._differing(FIGURES)

    @property
    def details(self) -> dict[str, tuple[int, int]]:
        """Returns the same with barriers, occupancy and bytes of machine code."""
        return self._differing(ALL_LABELS)

    @property
    def verdict(self) -> str:
        """Returns worse, mixed, better, same, added or removed.

        Mixed: spills are unknown, and of registers and stack one grew and the other shrank.
        """
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        deltas = self.deltas
        if self._is_mixed(deltas):
            return "mixed"
        for before, after in deltas.values():
            return "worse" if after > before else "better"
        return "same"

    @property
    def is_worse(self) -> bool:
        """Returns whether the kernel got worse, or may have."""
        return self.verdict in ("worse", "mixed")

    def _is_mixed(self, deltas: dict[str, tuple[int, int]]) -> bool:
        if not {"used_registers", "stack_frame"} <= deltas.keys() or next(iter(deltas)) in (
            "unwritten", "in_flight", "c75", "spill_bytes",
        ):  # fmt: skip
            return False
        (registers, more), (stack, larger) = deltas["used_registers"], deltas["stack_frame"]
        return None in self.values("spill_bytes") and (more > registers) != (larger > stack)

    @property
    def cause(self) -> str:
        """Says whose doing a difference is, as far as the two rows' fingerprints tell."""
        old, new = self.old, self.new
        if old is None or new is None or not self.deltas:
            return ""
        if None in (old.toolchain, new.toolchain, old.code, new.code):
            return UNKNOWN
        if old.toolchain != new.toolchain:
            both = "" if old.code == new.code else ", and the code changed"
            return f"another compiler: {old.toolchain} -> {new.toolchain}{both}"
        return "the code changed" if old.code != new.code else "same code and compiler"

    @property
    def why(self) -> str:
        """Says the cause, what speaks against the verdict, and the name that the kernel had."""
        cause = "" if self.cause == UNKNOWN else self.cause  # `notes` says so once
        return "; ".join(filter(None, (cause, self._against, self._renamed)))

    @property
    def _against(self) -> str:
        deltas = self.deltas
        if self.verdict == "mixed":
            return "spills are unknown: more registers may be fewer spills"
        if not deltas:
            return ""
        (first, (before, after)), *others = deltas.items()
        opposed = [LABELS[n] for n, (old, new) in others if (new > old) != (after > before)]
        turn = "more" if after < before else "fewer"
        return f"by {LABELS[first]}, though {turn} {' and '.join(opposed)}" if opposed else ""

    @property
    def _renamed(self) -> str:
        if self.old is None or self.new is None:
            return ""
        was = self.old.kernel_config
        return f"was {was}" if was != self.new.kernel_config else ""


VERDICTS = ("worse", "mixed", "removed", "added", "better", "same")
_ORDER = {verdict: place for place, verdict in enumerate(VERDICTS)}


def compare(
    old: Iterable[Row],
    new: Iterable[Row],
    occupancy: Callable[[Row], Occupancy | None] = lambda row: None,
) -> list[Change]:
    """Returns every kernel of either report, worst first: `joining.pairs` says which is which.

    Args:
        old: the rows of the first report.
        new: the rows of the second.
        occupancy: of a row, if it is known.
    """

    def percent(row: Row | None) -> int | None:
        known = row and occupancy(row)
        return round(100 * known.fraction) if known else None

    changes = [
        Change(before, after, occupancy=(percent(before), percent(after)))
        for before, after in pairs(*_comparable(list(old), list(new)))
    ]
    kernels: dict[Hashable, list[Row]] = defaultdict(list)
    for change in changes:
        kernels[change.row.key, group(change.row)].append(change.row)
    told = (
        replace(change, function=told_apart(row, kernels[row.key, group(row)]))
        for change in changes
        for row in [change.row]
    )
    return sorted(told, key=_worst_first)


def _comparable(old: list[Row], new: list[Row]) -> tuple[list[Row], list[Row]]:
    """Returns the rows that both reports may have: beside binaries, which have a row for each
    kernel, neither a log's device functions nor nvlink's totals; beside logs no PTX."""
    if not old or not new:
        return old, new
    both = [{row.kind for row in rows} for rows in (old, new)]
    others: set[str] = set()
    if any(kinds <= _OF_BINARIES for kinds in both):
        others |= {"function", "link"}
    if any(kinds.isdisjoint(_OF_BINARIES) for kinds in both):
        others.add("ptx")
    old, new = ([row for row in rows if row.kind not in others] for rows in (old, new))
    return old, new


def told_apart(row: Row, kernels: Sequence[Row]) -> str | None:
    """Returns a name that tells a kernel from the others of its configuration, with those arguments
    of its template that differ. None if there are no others, and for foreign kernels."""
    if row.key is None or len(kernels) < 2:
        return None
    same = [other.arguments for other in kernels if other.kernel == row.kernel]
    own = row.arguments if len(same) > 1 else []
    telling = [own[i] for i in range(len(own)) if any(o[i : i + 1] != [own[i]] for o in same)]
    return f"{row.kernel}<{', '.join(telling)}>" if telling else row.kernel


def _worst_first(change: Change) -> tuple[object, ...]:
    deltas = change.deltas
    sizes = [-(deltas[name][1] - deltas[name][0]) if name in deltas else 0 for name in FIGURES]
    return (_ORDER[change.verdict], *sizes, change.name, change.row.arch or "")


def describe(change: Change) -> str:
    """Says what changed: `255 registers (was 240), 84 spill bytes (was 0)`."""
    return ", ".join(
        f"{after} {LABELS[name]} (was {before})" for name, (before, after) in change.deltas.items()
    )


def counts(changes: Sequence[Change]) -> str:
    """Says in one line how many kernels got worse, better, and so on."""
    number = Counter(change.verdict for change in changes)
    words = [f"{number[verdict]} {verdict}" for verdict in VERDICTS if number[verdict]]
    return ", ".join(words) or "no kernels"


def notes(changes: Sequence[Change]) -> list[str]:
    """Returns remarks on all changes together: `sums`, and how many causes are unknown."""
    parts = sums(changes)
    if unknown := sum(change.cause == UNKNOWN for change in changes):
        parts.append(f"{counted(unknown, 'cause')} unknown: rows lack fingerprints")
    return parts


def sums(changes: Sequence[Change]) -> list[str]:
    """Returns the bytes of machine code and the seconds of ptxas, before and after, if each kernel
    has them."""
    parts = []
    for name, unit, scale in (
        ("code_bytes", "bytes of code", 1.0),
        ("compile_time_ms", "s of ptxas", 1e-3),
    ):
        old, new = _sum((c.old for c in changes), name), _sum((c.new for c in changes), name)
        if old and new:
            digits = 0 if name == "code_bytes" else 1
            of_both = f"{scale * old:,.{digits}f} → {scale * new:,.{digits}f}"
            parts.append(f"{of_both} {unit} ({new / old - 1:+.1%})")
    return parts


def _sum(rows: Iterable[Row | None], name: str) -> float | None:
    values = [getattr(row, name) for row in rows if row and row.kind in ("kernel", "object")]
    return None if None in values else sum(values)
