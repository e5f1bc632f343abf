"""One pass over a log of ptxas and nvlink: bytes in, records out, in constant memory.

The input may be anything that holds such lines: nvcc's stderr, ninja, make, `pip install -v`, a CI
service with timestamps before every line. So a message is looked for at the words `ptxas` and
`nvlink`, wherever they stand in a line, and everything else is skipped with a byte search.

What ptxas prints for a kernel is named in two of its lines and unnamed in the others:

    ptxas info    : Compiling entry function 'X' for 'sm_90a'     opens the row
    ptxas info    : Function properties for X                     the entry, or a device function
        88 bytes stack frame, 84 bytes spill stores, 84 bytes spill loads
    ptxas info    : Used 255 registers, used 1 barriers, ...
    ptxas info    : Compile time = 124.007 ms                     from CUDA 12.8 on

Lines of two processes may interleave, and lines may be missing. `_Queue` says who takes an unnamed
line, or that nobody can know.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tools.ptx_report.records import Record

CHUNK = 1 << 20
WINDOW = 4096  # records that a later line can still reach
_GAP = 1 << 16  # bytes kept of the text before a message
_LONGEST_LINE = 1 << 20  # bytes; what is longer is read in pieces of that size
_LONGEST_TAIL = 256  # bytes of a line that are remembered with what they say
_SAMPLES = 100  # lines kept of what was not understood
_PATIENCE = 256  # records that follow one whose line is missing, until it is given up

_ENTRY = re.compile(rb"Compiling entry function '([^']+)' for '(\w{1,32})'")
_PROPERTIES = re.compile(rb"Function properties for (?:'([^']+)':?|(\S+))")
_FRAME = re.compile(
    rb"(?:.*?\s)?(\d{1,18}) bytes stack frame, (\d{1,18}) bytes spill stores, "
    rb"(\d{1,18}) bytes spill loads((?:, .*)?)"
)
_USED = re.compile(rb"[Uu]sed (\d{1,18}) registers((?:, .*)?)")
_TIME = re.compile(rb"Compile time = (\d{1,18}(?:\.\d{1,18})?) ms")
_UNIT = re.compile(rb"\d+ bytes gmem(?:, .*)?")
_LINK_TARGET = re.compile(rb" ?\(target: (\w+)\)$")  # nvlink, with several architectures
_MESSAGE = re.compile(
    rb"(ptxas|nvlink)(?: +| [^;\n]{1,4096}, line \d{1,18};\s*)(info|warning|error|fatal)\s*: *"
)
_MESSAGE_LIKE = re.compile(
    rb"(?:ptxas|nvlink) +(?:info|warning|error|fatal) *:"
    rb"|(?<![\w/.=\"'-])(?:ptxas|nvlink)(?![-/.=\w]| +-)"
)
_NOTE = re.compile(r"\([A-Z]\d+\) |Overriding ")
_CODE = re.compile(r"\((C75\d\d)\)")
_FUNCTION = re.compile(r"(?:function|for) '([^']+)'")
_ITEM = re.compile(r"(?:used )?(\d{1,18}) (?:bytes )?([a-z][a-z ]*(?:\[\d+\])?)")
_COLUMNS = {"barriers": 0, "smem": 1, "cmem[0]": 2, "cumulative stack size": 3, "stack": 4}
_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-9A-B]|[@-Z\\^_=>78])"
)
_EDGE = re.compile(rb".{0,40}?\[\d+/\d+\] (.*)")
_OBJECT_SUFFIXES = (b".o", b".obj", b".cubin", b".fatbin", b".cu")
# By these a damaged line still shows what it was; the bytes are searched for first.
_FRAGMENTS = (
    b"ntry function",
    b"for 'sm_",
    b"ropert",
    b"stack frame",
    b"spill",
    b"registers",
    b"barriers",
    b"Used ",
    b"bytes ",
    b"time = ",
)
_LIKE_ENTRY = re.compile(rb"entry function '([^'\n]*)|' for 'sm_\d")
_LIKE_PROPERTIES = re.compile(
    rb"Function prop|unction properties|properties for '?_Z|roperties for _Z"
)
_LIKE_FRAME = re.compile(rb"bytes (?:stack frame|spill )|spill (?:stores|loads)|stack frame, \d")
_LIKE_USED = re.compile(
    rb"Used [^a-zA-Z]|used \d+ [rb]|\d registers\b|registers(?:, |\s*$)|bytes (?:smem|[cl]mem)"
)
_LIKE_TIME = re.compile(rb"Compile t|ompile time|= [\d.]+ ms\s*$")
_LIKE_ANY = (_LIKE_ENTRY, _LIKE_PROPERTIES, _LIKE_FRAME, _LIKE_USED, _LIKE_TIME)
_BODIES = (b"Compiling entry function '", b"Function properties for ", b"Used ", b"Compile time = ")
# What is left of a message through which a log was cut.
_DEBRIS = re.compile(
    rb"bytes|registers|barriers|spill|stack frame|cumulative|[cgsl]mem|'sm_\d|\d ms[ \t]*$"
    rb"|Compiling entry|Function prop|info +:|^[ \t]*\d+ b\w*$|^[ \t]*\S+[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
# How build tools and CI services mark missing lines; the bytes are searched for first.
_MARK_WORDS = (
    b"clipped",
    b"truncated",
    b"omitted",
    b"elided",
    b"skipped",
    b"too l",
    b"limit",
    b"...",
    b"\xe2\x80\xa6",
)
_MARK = re.compile(
    rb"clipped|truncated|omitted|elided|skipped|too (?:long|large)|log\b.{0,40}\blimit"
    rb"|(?:^|[\s\[])(?:\.\.\.|\xe2\x80\xa6)(?:[\s\]]|$)",
    re.IGNORECASE | re.MULTILINE,
)

_ENTERED, _NAMED, _FRAMED, _USED_UP, _TIMED = range(5)  # how far a record has come
_MISSING = {
    _ENTERED: "cut after 'Compiling entry function'",
    _NAMED: "cut after 'Function properties'",
    _FRAMED: "its 'Used ... registers' line is missing",
}
_INTERLEAVED = "interleaved with another process's lines"


_Tail = tuple[tuple[int | None, ...], tuple[tuple[str, str], ...], bool]


class Readable(Protocol):
    """What a log is read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


