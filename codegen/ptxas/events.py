"""Bytes of a log in, events out: what ptxas and nvlink say in it, and where lines are missing.

The input may be anything that holds such lines: nvcc's stderr, ninja, make, `pip install -v`, a CI
service with timestamps before every line. So a message is looked for at the words `ptxas` and
`nvlink`, wherever they stand in a line, and everything else is skipped with a byte search.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from .records import Record

_GAP = 1 << 16  # bytes kept of the text before a message
_LONGEST_LINE = 1 << 21  # bytes; what is longer is read in pieces of that size
_LONGEST_TAIL = 256  # bytes of a line that are remembered with what they say

_NAME = rb"[\w$%@.]+"
_ENTRY = re.compile(rb"Compiling entry function '(%b)' for '(\w{1,32})'" % _NAME)
_PROPERTIES = re.compile(rb"Function properties for (?:'(%b)':?|(%b))" % (_NAME, _NAME))
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
_FUNCTION = re.compile(r"(?:function|for) '([^']+)'")
_ITEM = re.compile(r"(?:used )?(\d{1,18}) (?:bytes )?([a-z][a-z ]*(?:\[\d+\])?)")
_COLUMNS = {
    "barriers": "barriers",
    "smem": "smem",
    "cmem[0]": "cmem0",
    "cumulative stack size": "cumulative_stack",
    "stack": "stack",
}
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
_BODIES = (
    b"Compiling entry function '",
    b"Function properties for ",
    b"Used ",
    b"used ",
    b"Compile time = ",
)
# What is left of a message through which a log was cut.
_DEBRIS = re.compile(
    rb"bytes|registers|barriers|spill|stack frame|cumulative|[cgsl]mem|\bmem\[|'sm_\d|\d ms[ \t]*$"
    rb"|Compiling entry|Function prop|info +:|^[ \t]*\d+ b\w*$|^[ \t]*\S+[ \t]*$"
    rb"|(?<![\w./])(?:pt(?:xa?)?|nv(?:l(?:in?)?)?)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
# How build tools and CI services mark missing lines; the bytes are searched for first.
_MARK_WORDS = (
    b"clipped",
    b"truncated",
    b"omitted",
    b"elided",
    b"skipped",
    b"log",
    b"...",
    b"\xe2\x80\xa6",
)
_LEFT_OUT = rb"(?:clipped|truncated|omitted|elided|skipped)"
_AMOUNT = rb"\b(?:output|log|lines?|[kKmM]?i?[bB](?:ytes)?|char(?:acter)?s)\b"
_MARK = re.compile(
    rb"%b.{0,40}\b%b|\b%b.{0,40}%b|[\[(<.] *%b\b"
    % (_AMOUNT, _LEFT_OUT, _LEFT_OUT, _AMOUNT, _LEFT_OUT)
    + rb"|\blog\b.{0,40}\b(?:limit|length|too (?:long|large))\b"
    + rb"|(?:^|[\s\[])(?:\.\.\.|\xe2\x80\xa6)(?:[\s\[\]]|$)",
    re.IGNORECASE | re.MULTILINE,
)


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


class Unnamed(Enum):
    """The lines that do not say whose they are."""

    FRAME = "bytes stack frame"
    USED = "Used"
    TIME = "Compile time"


_LIKE_UNNAMED = {
    Unnamed.FRAME: _LIKE_FRAME,
    Unnamed.USED: _LIKE_USED,
    Unnamed.TIME: _LIKE_TIME,
}


class Tail(NamedTuple):
    """What follows the first field of a line. Sizes in bytes; None: the line does not say."""

    barriers: int | None = None
    smem: int | None = None
    cmem0: int | None = None
    cumulative_stack: int | None = None
    stack: int | None = None  # nvlink's
    other: tuple[tuple[str, str], ...] = ()
    is_clear: bool = True  # whether all of it was understood


class Named(NamedTuple):
    """`Compiling entry function 'symbol' for 'arch'`, or `Function properties for symbol`: of an
    entry or of a device function, or nvlink's."""

    symbol: str
    arch: str | None
    kind: Literal["entry", "properties", "link"]
    number: int  # of its line


class Frame(NamedTuple):
    """`8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads`."""

    stack: int
    stores: int
    loads: int
    tail: Tail
    line: bytes
    number: int


class Used(NamedTuple):
    """`Used 40 registers, ...`."""

    registers: int
    tail: Tail
    by_linker: bool
    line: bytes
    number: int


