"""Bytes of a log in, events out: what ptxas and nvlink say in it, and where lines are missing.

The input may be anything that holds such lines: nvcc's stderr, ninja, make, `pip install -v`, a CI
service with timestamps before every line. So a message is looked for at the words `ptxas` and
`nvlink`, wherever they stand in a line, and everything else is skipped with a byte search.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

_GAP = 1 << 16  # bytes kept of the text before a message

_WORD = re.compile(rb"ptxas|nvlink|(bytes stack frame)")  # in the lines that are looked at
_TOOL = re.compile(rb"ptxas|nvlink")
# A name in a log that went through c++filt is a declaration: 'void k<64>(float*)'.
_NAME = rb"(?:[\w$%@.]|::)+|(?!_Z)(?=[^\n;]*[(<])[\w:~(][^\n;]*[)>\]}](?: const)?"
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
    rb"|(?<![\w/.=\"'-])(?:ptxas|nvlink)(?![-/.=\w]| +-| +\.\s)"  # NVRTC continues with a dot
)
_NOTE = re.compile(r"\([A-Z]\d+\) |Overriding ")
_FUNCTION = re.compile(r"(?:function|for) '(.+?)'(?![\w(:])")  # a lambda has quotes of its own
_ITEM = re.compile(r"(?:used )?(\d{1,18}) (?:bytes )?([a-z][a-z ]*(?:\[\d+\])?)")
_COLUMNS = {
    "barriers": "barriers",
    "smem": "smem",
    "cmem[0]": "cmem0",
    "cumulative stack size": "cumulative_stack",
    "stack": "stack_frame",  # nvlink's
}
_EDGE = re.compile(rb".{0,40}?\[\d+/\d+\] (.*)")
_OBJECT_SUFFIXES = (b".o", b".obj", b".cubin", b".fatbin", b".cu")
_GARBLED_ENTRY = re.compile(rb"entry function '([^'\n]+)")
_BODIES = (
    b"Compiling entry function '",
    b"Function properties for ",
    b"Used ",
    b"used ",
    b"Compile time = ",
)
# A line of a message that lost the tool's name, or part of it, still shows what it was.
_DAMAGED = re.compile(
    rb"entry function '|' for 'sm_\d"
    rb"|Function prop|unction properties|properties for '?_Z|roperties for _Z"
    rb"|bytes (?:stack frame|spill )|spill (?:stores|loads)|stack frame, \d"
    rb"|Used [^a-zA-Z]|used \d+ [rb]|\d registers\b|registers(?:, |\s*$)|bytes (?:smem|[cl]mem)"
    rb"|Compile t|ompile time|= [\d.]+ ms\s*$",
    re.MULTILINE,
)
# The rest of a message through which a log was cut.
_DEBRIS = re.compile(
    rb"bytes|registers|barriers|spill|stack frame|cumulative|[cgsl]mem|\bmem\[|'sm_\d|\d ms[ \t]*$"
    rb"|Compiling entry|Function prop|info +:|^[ \t]*\d+ b\w*$|^[ \t]*\S+[ \t]*$"
    rb"|(?<![\w./])(?:pt(?:xa?)?|nv(?:l(?:in?)?)?)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
# How build tools and CI services mark missing lines; the words are searched for first.
_MARK_WORD = re.compile(
    rb"clipped|truncated|omitted|elided|skipped|log|\.\.\.|\xe2\x80\xa6", re.IGNORECASE
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
    """Counts of what was read, for messages and `--verbose`. Samples are (source, line, text)."""

    bytes: int = 0
    lines: int = 0
    messages: int = 0
    entries: int = 0  # `Compiling entry function` lines, garbled ones included
    unknown: int = 0  # looks like ptxas, not understood or of no record
    unknown_samples: list[tuple[str, int, str]] = field(default_factory=list)
    unattached: int = 0  # warnings whose function the log does not hold
    unattached_samples: list[tuple[str, int, str]] = field(default_factory=list)


class Tail(NamedTuple):
    """The fields after the first one of a line."""

    figures: dict[str, int]  # sizes in bytes and counts, by the names of Row
    other: tuple[tuple[str, str], ...]
    is_clear: bool  # True if all of it was understood


class Named(NamedTuple):
    """`Compiling entry function 'symbol' for 'arch'`, or `Function properties for symbol`: of an
    entry or of a device function, or nvlink's."""

    symbol: str
    arch: str | None
    kind: Literal["entry", "properties", "link"]
    number: int  # number of the line


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
    """A message that is not understood: of a kind that is not known, or a damaged line, which may
    have opened the record of `entry`."""

    line: bytes
    number: int
    is_damaged: bool = True
    entry: str | None = None


class Gap(NamedTuple):
    """Lines are missing before the next event, for certain or as it seems."""

    is_certain: bool


Event = Named | Frame | Used | Time | Begin | Note | Unreadable | Gap