@dataclass
class Statistics:
    """What was read, for messages and `--verbose`. Samples are (source, line, text)."""

    bytes: int = 0
    lines: int = 0
    messages: int = 0
    entries: int = 0  # `Compiling entry function` lines, garbled ones included
    unknown: int = 0  # looks like ptxas, not understood or of no record
    unknown_samples: list[tuple[str, int, str]] = field(default_factory=list)
    unattached: int = 0  # warnings whose function the log does not hold
    unattached_samples: list[tuple[str, int, str]] = field(default_factory=list)


class _Open:
    """A record under construction. Its defaults are the class's: making one costs little."""

    kind = "kernel"
    arch: str | None = None
    stack_frame: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    used_registers: int | None = None
    barriers: int | None = None
    smem: int | None = None
    cmem0: int | None = None
    cumulative_stack: int | None = None
    compile_time_ms: float | None = None
    other: tuple[tuple[str, str], ...] = ()
    notes: dict[str, int] | None = None
    codes: dict[str, None] | None = None
    incomplete: str | None = None
    stage = _ENTERED
    whole: Record | None = None  # of a record that was read in one step
    barred = False  # takes no further line: the log was cut behind it, or its lines are unknown

    def __init__(self, symbol: str, source: str | None, line: int) -> None:
        self.symbol = symbol
        self.source = source
        self.line = line

    def note(self, text: str, certain: bool = True) -> None:
        if self.notes is None or self.codes is None:
            self.notes, self.codes = {}, {}
        for code in _CODE.findall(text):
            self.codes[code if certain else f"{code}?"] = None
        text = text if certain else f"of some kernel in its translation unit: {text}"
        self.notes[text] = self.notes.get(text, 0) + 1

    def freeze(self) -> Record:
        codes: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        if self.notes is not None:
            codes = tuple(self.codes or ())
            notes = self.notes.items()
            warnings = tuple(text if n == 1 else f"{text} (x{n})" for text, n in notes)
        if self.whole is not None:
            if self.compile_time_ms is not None:
                self.whole = self.whole._replace(compile_time_ms=self.compile_time_ms)
            return self.whole._replace(c75=codes, warnings=warnings) if warnings else self.whole
        incomplete = self.incomplete
        if (
            incomplete is None
            and self.stage < _USED_UP
            and (self.kind != "function" or self.stage < _FRAMED)
        ):
            incomplete = _MISSING[self.stage]
        elif incomplete is None and self.spill_stores is None and self.kind == "kernel":
            incomplete = "its spill line is missing"
        return Record(
            self.symbol,
            self.kind,
            self.arch,
            self.stack_frame,
            self.spill_stores,
            self.spill_loads,
            self.used_registers,
            self.barriers,
            self.smem,
            self.cmem0,
            self.cumulative_stack,
            self.compile_time_ms,
            self.other,
            codes,
            warnings,
            self.source,
            self.line,
            incomplete,
        )


