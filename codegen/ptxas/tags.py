"""Lines of a log by who wrote them, if a tool put a tag before each: `1>` (MSBuild), `#12 34.5`
(BuildKit, with the time), `web-1  | ` (compose), or any other.

A tag is text that stands both before lines that name a function and before lines that do not.
Times beside it do not count. The log is split if its lines show that writers alternate: a tag
comes back after another one, and mostly an entry and its properties have one tag. So neither time
stamps nor numbers of lines are tags. Only if what is left without times is not a tag, a time may
be one, such as the version 12.4.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_TIME = rb"""(?x: (?<![^\s\[(|]) (?:
    (?: \d{4}[-/.]\d\d?[-/.]\d\d? | \d\d?[-/.]\d\d?[-/.]\d{4} )                        # a date
        (?: [T ,]+ \d\d?:\d\d (?: :\d\d (?:[.,]\d+)? )? (?: [ ]?[AP]M )? )?
        (?: [ ]?(?: Z | UTC | [+-]\d\d:?\d\d ) )?
    | (?: (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?[ ]+ )?
        (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*[ ]+\d\d?
    | (?: \d+:)? \d\d?:\d\d (?: :\d\d )? (?: [.,]\d+ )? (?: [ ]?[AP]M )? (?: Z | [+-]\d\d:?\d\d )?
    | [+]?\d+[.]\d+ (?: m?s )?  |  [+]?\d+(?: ms | [smh] )  |  \d{10,19}
    ) (?= [\s\])|:,] | $ ) )"""
_NODE = re.compile(rb"^[ \t]*(?:%b[ \t]+)?(\d+(?::\d+)?>)" % _TIME, re.MULTILINE)  # MSBuild's
_TARGET = re.compile(rb"\w+:\s*")  # the rest of a line in which MSBuild says what is next
_CONTINUED = re.compile(rb"(?:ptxas|nvlink) +\.\s*$")  # NVRTC's, before the spills
# Words of lines that show their writer.
_FRAME = b" bytes stack frame"
_USED = b"info    : used "  # nvlink's
_OTHERS = (b"info    : Used ", b"info    : Compile time")
_BARE = re.compile(rb"\n[ \t]*(?:\d+ bytes stack frame|nvlink info    : used )")
_NAMED = (b"Compiling entry function '", b"Function properties for ")
_MOST_TAGS = 1000  # in what is read at once; more are time stamps
_LONGEST_TAG = 256  # bytes, with times


class _Line(NamedTuple):
    """A line that says who wrote it."""

    at: int
    prefix: bytes
    symbol: bytes  # the function that the line names
    is_entry: bool


class _Spelling(NamedTuple):
    """How tags are written: with what between their words."""

    time: re.Pattern[bytes]
    gap: bytes
    is_raw: bool  # a time may be a tag

    def tag(self, prefix: bytes) -> bytes:
        """Returns the tag in the text before a line."""
        return b" ".join(self.time.sub(b" ", prefix).split())

    def pattern(self, tags: Iterable[bytes]) -> re.Pattern[bytes]:
        """Matches the tag of a line, a group for each."""
        words = (self.gap.join(map(re.escape, tag.split())) for tag in tags)
        either = (b"(%b)%b" % (w, rb"(?!\w)" if w[-1:].isalnum() else b"") for w in words)
        return re.compile(b"%b(?:%b)%b" % (self.gap, b"|".join(either), self.gap))


_SPELLINGS = (
    _Spelling(re.compile(_TIME), rb"\s*(?:%b\s*){0,3}" % _TIME, is_raw=False),
    _Spelling(re.compile(rb"(?!)"), rb"\s*", is_raw=True),
)


class Tags:
    """Splits a log by its tags, piece by piece; what has none is one writer's."""

    def __init__(self) -> None:
        self._spelling: _Spelling | None = None  # None: not to be split
        self._tags: list[bytes] = []  # the longest first
        self._pattern: re.Pattern[bytes] | None = None
        self._stays = False  # a line without a tag is of the last one
        self._last = b""

    def split(self, data: bytes, first: int) -> list[tuple[bytes, bytes, Sequence[int]]]:
        """Returns the tag, the lines and their numbers of each writer in `data`, whole lines from
        number `first` on."""
        self._learn(data)
        if self._pattern is None:
            return [(b"", data, range(first, sys.maxsize))]
        lines: defaultdict[bytes, list[bytes]] = defaultdict(list)
        numbers: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, line in enumerate(data.split(b"\n")[:-1], first):
            if match := self._pattern.match(line):
                tag = self._tags[(match.lastindex or 1) - 1]
                line = line[match.end() :]
                if self._stays and _TARGET.fullmatch(line):
                    line = b""
            else:
                tag = self._last if self._stays else b""
            self._last = tag
            lines[tag].append(line)
            numbers[tag].append(number)
        return [(tag, b"\n".join([*own, b""]), numbers[tag]) for tag, own in lines.items()]

    def _learn(self, data: bytes) -> None:
        """Takes the tags of a log that is to be split."""
        learnt: set[bytes] = set()
        nodes = set(_NODE.findall(data)) if b"1>" in data and b"2>" in data else set()
        if len(nodes) > 1:  # MSBuild writes one where the writer changes, and may write no other
            self._stays = True
            self._spelling = _SPELLINGS[0]
            learnt |= nodes
        if data.count(_FRAME) + data.count(_USED) > len(_BARE.findall(data)):
            unnamed = [*_lines(data, _FRAME), *_lines(data, _USED)]
            prefixes = {line.prefix for line in unnamed}
            known = {b"", *self._tags}
            for spelling in (self._spelling,) if self._spelling else _SPELLINGS:
                if spelling.is_raw and len(prefixes) > _MOST_TAGS:
                    break
                tags = {spelling.tag(prefix) for prefix in prefixes}
                if tags <= known or not (self._spelling or 1 < len(tags) <= _MOST_TAGS):
                    continue
                named = [line for words in _NAMED for line in _lines(data, words)]
                tags &= {spelling.tag(line.prefix) for line in named}
                tags.discard(b"")
                others = (line for words in _OTHERS for line in _lines(data, words))
                lines = sorted([*unnamed, *named, *others])
                if self._spelling or _alternate(lines, tags, spelling):
                    self._spelling = spelling
                    learnt |= tags
                    break
        if self._spelling and not learnt <= set(self._tags):
            self._tags = sorted(learnt | set(self._tags), key=lambda tag: (-len(tag), tag))
            self._pattern = self._spelling.pattern(self._tags)


def _lines(data: bytes, words: bytes) -> list[_Line]:
    """Returns the lines that hold these words."""
    lines = []
    at = data.find(words)
    while at >= 0:
        start = data.rfind(b"\n", max(0, at - _LONGEST_TAG), at) + 1
        if start or at < _LONGEST_TAG:
            symbol = b""
            if words == _FRAME:
                prefix = _CONTINUED.sub(b"", data[start:at].rstrip(b"0123456789"))
            else:
                tool = max(data.rfind(b"ptxas", start, at), data.rfind(b"nvlink", start, at))
                prefix = data[start : max(tool, start)]
                if words in _NAMED:
                    rest = data[at + len(words) : data.find(b"\n", at)]
                    symbol = rest.partition(b"' for '")[0].strip(b"': ")
            lines.append(_Line(at, prefix.strip(), symbol, words == _NAMED[0]))
        at = data.find(words, at + 1)
    return lines


def _alternate(lines: Sequence[_Line], tags: set[bytes], spelling: _Spelling) -> bool:
    """Returns whether these tags belong to writers whose lines alternate."""
    own = [tag if (tag := spelling.tag(line.prefix)) in tags else b"" for line in lines]
    runs = Counter(tag for tag, _ in itertools.groupby(own))
    if not any(tag and count > 1 for tag, count in runs.items()):
        return False
    entered: defaultdict[bytes, list[bytes]] = defaultdict(list)
    agree = differ = 0
    for tag, line in zip(own, lines, strict=True):
        if line.is_entry:
            entered[line.symbol].append(tag)
        elif line.symbol and (waiting := entered[line.symbol]):
            agree += tag in waiting
            differ += tag not in waiting
            waiting.remove(tag if tag in waiting else waiting[0])
    return agree > differ
