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
_LONGEST_LINE = 1 << 23
_SAMPLES = 100  # lines kept of what was not understood
_PATIENCE = 256  # records that follow one whose line is missing, until it is given up

_ENTRY = re.compile(rb"Compiling entry function '([^']+)' for '(\w+)'")
_PROPERTIES = re.compile(rb"Function properties for (?:'([^']+)':?|(\S+))")
_FRAME = re.compile(
    rb"(?:.*?\s)?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    rb"((?:, .*)?)"
)
_USED = re.compile(rb"[Uu]sed (\d+) registers((?:, .*)?)")
_TIME = re.compile(rb"Compile time = (\d+(?:\.\d+)?) ms")
_UNIT = re.compile(rb"\d+ bytes gmem(?:, .*)?")
_LINK_TARGET = re.compile(rb" ?\(target: (\w+)\)$")  # nvlink, with several architectures
_MESSAGE = re.compile(
    rb"(ptxas|nvlink)(?: [^;\n]*, line \d+;| +)\s*(info|warning|error|fatal)\s*: *([^\n]*)"
)
_MESSAGE_LIKE = re.compile(
    rb"(?:ptxas|nvlink) +(?:info|warning|error|fatal) *:"
    rb"|(?<![\w/.=\"'-])(?:ptxas|nvlink)(?![-/.=\w]| +-)"
)
_NOTE = re.compile(r"\([A-Z]\d+\) |Overriding ")
_CODE = re.compile(r"\((C75\d\d)\)")
_FUNCTION = re.compile(r"(?:function|for) '([^']+)'")
_ITEM = re.compile(r"(?:used )?(\d+) (?:bytes )?([a-z][a-z ]*(?:\[\d+\])?)")
_COLUMNS = {"barriers": 0, "smem": 1, "cmem[0]": 2, "cumulative stack size": 3, "stack": 4}
_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\n]*(?:\x07|\x1b\\)|[()][0-9A-B]|[@-Z\\^_=>78])"
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
    rb"Used [^a-zA-Z]|used \d+ [rb]|\d+ registers\b|registers(?:, |\s*$)|bytes (?:smem|[cl]mem)"
)
_LIKE_TIME = re.compile(rb"Compile t|ompile time|= [\d.]+ ms\s*$")
_LIKE_ANY = (_LIKE_ENTRY, _LIKE_PROPERTIES, _LIKE_FRAME, _LIKE_USED, _LIKE_TIME)
_BODIES = (b"Compiling entry function '", b"Function properties for ", b"Used ", b"Compile time = ")
# What is left of a message through which a log was cut, and a CI service's mark for missing lines.
_DEBRIS = re.compile(
    rb"bytes|registers|barriers|spill|stack frame|cumulative|[cgsl]mem|'sm_\d|\d ms\s*$"
    rb"|Compiling entry|Function prop|info +:|^\s*\d+ b\w*$|^\s*\S+\s*$"
    rb"|truncated|omitted|elided|too long|skipped",
    re.IGNORECASE | re.MULTILINE,
)