class _Queue:
    """Records that each wait for one unnamed line of a kind.

    Alone in the queue, a record takes the line. With several, the line right behind a record is
    lent to it: either some other record's line is missing, and what stood right behind a record is
    its own; or the log was interleaved, and nobody knows whose line is whose. Of the latter a stray
    line, one that stands behind nobody, is the proof: since every record has one line, it comes
    after each line that was lent to the wrong record, and the first such record came after one that
    has none. From that one on, `withdraw` takes back what was lent.

    A device function may have no such line (`optional`): it takes none but the next one, and that
    only where no kernel's line can still come.
    """

    def __init__(
        self, withdraw: Callable[[_Open], None], before: int, optional: bool = False
    ) -> None:
        self.waiting: list[_Open] = []
        self.lent: set[int] = set()
        self.lost: set[int] = set()  # those who get no line any more
        self.owed = 0  # lines that must still come
        self.withdraw = withdraw
        self.before = before  # a record takes no line that should stand before those it has
        self.optional = optional

    def join(self, record: _Open) -> None:
        if len(self.waiting) >= _PATIENCE:
            self._close()
        self.waiting.append(record)
        self.owed += not self._is_optional(record)

    def join_with_line(self, record: _Open) -> None:
        self.join(record)
        self.lent.add(id(record))
        self._pay(1)

    def promote(self, record: _Open) -> None:
        """What was taken for a function is a kernel."""
        self.owed += any(other is record for other in self.waiting)

    def line(self, previous: _Open | None) -> _Open | None:
        """The record that takes a line right behind `previous`; None where none may."""
        waiting = self.waiting
        if not waiting:
            return None
        if len(waiting) == 1 and self.owed:
            record = waiting[0]
            self._close()
            return None if record.barred or record.stage >= self.before else record
        if previous is not None and self._may_take(previous):
            self.lent.add(id(previous))
            self._pay(0 if self._is_optional(previous) else 1)
            return previous
        self._withdraw_doubtful()
        # It may have been a function's: then the kernel's is still to come.
        self._pay(0 if any(map(self._may_be_served, waiting)) else 1)
        return None

    def lose_one(self) -> None:
        """One of the lines cannot be read."""
        if self.waiting:
            self._pay(1)

    def settle(self) -> None:
        """Lines are missing here: one from behind proves nothing of those who have theirs."""
        self.waiting = [record for record in self.waiting if id(record) not in self.lent]
        self.lent.clear()

    def _may_take(self, record: _Open) -> bool:
        if record.barred or record.stage >= self.before:
            return False
        if id(record) in self.lent or id(record) in self.lost:
            return False
        if not any(other is record for other in self.waiting):
            return False
        return not self._is_optional(record) or (
            record.stage == _FRAMED and all(map(self._is_optional, self.waiting))
        )

    def _withdraw_doubtful(self) -> None:
        doubtful = False
        for record in self.waiting:
            doubtful = doubtful or id(record) not in self.lent
            if doubtful and not self._may_be_served(record):
                self.withdraw(record)
                self.lent.discard(id(record))
                self.lost.add(id(record))

    def _is_optional(self, record: _Open) -> bool:
        return self.optional and record.kind == "function"

    def _may_be_served(self, record: _Open) -> bool:
        """Whether it is a function whose line, if it has one, is still to come."""
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