class Scanner:
    """Takes the lines of one log, or of one writer of it, and tells what they hold."""

    def __init__(
        self,
        take: Callable[[Event], None],
        has_open_record: Callable[[], bool],
        statistics: Statistics,
    ) -> None:
        """Calls `take` with each event, in the log's order; `has_open_record` says whether a record
        waits for a line other than its compile time."""
        self._take = take
        self._has_open_record = has_open_record
        self._statistics = statistics
        self._gap = b""  # the end of the text since the last message

    def scan(self, data: bytes, numbers: Sequence[int]) -> None:
        """Takes whole lines, and the number of each in its log."""
        after = at = 0  # ends of the last message, and of what was looked at
        counted = number = 0
        start = line_end = 0  # the line that was looked at last
        while match := _WORD.search(data, at):
            at = match.start()
            if at >= line_end:
                start = data.rfind(b"\n", line_end, at) + 1 or line_end
                line_end = data.find(b"\n", at) + 1
            number += data.count(b"\n", counted, start)
            counted = start
            if not match[1] and not _MESSAGE_LIKE.match(data, at):
                at = match.end()
                continue
            if start > after or self._gap:
                self._between(self._gap + data[max(after, start - _GAP) : start])
                self._gap = b""
            if match[1]:
                self._frame(data[start : line_end - 1], numbers[number])
                at = line_end
            else:
                at = self._message_of(data, at, line_end, numbers[number])
            after = at
        if after < len(data):
            self._gap = (self._gap + data[max(after, len(data) - _GAP) :])[-_GAP:]

    def _between(self, text: bytes) -> None:
        """Takes text of other programs between two messages."""
        lines = text[-_GAP:].split(b"\n")
        edge = None
        for index in range(len(lines) - 1, -1, -1):
            edge = _EDGE.match(lines[index])
            if edge:
                lines[index] = b""
                break
        rest = b"\n".join(lines)
        if edge:
            self._take(Begin(True, _object_of(edge[1])))
        elif (_MARK_WORD.search(rest) and _MARK.search(rest)) or _DAMAGED.search(rest):
            self._take(Gap(is_certain=True))
        elif self._has_open_record() and _DEBRIS.search(rest):
            self._take(Gap(is_certain=False))

    def _message_of(self, data: bytes, at: int, line_end: int, number: int) -> int:
        """Takes the message at `at`; if two writers met in its line, up to the second one's.
        Returns where to go on."""
        second = _TOOL.search(data, at + 5, line_end)
        if second and _MESSAGE.match(data, second.start(), line_end):
            self._message(data[at : second.start()], number, fused=True)
            return second.start()
        self._message(data[at : line_end - 1], number, fused=False)
        return line_end

    def _message(self, text: bytes, number: int, fused: bool) -> None:
        """Reads one line from the tool's name on."""
        match = _MESSAGE.match(text)
        if match is None:
            self._take(Unreadable(text, number))
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
            self._take(Note(function, line, is_error, number))
        else:
            is_damaged = any(start.startswith(body[:5]) for start in _BODIES)
            self._take(Unreadable(text, number, is_damaged))

    def _structural(
        self, tool: bytes, body: bytes, number: int, fused: bool, arch: str | None
    ) -> bool:
        """Takes one of the messages that make a record; False if it is not one."""
        if body.startswith(b"Compiling entry function"):
            if match := _ENTRY.fullmatch(body):
                symbol = match[1].decode("utf-8", "replace")
                self._take(Named(symbol, match[2].decode(), "entry", number))
            else:
                entry = _GARBLED_ENTRY.search(body)
                name = entry[1].decode("utf-8", "replace") if entry else "?"
                self._take(Unreadable(body, number, entry=name))
        elif match := _PROPERTIES.fullmatch(body):
            symbol = (match[1] or match[2]).decode("utf-8", "replace")
            kind: Literal["link", "properties"] = "link" if tool == b"nvlink" else "properties"
            self._take(Named(symbol, arch, kind, number))
        elif match := _USED.fullmatch(body):
            if fused:
                return False
            tail, by_linker = _tail(match[2]), tool == b"nvlink"
            self._take(Used(int(match[1]), tail, by_linker, body, number))
        elif match := _TIME.fullmatch(body):
            self._take(Time(float(match[1]), body, number))
        elif _UNIT.fullmatch(body):
            self._take(Begin(False, None))
        else:
            return False
        return True

    def _frame(self, line: bytes, number: int) -> None:
        match = _FRAME.fullmatch(line.rstrip())
        if match is None:
            self._take(Unreadable(line, number))
            return
        stack, stores, loads = (int(figure) for figure in match.groups()[:3])
        self._take(Frame(stack, stores, loads, _tail(match[4]), line, number))


@functools.lru_cache(1024)  # most are alike
def _tail(text: bytes) -> Tail:
    figures: dict[str, int] = {}
    other: list[tuple[str, str]] = []
    is_clear = True
    for item in text.decode("utf-8", "replace").split(", ")[1:]:
        match = _ITEM.fullmatch(item.rstrip())
        if match is None:
            is_clear = False
        elif column := _COLUMNS.get(match[2]):
            figures[column] = int(match[1])
        else:
            other.append((match[2], match[1]))
    return Tail(figures, tuple(other), is_clear)


def _object_of(edge: bytes) -> str | None:
    """Returns the object that a step of ninja makes: after -o, else a description's last word."""
    option = edge.rfind(b" -o ")
    if option >= 0:
        last = edge[option + 4 :].split(None, 1)[:1]
        return last[0].strip(b'"').decode("utf-8", "replace") if last else None
    last = edge.split()[-1:]
    if last and last[0].endswith(_OBJECT_SUFFIXES):
        return last[0].decode("utf-8", "replace")
    return None
