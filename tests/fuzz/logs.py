"""Damages real logs of ptxas and reads them.

A log's figures are first replaced by numbers that stand nowhere else, so that every number says
whose it is. Then the log is damaged as build tools and CI services do it, and parsed. However it
was damaged:

- no exception, and an end within the time limit;
- a row that is not marked incomplete carries no other kernel's figures;
- the rows are the same, whatever the chunks in which the log is read;
- the rows come back from their CSV.

Nothing can tell a log from which whole lines of two neighbouring records are gone without a trace
from a shorter, whole log. So what is cut out beyond one record leaves a trace here: a service's
mark, or part of a line.
"""

from __future__ import annotations

import io
import itertools
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.core.home import ROOT
from codegen.core.ptxas_rows import Row, csv_text, read_csv
from codegen.ptxas.events import Statistics
from codegen.ptxas.parser import CHUNK, Parser

DATA = ROOT / "tests" / "ptx_report" / "data"
FIGURES = (
    "stack_frame",
    "spill_stores",
    "spill_loads",
    "used_registers",
    "barriers",
    "smem",
    "cmem0",
    "cumulative_stack",
    "compile_time_ms",
)
MARKS = (
    b"[output clipped, log limit 2MiB reached]",
    b"#9 71.2 [output clipped, log limit 100KiB/s reached]",
    b"[... 4096 bytes truncated ...]",
    b"...",
    b"... [214 lines omitted] ...",
    b"Job's log exceeded limit of 4194304 bytes.",
    b"##[warning]The log is too long, 1204 lines were skipped",
)
PREFIXES = (b"", b"2026-11-21T02:40:11.5Z ", b"#9 71.2 ", b"[build, compile] | ", b"\t")
# What a long line may consist of.
TOKENS = (
    b"Used 3 registers",
    b"Used 3 registers, ",
    b"ptxas info    : Used 3 registers",
    b"ptxas info    : ",
    b"nvlink ",
    b"ptxas warning : in function 'f', line 3; ",
    b"Compiling entry function 'a' for 'sm_80'",
    b"Function properties for ",
    b"8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads",
    b"8 bytes stack frame, ",
    b", 5 bytes smem",
    b"Compile time = 1.5 ms",
    b"Compile time = ",
    b"[1/2] ",
    b"7",
    b" ",
    b"\r",
    b"\x1b",
    b"\x1b]",
    b"'",
    b"\xff",
    b"a",
    b"_Z",
)

_STAMPED = re.compile(
    rb"\d+(?= bytes (?:stack frame|spill|cumulative|smem|cmem\[0\])| registers| barriers| stack)"
)
_TIME = re.compile(rb"(?<=Compile time = )[\d.]+")
_FIRST = 100_000_000  # numbers of nine digits: part of one is never another


class FuzzError(Exception):
    """What does not hold of a log."""


@dataclass(frozen=True)
class Sample:
    """A log whose figures are all different.

    `records` are its lines by record: those that stand between two records are one of their own.
    `owners` says for each number which kernel of which architecture it is of. `timed` says of
    which kinds of functions the log gives compile times.
    """

    name: str
    records: tuple[tuple[bytes, ...], ...]
    owners: dict[float, tuple[str, str | None]]
    timed: frozenset[str]


def samples() -> list[Sample]:
    """The real logs of the test suite."""
    paths = sorted(DATA.glob("*.log"))
    numbers = iter(range(_FIRST, 10 * _FIRST))
    return [_sample(path.name, path.read_bytes(), numbers) for path in paths]


def _sample(name: str, text: bytes, numbers: Iterator[int]) -> Sample:
    def number(_: re.Match[bytes]) -> bytes:
        return b"%d" % next(numbers)

    text = _TIME.sub(number, _STAMPED.sub(number, text))
    rows = read(text)
    lines = text.splitlines()
    starts = sorted({0, *(row.line - 1 for row in rows if row.line), len(lines)})
    records = [tuple(lines[a:b]) for a, b in itertools.pairwise(starts)]
    owners = {
        value: (row.symbol, row.arch)
        for row in rows
        for figure in FIGURES
        if (value := getattr(row, figure)) is not None and value >= _FIRST
    }
    timed = frozenset(row.kind for row in rows if row.compile_time_ms is not None)
    return Sample(name, tuple(records), owners, timed)


def read(text: bytes, chunk: int = CHUNK) -> list[Row]:
    """The rows of a log that is read in chunks of that many bytes."""
    parser = Parser("log", Statistics())
    stream = io.BytesIO(text)
    rows: list[Row] = []
    while piece := stream.read(chunk):
        rows += parser.feed(piece)
    return [*rows, *parser.finish()]


# Damages: each takes a log's lines by record, and gives lines.