def _withdraw_frame(record: _Open) -> None:
    record.stack_frame = record.spill_stores = record.spill_loads = None
    record.incomplete = _INTERLEAVED


def _withdraw_used(record: _Open) -> None:
    record.used_registers = record.barriers = record.smem = record.cmem0 = (
        record.cumulative_stack
    ) = None
    record.other = ()
    record.incomplete = _INTERLEAVED


def _withdraw_time(record: _Open) -> None:
    record.compile_time_ms = None
    record.incomplete = _INTERLEAVED
    if record.whole is not None:
        record.whole = record.whole._replace(compile_time_ms=None, incomplete=_INTERLEAVED)


def _withdraw_link(record: _Open) -> None:
    _withdraw_used(record)
    record.stack_frame = None


def _withdraw_all(record: _Open) -> None:
    _withdraw_frame(record)
    _withdraw_used(record)
    _withdraw_time(record)
    record.barred = True


class Parser:
    """Feeds on chunks of one log and yields its records in the log's order."""

    def __init__(self, source: str | None, statistics: Statistics) -> None:
        self.statistics = statistics
        self._log = source  # the name of the whole log
        self._source = source  # the object that the lines are about, where a build tool says so
        self._rest = bytearray()  # an unfinished line
        self._gap = b""  # the end of the text since the last message
        self._line = 1  # number of the line at the start of the chunk
        self._window: deque[_Open] = deque()
        self._last: _Open | None = None  # the record that the last message was about
        # Entries that wait for their `Function properties`, by symbol.
        self._entered: dict[str, _Queue] = {}
        self._frames = _Queue(_withdraw_frame, _FRAMED)
        self._used = _Queue(_withdraw_used, _USED_UP)
        self._times = _Queue(_withdraw_time, _TIMED, optional=True)
        self._links = _Queue(_withdraw_link, _USED_UP)
        self._unit: dict[str, _Open] = {}  # the records of the current run of ptxas
        self._unit_is_whole = True  # as far as is known
        self._unit_notes: list[tuple[int, str]] = []  # notes of the run that name no function
        # Notes whose function has not come yet, by its symbol.
        self._pending: dict[str, list[tuple[int, str]]] = {}
        self._notes: list[tuple[str | None, int, str]] = []  # notes since the last structural line
        self._tails: dict[bytes, _Tail] = {}
        self._whole: dict[int, re.Pattern[bytes]] = {}

    def feed(self, chunk: bytes) -> Iterator[Record]:
        """Takes the next bytes; yields what can no longer change."""
        self.statistics.bytes += len(chunk)
        rest = self._rest
        rest += chunk
        start = 0
        while len(rest) - start > _LONGEST_LINE:
            if end := rest.rfind(b"\n", start, start + _LONGEST_LINE + 1) + 1:
                yield from self._lines(bytes(rest[start:end]))
            else:
                end = start + _LONGEST_LINE
                yield from self._lines(bytes(rest[start:end]) + b"\n")
                self._line -= 1
            start = end
        if end := rest.rfind(b"\n", start) + 1:
            yield from self._lines(bytes(rest[start:end]))
        del rest[: end or start]

    def finish(self) -> Iterator[Record]:
        """Takes the end of the log."""
        if self._rest:
            yield from self._lines(bytes(self._rest) + b"\n")
            self._rest.clear()
        self._settle_notes()
        self._end_unit()
        for record in self._window:
            yield record.freeze()
        self._window.clear()

    def _lines(self, data: bytes) -> Iterator[Record]:
        if b"\x1b" in data:
            data = _ANSI.sub(b"", data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
        find = data.find
        never = len(data)
        after = 0  # end of the last message
        counted, number = 0, self._line
        start = line_end = 0  # of the line that was looked at last
        tool, link, frame = find(b"ptxas"), find(b"nvlink"), find(b"bytes stack frame")
        tool, link, frame = (never if at < 0 else at for at in (tool, link, frame))
        while (at := min(tool, link, frame)) < never:
            if at >= line_end:
                start = data.rfind(b"\n", line_end, at) + 1 or line_end
                line_end = find(b"\n", at) + 1
            number += data.count(b"\n", counted, start)
            counted = start
            if at == frame or _MESSAGE_LIKE.match(data, at):
                if start > after or self._gap:
                    self._between(self._gap + data[max(after, start - _GAP) : start], number)
                    self._gap = b""
                end = self._whole_records(data, at, start, number) if at == tool else 0
                if not end:
                    if at == frame:
                        end = line_end
                        self._frame(data[start : end - 1], number)
                    else:
                        other = link if at == tool else tool
                        end = self._message_of(data, at, min(other, line_end), line_end, number)
                after = end
            else:
                end = at + 5
            if tool < end:
                tool = find(b"ptxas", end)
                tool = never if tool < 0 else tool
            if link < end:
                link = find(b"nvlink", end)
                link = never if link < 0 else link
            if frame < end:
                frame = find(b"bytes stack frame", end)
                frame = never if frame < 0 else frame
            while len(self._window) > WINDOW:
                record = self._window.popleft()
                if self._unit.get(record.symbol) is record:
                    del self._unit[record.symbol]
                if record.stage == _ENTERED:
                    self._entered.pop(record.symbol, None)
                yield record.freeze()
        if after < never:
            self._gap = (self._gap + data[max(after, never - _GAP) :])[-_GAP:]
        self._line = number + data.count(b"\n", counted)
        self.statistics.lines = self._line - 1

    def _between(self, text: bytes, number: int) -> None:
        """Text of other programs stands between two messages, the second one on line `number`."""
        lines = text[-_GAP:].split(b"\n")
        edge = None
        for index in range(len(lines) - 1, -1, -1):
            edge = _EDGE.match(lines[index])
            if edge:
                lines[index] = b""
                break
        rest = b"\n".join(lines)
        if any(fragment in rest for fragment in _FRAGMENTS):
            for index, line in enumerate(lines, number - len(lines) + 1):
                if any(like.search(line) for like in _LIKE_ANY):
                    self._garbled(line, index)
        if edge:
            self._settle_notes()
            self._end_unit()
            self._bar()
            self._source = _object_of(edge[1]) or self._log
        elif _is_marked(rest):
            self._cut()
        elif (self._frames.waiting or self._used.waiting or self._entered) and _DEBRIS.search(rest):
            self._bar(unit_is_whole=False)

    def _cut(self) -> None:
        """Lines are missing here, for sure."""
        self._bar(unit_is_whole=False)
        for queue in self._queues():
            queue.settle()

    def _bar(self, unit_is_whole: bool = True) -> None:
        """No record from before takes a line from behind."""
        self._unit_is_whole = self._unit_is_whole and unit_is_whole
        self._last = None
        for queue in self._queues():
            for record in queue.waiting:
                record.barred = True

    def _queues(self) -> tuple[_Queue, ...]:
        return (self._frames, self._used, self._times, self._links, *self._entered.values())

    def _whole_records(self, data: bytes, at: int, start: int, number: int) -> int:
        """Takes whole records, as long as they stand unbroken and no other is open.

        The same as taking their lines one by one, several times faster. Returns their end, 0 where
        there is none.
        """
        if self._frames.waiting or self._used.waiting or self._entered or at - start > 100:
            return 0
        prefix = at - start
        pattern = self._whole.get(prefix)
        if pattern is None:
            pattern = self._whole[prefix] = _whole_record(prefix)
        end = 0
        messages = 0
        tails, source = self._tails, self._source
        match = pattern.match(data, start)
        while match is not None:
            symbol, arch, stack, stores, loads, registers, tail, time = match.groups()
            columns, other, clean = tails.get(tail) or self._tail(tail)
            if not clean:
                break
            name = symbol.decode("utf-8", "replace")
            barriers, smem, cmem0, cumulative_stack, _ = columns
            record = self._enter(name, number)
            record.stage = _USED_UP
            record.whole = Record(
                name,
                "kernel",
                arch.decode(),
                int(stack),
                int(stores),
                int(loads),
                int(registers),
                barriers,
                smem,
                cmem0,
                cumulative_stack,
                float(time) if time is not None else None,
                other,
                (),
                (),
                source,
                number,
                None,
            )
            if time is None:
                self._times.join(record)
                messages += 3
                number += 4
            else:
                if self._times.waiting:
                    self._times.join_with_line(record)
                messages += 4
                number += 5
            end = match.end()
            match = pattern.match(data, end)
        self.statistics.messages += messages
        return end

    def _enter(self, name: str, number: int) -> _Open:
        self.statistics.entries += 1
        if self._notes:
            self._settle_notes()
        record = _Open(name, self._source, number)
        if self._pending:
            for _, text in self._pending.pop(name, ()):
                record.note(text)
        self._window.append(record)
        self._unit[name] = record
        self._last = record
        return record

    def _message_of(self, data: bytes, at: int, other: int, line_end: int, number: int) -> int:
        """Takes the message at `at`; where two writers met in its line, up to the second one's,
        which may begin at `other`. Returns where to go on."""
        same = data.find(data[at : at + 5], at + 5, other)
        inner = other if same < 0 else same
        if inner < line_end and _MESSAGE.match(data, inner, line_end):
            self._message(data[at:inner], number, fused=True)
            return inner
        self._message(data[at : line_end - 1], number, fused=False)
        return line_end

    def _message(self, text: bytes, number: int, fused: bool) -> None:
        """One line from the tool's name on."""
        match = _MESSAGE.match(text)
        if match is None:
            self._garbled(text, number)
            return
        self.statistics.messages += 1
        tool, level = match.groups()
        body = text[match.end() :].rstrip()
        arch = None
        if tool == b"nvlink" and (target := _LINK_TARGET.search(body)):
            arch = target[1].decode()
            body = body[: target.start()]
        if level == b"info" and self._structural(tool, body, number, fused, arch):
            return
        line = body.decode("utf-8", "replace")
        if level != b"info" or _NOTE.match(line):
            name = _FUNCTION.search(line)
            if level in (b"error", b"fatal"):
                line = f"{level.decode()}: {line}"
            if name or not line.startswith("Overriding "):
                self._notes.append((name[1] if name else None, number, line))
                if len(self._notes) > WINDOW:  # warnings alone, without the kernels' lines
                    self._settle_notes()
            if level in (b"error", b"fatal"):
                self._bar(unit_is_whole=False)
        elif any(start.startswith(body[:5]) for start in _BODIES) or any(
            like.search(body) for like in _LIKE_ANY
        ):
            self._garbled(text, number)
        else:  # a kind of message that is not known yet
            self._unknown(text, number)

    def _garbled(self, text: bytes, number: int) -> None:
        """A damaged line: counts as one of its kind, gives no value, and nobody before it takes a
        line from behind it."""
        if like := _LIKE_ENTRY.search(text):
            self._cut()
            record = self._enter((like[1] or b"?").decode("utf-8", "replace"), number)
            record.barred = True
            record.incomplete = "its 'Compiling entry function' line is garbled"
            self._cut()
        else:
            self._unknown(text, number)
            self._cut()
            for kind, queue in (
                (_LIKE_FRAME, self._frames),
                (_LIKE_USED, self._used),
                (_LIKE_TIME, self._times),
            ):
                if kind.search(text):
                    queue.lose_one()

    def _structural(
        self, tool: bytes, body: bytes, number: int, fused: bool, arch: str | None
    ) -> bool:
        if body.startswith(b"Compiling entry function"):
            self._entry(body, number)
        elif match := _PROPERTIES.fullmatch(body):
            name = (match[1] or match[2]).decode("utf-8", "replace")
            if tool == b"nvlink":
                self._links.join(self._enter_other(name, "link", number, arch))
            else:
                self._properties(name, number)
        elif match := _USED.fullmatch(body):
            if fused:
                return False
            self._registers(match[1], match[2], tool == b"nvlink", number, body)
        elif match := _TIME.fullmatch(body):
            self._time(float(match[1]), number, body)
        elif _UNIT.fullmatch(body):  # the first line of a run, whatever was open
            self._end_unit()
            self._bar()
        else:
            return False
        return True

    def _entry(self, body: bytes, number: int) -> None:
        match = _ENTRY.fullmatch(body)
        if match is None:
            self._garbled(body, number)
            return
        record = self._enter(match[1].decode("utf-8", "replace"), number)
        record.arch = match[2].decode()
        self._entered.setdefault(record.symbol, _Queue(_withdraw_all, _NAMED)).join(record)

    def _properties(self, name: str, number: int) -> None:
        queue = self._entered.get(name)
        if queue is None:
            record = self._enter_other(name, "function", number, None)
            self._frames.join(record)
            self._times.join(record)
            return
        taker = queue.line(self._last)
        if not queue.waiting:
            del self._entered[name]
        if taker is None:  # its lines will come all the same, and belong to no row
            taker = _Open(name, None, number)
            taker.barred = True
        taker.stage = _NAMED
        self._last = taker
        for queue in (self._frames, self._used, self._times):
            queue.join(taker)

    def _enter_other(self, name: str, kind: str, number: int, arch: str | None) -> _Open:
        self._settle_notes()
        record = _Open(name, self._source, number)
        record.kind = kind
        record.arch = arch
        record.stage = _NAMED
        self._unit.setdefault(name, record)
        for _, text in self._pending.pop(name, ()):
            record.note(text)
        self._window.append(record)
        self._last = record
        return record

    def _frame(self, line: bytes, number: int) -> None:
        match = _FRAME.fullmatch(line.rstrip())
        if match is None:
            self._garbled(line, number)
            return
        _, other, clean = self._tail(match[4])
        awaited = bool(self._frames.waiting)
        record = self._last = self._frames.line(self._last)
        if record is None:
            self._unknown(line, number)
            if not awaited:
                self._cut()
            return
        record.stack_frame, record.spill_stores, record.spill_loads = (
            int(match[i]) for i in (1, 2, 3)
        )
        record.other += other
        record.stage = max(record.stage, _FRAMED)
        if not clean:
            self._unknown(line, number)

    def _registers(self, count: bytes, tail: bytes, link: bool, number: int, body: bytes) -> None:
        last = self._last
        queue = self._links if link else self._used
        awaited = bool(queue.waiting)
        if awaited:
            record = queue.line(last)
        else:
            record = None if link or last is None else self._unawaited(last)
        self._last = record
        if record is None:
            self._unknown(body, number)
            if not awaited:
                self._cut()
            return
        fields, other, clean = self._tail(tail)
        record.used_registers = int(count)
        record.barriers, record.smem, record.cmem0, record.cumulative_stack, stack = fields
        record.other += other
        record.stage = _USED_UP
        if link:
            record.stack_frame = stack
        if not clean:
            record.incomplete = "part of its 'Used' line is not understood"
            self._unknown(body, number)

    def _unawaited(self, last: _Open) -> _Open | None:
        """Who takes a `Used` line right behind `last`, while no record waits for one."""
        if last.barred:
            return None
        if last.kind == "kernel" and last.stage == _ENTERED:
            self._entered.pop(last.symbol, None)  # a log of which only these two lines were kept
            return last
        if last.kind == "function" and last.stage == _FRAMED:
            last.kind = "kernel"  # device functions have no such line
            self._times.promote(last)
            last.incomplete = "its 'Compiling entry function' line is missing"
            return last
        return None

    def _time(self, milliseconds: float, number: int, body: bytes) -> None:
        record = self._times.line(self._last)
        self._last = None  # nothing follows a record's time
        if record is None:
            self._unknown(body, number)
        else:
            record.compile_time_ms = milliseconds

    def _tail(self, tail: bytes) -> _Tail:
        """What follows the first field of a line: columns, other fields, whether all is clear."""
        known = self._tails.get(tail)
        if known is not None:
            return known
        columns: list[int | None] = [None] * len(_COLUMNS)
        other: list[tuple[str, str]] = []
        clean = True
        for item in tail.decode("utf-8", "replace").split(", ")[1:]:
            match = _ITEM.fullmatch(item.rstrip())
            if match is None:
                clean = False
            elif (index := _COLUMNS.get(match[2])) is not None:
                columns[index] = int(match[1])
            else:
                other.append((match[2], match[1]))
        result = (tuple(columns), tuple(other), clean)
        if len(tail) <= _LONGEST_TAIL:
            if len(self._tails) > 10_000:
                self._tails.clear()
            self._tails[tail] = result
        return result

    def _settle_notes(self) -> None:
        """Notes before a line of the same run: to the function they name, else to the run."""
        for name, number, text in self._notes:
            if name is None:
                self._unit_notes.append((number, text))
            elif name in self._unit:
                self._unit[name].note(text)
            else:
                self._pending.setdefault(name, []).append((number, text))
        self._notes.clear()
        while len(self._pending) > WINDOW:
            name = next(iter(self._pending))
            for number, text in self._pending.pop(name):
                self._unattached(number, f"{name}: {text}")
        for number, text in self._unit_notes[WINDOW:]:
            self._unattached(number, text)
        del self._unit_notes[WINDOW:]

    def _end_unit(self) -> None:
        """A run of ptxas ends. The notes right before the next run's first line are that run's."""
        kernels = [record for record in self._unit.values() if record.kind == "kernel"]
        for number, text in self._unit_notes:
            for record in kernels:
                record.note(text, certain=len(kernels) == 1 and self._unit_is_whole)
            if not kernels:
                self._unattached(number, text)
        for name, notes in self._pending.items():
            for number, text in notes:
                self._unattached(number, f"{name}: {text}")
        self._unit = {}
        self._unit_is_whole = True
        self._unit_notes = []
        self._pending = {}

    def _unknown(self, text: bytes, number: int) -> None:
        self.statistics.unknown += 1
        if len(self.statistics.unknown_samples) < _SAMPLES:
            sample = text[:300].decode("utf-8", "replace").strip()
            self.statistics.unknown_samples.append((self._log or "-", number, sample))

    def _unattached(self, number: int, text: str) -> None:
        self.statistics.unattached += 1
        if len(self.statistics.unattached_samples) < _SAMPLES:
            self.statistics.unattached_samples.append((self._log or "-", number, text))


def _is_marked(text: bytes) -> bool:
    """Whether a tool says there that it left lines out."""
    lower = text.lower()
    return any(word in lower for word in _MARK_WORDS) and _MARK.search(text) is not None


def _object_of(edge: bytes) -> str | None:
    """The object that a step of ninja makes: behind -o, else a description's last word."""
    option = edge.rfind(b" -o ")
    if option >= 0:
        last = edge[option + 4 :].split(None, 1)[:1]
        return last[0].strip(b'"').decode("utf-8", "replace") if last else None
    last = edge.split()[-1:]
    if last and last[0].endswith(_OBJECT_SUFFIXES):
        return last[0].decode("utf-8", "replace")
    return None


def _whole_record(prefix: int) -> re.Pattern[bytes]:
    """A record's lines, each behind as many bytes of a build tool's prefix."""
    # No `p` in the prefix: no second `ptxas` in a line.
    before = rb"[^\np]{%d}" % prefix
    return re.compile(
        rb"[^\n]{%d}ptxas info +: Compiling entry function '([^'\n]+)' for '(\w{1,32})'\n" % prefix
        + before
        + rb"ptxas info +: Function properties for \1\n"
        + before
        + rb" +(\d{1,18}) bytes stack frame, (\d{1,18}) bytes spill stores, "
        + rb"(\d{1,18}) bytes spill loads\n"
        + before
        + rb"ptxas info +: Used (\d{1,18}) registers((?:, [^\n]*)?)\n(?:"
        + before
        + rb"ptxas info +: Compile time = (\d{1,18}(?:\.\d{1,18})?) ms\n)?"
    )


def parse(stream: Readable, source: str | None, statistics: Statistics) -> Iterator[Record]:
    """The records of one log, in its order.

    Args:
        stream: bytes, read once in chunks.
        source: what to call the log where no build tool's line names an object.
        statistics: added to while reading.
    """
    parser = Parser(source, statistics)
    while chunk := stream.read(CHUNK):
        yield from parser.feed(chunk)
    yield from parser.finish()