_ENTERED, _NAMED, _FRAMED, _USED_UP = range(4)  # how far a record has come
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
    lent to it, and one of two things comes out. Either as many lines come as there are records:
    then the log was interleaved, nobody knows whose line is whose, and `withdraw` takes back what
    was lent. Or fewer come: then some record's line is missing, and what stood right behind a
    record is its own.
    """

    def __init__(self, withdraw: Callable[[_Open], None]) -> None:
        self.waiting: list[_Open] = []
        self.lent: set[int] = set()
        self.lines = 0
        self.withdraw = withdraw

    def join(self, record: _Open) -> None:
        if len(self.waiting) >= _PATIENCE:
            self._close()
        self.waiting.append(record)

    def line(self, previous: _Open | None) -> _Open | None:
        """The record that takes a line right behind `previous`; None where none may."""
        waiting = self.waiting
        if len(waiting) == 1 and not self.lines:
            record = waiting.pop()
            return None if record.barred else record
        if not waiting:
            return None
        self.lines += 1
        if self.lines == len(waiting):
            for record in waiting:
                self.withdraw(record)
            self._close()
            return None
        if previous is None or previous.barred or id(previous) in self.lent:
            return None
        if not any(record is previous for record in waiting):
            return None
        self.lent.add(id(previous))
        return previous

    def _close(self) -> None:
        self.waiting.clear()
        self.lent.clear()
        self.lines = 0


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
        self._rest = b""  # an unfinished line
        self._gap = b""  # the end of the text since the last message
        self._line = 1  # number of the line at the start of the chunk
        self._window: deque[_Open] = deque()
        self._last: _Open | None = None  # the record that the last message was about
        # Entries that wait for their `Function properties`, by symbol.
        self._entered: dict[str, _Queue] = {}
        self._frames = _Queue(_withdraw_frame)
        self._used = _Queue(_withdraw_used)
        self._times = _Queue(_withdraw_time)
        self._links = _Queue(_withdraw_link)
        self._timed_functions = False  # with -G, device functions have compile times as well
        self._unit: dict[str, _Open] = {}  # the records of the current run of ptxas
        self._unit_notes: list[tuple[int, str]] = []  # notes of the run that name no function
        # Notes whose function has not come yet, by its symbol.
        self._pending: dict[str, list[tuple[int, str]]] = {}
        self._notes: list[tuple[str | None, int, str]] = []  # notes since the last structural line
        self._tails: dict[bytes, _Tail] = {}
        self._whole: dict[int, re.Pattern[bytes]] = {}

    def feed(self, chunk: bytes) -> Iterator[Record]:
        """Takes the next bytes; yields what can no longer change."""
        self.statistics.bytes += len(chunk)
        end = chunk.rfind(b"\n") + 1
        if not end and len(self._rest) < _LONGEST_LINE:
            self._rest += chunk
            return
        data, self._rest = self._rest + (chunk[:end] or b"\n"), chunk[end:]
        yield from self._lines(data)

    def finish(self) -> Iterator[Record]:
        """Takes the end of the log."""
        if self._rest:
            data, self._rest = self._rest + b"\n", b""
            yield from self._lines(data)
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
        tool, link, frame = find(b"ptxas"), find(b"nvlink"), find(b"bytes stack frame")
        tool, link, frame = (never if at < 0 else at for at in (tool, link, frame))
        while (at := min(tool, link, frame)) < never:
            start = data.rfind(b"\n", 0, at) + 1
            number += data.count(b"\n", counted, start)
            counted = start
            if at == frame or _MESSAGE_LIKE.match(data, at):
                if start > after or self._gap:
                    self._between(self._gap + data[after:start], number)
                    self._gap = b""
                end = self._whole_records(data, at, start, number) if at == tool else 0
                if not end:
                    end = find(b"\n", at) + 1
                    if at == frame:
                        self._frame(data[start : end - 1], number)
                    else:
                        end = self._message_of(data, at, end, number)
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
            self._cut()
            self._source = _object_of(edge[1]) or self._log
        elif (self._frames.waiting or self._used.waiting or self._entered) and _DEBRIS.search(rest):
            self._cut()

    def _cut(self) -> None:
        """Lines are missing here: no record from before takes a line from behind."""
        self._last = None
        for queue in (self._frames, self._used, self._times, self._links, *self._entered.values()):
            for record in queue.waiting:
                record.barred = True

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
            if not clean or (time is not None and self._times.waiting):
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

    def _message_of(self, data: bytes, at: int, end: int, number: int) -> int:
        """Takes the message at `at` of a line that ends at `end`; where two writers met in one
        line, up to the second one's message. Returns where to go on."""
        for tool in (b"ptxas", b"nvlink"):
            inner = data.find(tool, at + 5, end)
            if inner >= 0 and _MESSAGE.match(data, inner, end):
                end = inner + 1
        self._message(data[at : end - 1], number, fused=data[end - 1] != 10)
        return end - (data[end - 1] != 10)

    def _message(self, text: bytes, number: int, fused: bool) -> None:
        """One line from the tool's name on."""
        match = _MESSAGE.fullmatch(text)
        if match is None:
            self._garbled(text, number)
            return
        self.statistics.messages += 1
        tool, level, body = match.groups()
        body = body.rstrip()
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
                self._cut()
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
        else:
            self._unknown(text, number)
            for kind, queue in (
                (_LIKE_FRAME, self._frames),
                (_LIKE_USED, self._used),
                (_LIKE_TIME, self._times),
            ):
                if kind.search(text):
                    queue.line(self._last)
        self._cut()

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
        elif _UNIT.fullmatch(body):
            self._end_unit()
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
        self._entered.setdefault(record.symbol, _Queue(_withdraw_all)).join(record)

    def _properties(self, name: str, number: int) -> None:
        queue = self._entered.get(name)
        if queue is None:
            record = self._enter_other(name, "function", number, None)
            self._frames.join(record)
            if self._timed_functions:
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
        record = self._frames.line(self._last)
        if record is None:
            self._unknown(line, number)
            return
        record.stack_frame, record.spill_stores, record.spill_loads = (
            int(match[i]) for i in (1, 2, 3)
        )
        record.other += other
        record.stage = max(record.stage, _FRAMED)
        self._last = record
        if not clean:
            self._unknown(line, number)

    def _registers(self, count: bytes, tail: bytes, link: bool, number: int, body: bytes) -> None:
        last = self._last
        queue = self._links if link else self._used
        if queue.waiting:
            record = queue.line(last)
        else:
            record = None if link or last is None else self._unawaited(last)
        if record is None:
            self._unknown(body, number)
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
        self._last = record

    def _unawaited(self, last: _Open) -> _Open | None:
        """Who takes a `Used` line right behind `last`, while no record waits for one."""
        if last.barred:
            return None
        if last.kind == "kernel" and last.stage == _ENTERED:
            self._entered.pop(last.symbol, None)  # a log of which only these two lines were kept
            return last
        if last.kind == "function" and last.stage == _FRAMED:
            last.kind = "kernel"  # device functions have no such line
            last.incomplete = "its 'Compiling entry function' line is missing"
            return last
        return None

    def _time(self, milliseconds: float, number: int, body: bytes) -> None:
        last = self._last
        if (
            last is not None
            and last.kind == "function"
            and last.stage == _FRAMED
            and not self._times.waiting
        ):
            self._timed_functions = True
            last.compile_time_ms = milliseconds
            return
        record = self._times.line(last)
        if record is None:
            self._unknown(body, number)
        else:
            record.compile_time_ms = milliseconds
            self._last = record

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
        if len(self._tails) > 10_000:
            self._tails.clear()
        self._tails[tail] = result = (tuple(columns), tuple(other), clean)
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
                record.note(text, certain=len(kernels) == 1)
            if not kernels:
                self._unattached(number, text)
        for name, notes in self._pending.items():
            for number, text in notes:
                self._unattached(number, f"{name}: {text}")
        self._unit = {}
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
        rb"[^\n]{%d}ptxas info +: Compiling entry function '([^'\n]+)' for '(\w+)'\n" % prefix
        + before
        + rb"ptxas info +: Function properties for \1\n"
        + before
        + rb" +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        + before
        + rb"ptxas info +: Used (\d+) registers((?:, [^\n]*)?)\n(?:"
        + before
        + rb"ptxas info +: Compile time = (\d+(?:\.\d+)?) ms\n)?"
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