class Time(NamedTuple):
    """`Compile time = 1.5 ms`."""

    milliseconds: float
    line: bytes
    number: int


class Begin(NamedTuple):
    """A run of ptxas or nvlink begins (`0 bytes gmem`), or a step of ninja, which makes an
    object."""

    is_step: bool
    made: str | None


class Note(NamedTuple):
    """A warning, an error or a remark, and the function that it names."""

    function: str | None
    text: str
    is_error: bool
    number: int


class Unreadable(NamedTuple):
    """A message of a kind that is not known, or a damaged line: it opened the record of `entry`,
    or was of one of `kinds`, as far as it shows."""

    line: bytes
    number: int
    is_damaged: bool = True
    entry: str | None = None
    kinds: Collection[Unnamed] = ()


class Gap(NamedTuple):
    """Lines are missing before the next event, for certain or as it seems."""

    is_certain: bool


Event = Named | Frame | Used | Time | Begin | Note | Unreadable | Gap


class Taker(Protocol):
    """What is told what a log holds, in its order."""

    @property
    def source(self) -> str | None:
        """The object, or the log, that the lines are about."""

    def has_open_record(self) -> bool:
        """Whether a record waits for a line other than its compile time."""

    def whole(self, records: list[Record]) -> None:
        """Takes all lines of some kernels, one behind the other; only if no record is open."""

    def take(self, event: Event) -> None:
        """Takes anything else."""