def _dropped(rng: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Lines of one record are gone without a trace, but not all that say where it begins: what is
    left would be of the record before."""
    hurt = rng.randrange(len(records))
    kept = [line for line in records[hurt] if rng.random() < 0.6]
    if not any(b"unction" in line for line in kept):
        kept = []
    return _whole(rng, [*records[:hurt], kept, *records[hurt + 1 :]])


def _cut(rng: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Pieces are gone, and a mark stands in their place."""
    lines = [line for record in records for line in record]
    for _ in range(rng.randint(1, 3)):
        begin = rng.randrange(len(lines))
        end = min(len(lines), begin + rng.randint(1, 12))
        before = (
            [lines[begin][: rng.randrange(len(lines[begin]) + 1)]] if rng.random() < 0.4 else []
        )
        lines[begin:end] = [*before, rng.choice(MARKS)]
    return lines


def _clipped(rng: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Lines are shortened, at their head or their tail."""
    lines = [line for record in records for line in record]
    for _ in range(rng.randint(1, 4)):
        index = rng.randrange(len(lines))
        at = rng.randrange(len(lines[index]) + 1)
        lines[index] = lines[index][at:] if rng.random() < 0.4 else lines[index][:at]
    return lines


def _doubled(rng: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Lines, or whole records, stand there twice."""
    lines: list[bytes] = []
    whole = rng.random() < 0.3
    for record in records:
        for line in record:
            lines += [line] * (1 if whole or rng.random() < 0.9 else rng.randint(2, 3))
        if whole and rng.random() < 0.3:
            lines += record
    return lines


def _garbled(rng: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Bytes are replaced."""
    lines = [line for record in records for line in record]
    for _ in range(rng.randint(1, 5)):
        index = rng.randrange(len(lines))
        line = lines[index]
        at = rng.randrange(len(line) + 1)
        junk = rng.choice((b"\xff", b"?", b"\x00", b"\xc3\x28", b"~~~", b"9" * 5000, b"\x1b[31m"))
        lines[index] = line[:at] + junk + line[at + rng.randint(0, 3) :]
    return lines


def _whole(_: random.Random, records: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [line for record in records for line in record]


DAMAGES: tuple[Callable[[random.Random, Sequence[Sequence[bytes]]], list[bytes]], ...] = (
    _dropped,
    _cut,
    _clipped,
    _doubled,
    _garbled,
    _whole,
)


def _interleaved(rng: random.Random, logs: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Several processes write into one log, line by line; a function's line and that of its spills
    are one write (tests/ptx_report/data/README.md)."""
    waiting = [list(reversed(log)) for log in logs]
    lines: list[bytes] = []
    while waiting := [log for log in waiting if log]:
        log = rng.choice(waiting)
        for _ in range(min(len(log), rng.randint(1, 6))):
            lines.append(log.pop())
        if log and b"Function properties" in lines[-1]:
            lines.append(log.pop())
    return lines


def _long_line(rng: random.Random) -> bytes:
    words = rng.choices(TOKENS, k=rng.randint(1, 3))
    return b"".join(words) * (rng.choice((1_000, 30_000, 300_000)) // sum(map(len, words)))


def damaged(rng: random.Random, known: Sequence[Sample]) -> tuple[bytes, list[Sample]]:
    """A log, and the samples that it was made of."""
    shape = rng.random()
    if shape < 0.02:
        parts = [_long_line(rng), *_excerpt(rng, known[0])[0], _long_line(rng)]
        return b"\n".join(parts) + b"\n", [known[0]]
    if shape < 0.3:
        first = rng.choice(known)
        alike = [sample for sample in known if sample.timed == first.timed]
        chosen = rng.choices(alike, k=rng.randint(2, 3))
        lines = _interleaved(rng, [_whole(rng, _excerpt(rng, sample)) for sample in chosen])
    else:
        chosen = rng.sample(known, rng.randint(1, 2))
        records = [record for sample in chosen for record in _excerpt(rng, sample)]
        lines = rng.choice(DAMAGES)(rng, records)
    prefix = rng.choice(PREFIXES)
    end = rng.choice((b"\n", b"\r\n"))
    text = b"".join(prefix + line + end for line in lines)
    return (text.rstrip(b"\r\n") if rng.random() < 0.1 else text), chosen


def _excerpt(rng: random.Random, sample: Sample) -> Sequence[Sequence[bytes]]:
    first = rng.randrange(len(sample.records))
    return sample.records[first : first + rng.randint(2, 14)]


def check(text: bytes, chosen: Sequence[Sample], chunks: Sequence[int]) -> None:
    """Raises FuzzError if something does not hold of a log."""
    rows = read(text)
    owners = {number: owner for sample in chosen for number, owner in sample.owners.items()}
    symbols = {symbol for symbol, _ in owners.values()}
    archs = {arch for _, arch in owners.values()} | {None}
    for row in rows:
        if row.incomplete is not None or row.symbol not in symbols or row.arch not in archs:
            continue  # marked, or a garbled name
        for figure in FIGURES:
            symbol, arch = owners.get(getattr(row, figure), (row.symbol, row.arch))
            if symbol != row.symbol or (arch or row.arch) != (row.arch or arch):
                where = f"line {row.line}: {row.symbol} {row.arch}"
                raise FuzzError(f"{where}: {figure} is that of {symbol} {arch}")
    for chunk in chunks:
        again = read(text, chunk)
        if again != rows:
            one, other = next(pair for pair in _paired(rows, again) if pair[0] != pair[1])
            raise FuzzError(f"in chunks of {chunk} bytes: {other}, in one piece: {one}")
    with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8", newline="") as file:
        file.write(csv_text(rows))
        file.flush()
        if csv_text(read_csv(Path(file.name))) != csv_text(rows):
            raise FuzzError("the rows do not come back from their CSV")


def _paired(one: list[Row], other: list[Row]) -> Iterator[tuple[object, object]]:
    length = max(len(one), len(other))
    nothing: list[None] = [None] * length
    return zip((one + nothing)[:length], (other + nothing)[:length], strict=True)
