"""Records under construction, and which of them takes a line that names no function.

Lines of two processes may interleave, and lines may be missing: then there is no telling which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from codegen.core.ptxas_rows import Row
from codegen.ptxas.events import Tail

_MAX_WAITING = 256  # records that follow one whose line is missing, until it is given up
_CODE = re.compile(r"\((C75\d\d)\)")

ENTERED, NAMED, FRAMED, USED_UP, TIMED = range(5)  # how far a record has come
_MISSING = {
    ENTERED: "cut after 'Compiling entry function'",
    NAMED: "cut after 'Function properties'",
    FRAMED: "its 'Used ... registers' line is missing",
}
_INTERLEAVED = "interleaved with another process's lines"
USED = (
    "used_registers",
    "barriers",
    "smem",
    "cmem0",
    "cumulative_stack",
    "other",
)  # number of its line


class Open:
    """A record under construction.

    Attributes:
        figures: what its lines gave so far, by the names of Row.
        barred: it takes no further line: the log was cut after it, or its lines are unknown.
    """

    def __init__(self, symbol: str, source: str | None, line: int, kind: str = "kernel") -> None:
        self.symbol = symbol
        self.source = source
        self.line = line
        self.kind = kind
        self.arch: str | None = None
        self.figures: dict[str, Any] = {}
        self.notes: dict[str, int] = {}
        self.codes: dict[str, None] = {}
        self.incomplete: str | None = None
        self.stage = ENTERED if kind == "kernel" else NAMED
        self.barred = False

    def take(self, stage: int, tail: Tail, **figures: int) -> None:
        """Takes a line's figures, and has come that far."""
        others = self.figures.get("other", ()) + tail.other
        self.figures |= {**figures, **tail.figures, "other": others}
        self.stage = stage

    def note(self, text: str, certain: bool = True) -> None:
        """Adds a warning or a remark; one that is not certain may be another kernel's."""
        for code in _CODE.findall(text):
            self.codes[code if certain else f"{code}?"] = None
        text = text if certain else f"of some kernel in its translation unit: {text}"
        self.notes[text] = self.notes.get(text, 0) + 1

    def withdraw(self, *names: str) -> None:
        """Gives back figures that may be another's: those of these names, all without any."""
        for name in names or tuple(self.figures):
            self.figures.pop(name, None)
        self.incomplete = _INTERLEAVED

    def withdraw_all(self) -> None:
        """Gives back everything: its lines may be those of another of its name."""
        self.withdraw()
        self.barred = True

    def freeze(self) -> Row:
        """Returns the record, as far as its lines were there."""
        return Row(
            symbol=self.symbol,
            kind=self.kind,
            arch=self.arch,
            **self.figures,
            c75=tuple(self.codes),
            warnings=self.warnings(),
            source=self.source,
            line=self.line,
            incomplete=self.incomplete or self._what_is_missing(),
        )

    def warnings(self) -> tuple[str, ...]:
        """Returns the notes in their order, with how often each came."""
        return tuple(t if n == 1 else f"{t} (x{n})" for t, n in self.notes.items())

    def _what_is_missing(self) -> str | None:
        if self.stage < USED_UP and (self.kind != "function" or self.stage < FRAMED):
            return _MISSING[self.stage]
        if self.kind == "kernel" and "spill_stores" not in self.figures:
            return "its spill line is missing"
        return None


class Queue:
    """Records that each wait for one unnamed line of a kind.

    Alone in the queue, a record takes the line. With several, the line right after a record is
    lent to it: either some other record's line is missing, and the line right after a record is
    its own; or the log was interleaved, and it is not known whose line is whose. The latter is
    proved by a stray line, which comes after no record: since every record has one line, it comes
    after each line that was lent to the wrong record. Then `withdraw` takes back what was lent.

    A device function may have no such line (`optional`): it takes none but the next one, and that
    only if no kernel's line can still come.
    """

    def __init__(
        self, withdraw: Callable[[Open], None], before: int, optional: bool = False
    ) -> None:
        self.waiting: list[Open] = []
        self.lent: set[int] = set()
        self.lost: set[int] = set()  # records that get no line any more
        self.owed = 0  # lines that must still come
        self.withdraw = withdraw
        self.before = before  # a record takes no line that should stand before those it has
        self.optional = optional

    def join(self, record: Open) -> None:
        """Adds a record, which waits from here on."""
        if len(self.waiting) >= _MAX_WAITING:
            self._close()
        self.waiting.append(record)
        self.owed += not self._is_optional(record)

    def promote(self, record: Open) -> None:
        """Notes that a record, which was taken for a function's, is a kernel's."""
        self.owed += any(other is record for other in self.waiting)

    def line(self, previous: Open | None) -> Open | None:
        """Returns the record that takes a line right after `previous`; None if none may."""
        waiting = self.waiting
        if not waiting:
            return None
        if len(waiting) == 1 and self.owed:
            record = waiting[0]
            self._close()
            if record.barred or record.stage >= self.before:
                return None
            # An optional line may as well be that of whoever came between.
            return None if self.optional and record is not previous else record
        if previous is not None and self._may_take(previous):
            self.lent.add(id(previous))
            self._pay(0 if self._is_optional(previous) else 1)
            return previous
        self._withdraw_all()
        # It may have been a function's: then the kernel's is still to come.
        self._pay(0 if any(map(self._may_be_served, waiting)) else 1)
        return None

    def settle(self) -> None:
        """Notes a gap: later lines prove nothing of records that have theirs."""
        self.waiting = [record for record in self.waiting if id(record) not in self.lent]
        self.lent.clear()

    def _may_take(self, record: Open) -> bool:
        if record.barred or record.stage >= self.before:
            return False
        if id(record) in self.lent or id(record) in self.lost:
            return False
        if not any(other is record for other in self.waiting):
            return False
        return not self._is_optional(record) or (
            record.stage == FRAMED and all(map(self._is_optional, self.waiting))
        )

    def _withdraw_all(self) -> None:
        for record in self.waiting:
            if not self._may_be_served(record):
                self.withdraw(record)
                self.lent.discard(id(record))
                self.lost.add(id(record))

    def _is_optional(self, record: Open) -> bool:
        return self.optional and record.kind == "function"

    def _may_be_served(self, record: Open) -> bool:
        """Returns whether it is a function whose line, if it has one, is still to come."""
        return self._is_optional(record) and id(record) not in self.lent

    def _pay(self, lines: int) -> None:
        self.owed = max(0, self.owed - lines)
        if not self.owed and not any(map(self._may_be_served, self.waiting)):
            self._close()

    def _close(self) -> None:
        self.waiting.clear()
        self.lent.clear()
        self.lost.clear()
        self.owed = 0