class Scanner:
    """Takes the bytes of one log in chunks, and tells `taker` what they hold."""

    def __init__(self, taker: Taker, statistics: Statistics) -> None:
        self._taker = taker
        self._statistics = statistics
        self._rest = bytearray()  # an unfinished line
        self._gap = b""  # the end of the text since the last message
        self._line = 1  # number of the line at the start of the chunk
        self._tails: dict[bytes, Tail] = {}
        self._whole: dict[int, re.Pattern[bytes]] = {}

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self._statistics.bytes += len(chunk)
        if b"\n" not in chunk and len(self._rest) + len(chunk) <= _LONGEST_LINE:
            self._rest += chunk
            return
        data = bytes(self._rest) + chunk
        start = 0
        while len(data) - start > _LONGEST_LINE:
            if end := data.rfind(b"\n", start, start + _LONGEST_LINE + 1) + 1:
                self._scan(data[start:end])
            else:
                end = start + _LONGEST_LINE
                self._scan(data[start:end] + b"\n")
                self._line -= 1
                self._statistics.lines -= 1
            start = end
        if end := data.rfind(b"\n", start) + 1:
            self._scan(data[start:end])
        self._rest = bytearray(data[end or start :])

    def finish(self) -> None:
        """Takes the end of the log."""
        if self._rest:
            self._scan(bytes(self._rest) + b"\n")
            self._rest.clear()

    def _scan(self, data: bytes) -> None:
        """Takes whole lines."""
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
        if after < never:
            self._gap = (self._gap + data[max(after, never - _GAP) :])[-_GAP:]
        number += data.count(b"\n", counted)
        self._statistics.lines += number - self._line
        self._line = number

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
        if _holds_any(_FRAGMENTS, rest):
            for index, line in enumerate(lines, number - len(lines) + 1):
                if any(like.search(line) for like in _LIKE_ANY):
                    self._garbled(line, index)
        if edge:
            self._taker.take(Begin(True, _object_of(edge[1])))
        elif _is_marked(rest):
            self._taker.take(Gap(is_certain=True))
        elif self._taker.has_open_record() and _DEBRIS.search(rest):
            self._taker.take(Gap(is_certain=False))

    def _whole_records(self, data: bytes, at: int, start: int, number: int) -> int:
        """Takes whole records, as long as they stand unbroken and no other is open.

        The same as taking their lines one by one, several times faster. Returns their end, 0 if
        there is none.
        """
        prefix = at - start
        if prefix > 100 or self._taker.has_open_record():
            return 0
        pattern = self._whole.get(prefix)
        if pattern is None:
            pattern = self._whole[prefix] = _whole_record(prefix)
        end = 0
        records: list[Record] = []
        source = self._taker.source
        tails, tail_of = self._tails, self._tail
        match = pattern.match(data, start)
        while match is not None:
            symbol, arch, stack, stores, loads, registers, text, time = match.groups()
            barriers, smem, cmem0, stack_size, _, other, is_clear = tails.get(text) or tail_of(text)
            if not is_clear:
                break
            records.append(
                Record(
                    symbol.decode("utf-8", "replace"),
                    "kernel",
                    arch.decode(),
                    int(stack),
                    int(stores),
                    int(loads),
                    int(registers),
                    barriers=barriers,
                    smem=smem,
                    cmem0=cmem0,
                    cumulative_stack=stack_size,
                    compile_time_ms=None if time is None else float(time),
                    other=other,
                    source=source,
                    line=number,
                )
            )
            count = 3 if time is None else 4
            self._statistics.messages += count
            number += count + 1
            end = match.end()
            match = pattern.match(data, end)
        if records:
            self._taker.whole(records)
        return end

    def _message_of(self, data: bytes, at: int, other: int, line_end: int, number: int) -> int:
        """Takes the message at `at`; if two writers met in its line, up to the second one's,
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
        self._statistics.messages += 1
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
            is_error = level in (b"error", b"fatal")
            if is_error:
                line = f"{level.decode()}: {line}"
            function = name[1] if name else None
            self._taker.take(Note(function, line, is_error, number))
        elif any(start.startswith(body[:5]) for start in _BODIES) or any(
            like.search(body) for like in _LIKE_ANY
        ):
            self._garbled(text, number)
        else:
            self._taker.take(Unreadable(text, number, is_damaged=False))

    def _garbled(self, text: bytes, number: int) -> None:
        entry, kinds = None, []
        if like := _LIKE_ENTRY.search(text):
            entry = (like[1] or b"?").decode("utf-8", "replace")
        else:
            kinds = [kind for kind, like in _LIKE_UNNAMED.items() if like.search(text)]
        self._taker.take(Unreadable(text, number, entry=entry, kinds=kinds))

    def _structural(
        self, tool: bytes, body: bytes, number: int, fused: bool, arch: str | None
    ) -> bool:
        """Takes one of the messages that make a record; False if it is not one."""
        if body.startswith(b"Compiling entry function"):
            if match := _ENTRY.fullmatch(body):
                symbol = match[1].decode("utf-8", "replace")
                self._taker.take(Named(symbol, match[2].decode(), "entry", number))
            else:
                self._garbled(body, number)
        elif match := _PROPERTIES.fullmatch(body):
            symbol = (match[1] or match[2]).decode("utf-8", "replace")
            kind: Literal["link", "properties"] = "link" if tool == b"nvlink" else "properties"
            self._taker.take(Named(symbol, arch, kind, number))
        elif match := _USED.fullmatch(body):
            if fused:
                return False
            tail, by_linker = self._tail(match[2]), tool == b"nvlink"
            self._taker.take(Used(int(match[1]), tail, by_linker, body, number))
        elif match := _TIME.fullmatch(body):
            self._taker.take(Time(float(match[1]), body, number))
        elif _UNIT.fullmatch(body):
            self._taker.take(Begin(False, None))
        else:
            return False
        return True

    def _frame(self, line: bytes, number: int) -> None:
        match = _FRAME.fullmatch(line.rstrip())
        if match is None:
            self._garbled(line, number)
            return
        stack, stores, loads = (int(figure) for figure in match.groups()[:3])
        self._taker.take(Frame(stack, stores, loads, self._tail(match[4]), line, number))

    def _tail(self, text: bytes) -> Tail:
        known = self._tails.get(text)
        if known is not None:
            return known
        columns: dict[str, int] = {}
        other: list[tuple[str, str]] = []
        is_clear = True
        for item in text.decode("utf-8", "replace").split(", ")[1:]:
            match = _ITEM.fullmatch(item.rstrip())
            if match is None:
                is_clear = False
            elif column := _COLUMNS.get(match[2]):
                columns[column] = int(match[1])
            else:
                other.append((match[2], match[1]))
        tail = Tail(other=tuple(other), is_clear=is_clear, **columns)
        if len(text) <= _LONGEST_TAIL:
            if len(self._tails) > 10_000:
                self._tails.clear()
            self._tails[text] = tail
        return tail


def _is_marked(text: bytes) -> bool:
    """Whether a tool says there that it left lines out."""
    return _holds_any(_MARK_WORDS, text.lower()) and _MARK.search(text) is not None


def _holds_any(words: tuple[bytes, ...], text: bytes) -> bool:
    for word in words:  # noqa: SIM110  any() over a generator takes twice as long
        if word in text:
            return True
    return False


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
        rb"[^\n]{%d}ptxas info +: Compiling entry function '(%b)' for '(\w{1,32})'\n"
        % (prefix, _NAME)
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
