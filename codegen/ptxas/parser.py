"""Events of a log in, records out, in constant memory.

What ptxas prints for a kernel is named in two of its lines and unnamed in the others:

    ptxas info    : Compiling entry function 'X' for 'sm_90a'     opens the row
    ptxas info    : Function properties for X                     the entry, or a device function
        88 bytes stack frame, 84 bytes spill stores, 84 bytes spill loads
    ptxas info    : Used 255 registers, used 1 barriers, ...
    ptxas info    : Compile time = 124.007 ms                     from CUDA 12.8 on
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from codegen.core.ptxas_rows import Row
from codegen.ptxas.events import (
    Begin,
    Event,
    Frame,
    Gap,
    Named,
    Note,
    Scanner,
    Statistics,
    Time,
    Unreadable,
    Used,
)
from codegen.ptxas.tags import Tags
from codegen.ptxas.waiting import ENTERED, FRAMED, NAMED, TIMED, USED, USED_UP, Open, Queue

CHUNK = 1 << 20
WINDOW = 1 << 19  # bytes that are read at once, whatever the chunks; longer lines come in pieces
_REACH = 4096  # records that a later line can still reach
_SAMPLES = 100  # lines kept of what was not understood
_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-9A-B]|[@-Z\\^_=>78])"
)


class Parser:
    """Takes the bytes of one log in chunks, and makes records of what they say.

    Lines that a tool has tagged with their writers are read writer by writer.
    """

    def __init__(self, source: str | None, statistics: Statistics) -> None:
        self._source = source
        self._statistics = statistics
        self._rest = bytearray()  # bytes that are not read yet
        self._line = 1  # number of its first line
        self._tags = Tags()
        self._writers: dict[bytes, _Writer] = {}  # by tag

    def feed(self, chunk: bytes) -> list[Row]:
        """Takes the next bytes; the records that can no longer change, in the log's order."""
        self._statistics.bytes += len(chunk)
        self._rest += chunk
        if len(self._rest) <= WINDOW:
            return []
        data = bytes(self._rest)
        start = 0
        while len(data) - start > WINDOW:
            if end := data.rfind(b"\n", start, start + WINDOW + 1) + 1:
                self._read(data[start:end])
            else:
                end = start + WINDOW
                self._read(data[start:end] + b"\n")
                self._line -= 1
                self._statistics.lines -= 1
            start = end
        del self._rest[:start]
        return self._in_order(writer.finished() for writer in self._writers.values())

    def finish(self) -> list[Row]:
        """Takes the end of the log; the other records."""
        if self._rest:
            self._read(bytes(self._rest).removesuffix(b"\n") + b"\n")
            self._rest.clear()
        return self._in_order(writer.finish() for writer in self._writers.values())

    def _read(self, data: bytes) -> None:
        """Takes whole lines."""
        if b"\x1b" in data:
            data = _ANSI.sub(b"", data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
        for tag, lines, numbers in self._tags.split(data, self._line):
            if tag not in self._writers:
                self._writers[tag] = _Writer(self._source, self._statistics)
            self._writers[tag].read(lines, numbers)
        count = data.count(b"\n")
        self._line += count
        self._statistics.lines += count

    def _in_order(self, rows: Iterable[list[Row]]) -> list[Row]:
        return sorted(itertools.chain.from_iterable(rows), key=lambda row: row.line or 0)


class _Writer:
    """Makes records of what one writer's lines say: all lines, if none is tagged."""

    def __init__(self, source: str | None, statistics: Statistics) -> None:
        self.statistics = statistics
        self.source = source  # the object that the lines are about, if a build tool says so
        self._scanner = Scanner(self._take, self._has_open_record, statistics)
        self._finished: list[Row] = []
        self._log = source  # the name of the whole log
        self._window: deque[Open] = deque()
        self._last: Open | None = None  # the record that the last message was about
        # Entries that wait for their `Function properties`, by symbol.
        self._entered: dict[str, Queue] = {}
        self._used = Queue(lambda record: record.withdraw(*USED), USED_UP)
        self._times = Queue(lambda record: record.withdraw("compile_time_ms"), TIMED, optional=True)
        self._links = Queue(Open.withdraw, USED_UP)
        self._unit: dict[str, Open] = {}  # the records of the current run of ptxas
        self._unit_is_whole = True  # if it is known
        self._unit_notes: list[tuple[int, str]] = []  # notes of the run that name no function
        # Notes whose function has not come yet, by its symbol.
        self._pending: dict[str, list[tuple[int, str]]] = {}
        self._notes: list[tuple[str | None, int, str]] = []  # notes since the last structural line
        self._takers: dict[type, Callable[[Any], None]] = {
            Named: self._named,
            Frame: self._frame,
            Used: self._used_up,
            Time: self._time,
            Note: self._note,
            Unreadable: self._unreadable,
            Gap: self._gap,
            Begin: self._begin,
        }

    def read(self, lines: bytes, numbers: Sequence[int]) -> None:
        """Takes the next lines, whole, and their numbers."""
        self._scanner.scan(lines, numbers)

    def finished(self) -> list[Row]:
        """Returns the further records that can no longer change."""
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> list[Row]:
        """Takes the end of the log; the other records."""
        self._settle_notes()
        self._end_unit()
        return [*self._finished, *(record.freeze() for record in self._window)]

    def _has_open_record(self) -> bool:
        return bool(self._used.waiting or self._links.waiting or self._entered)

    def _take(self, event: Event) -> None:
        self._takers[type(event)](event)

    def _named(self, event: Named) -> None:
        symbol, arch, kind, number = event
        if kind == "entry":
            self._entry(symbol, arch, number)
        elif kind == "properties":
            self._properties(symbol, number)
        else:
            record = self._open(symbol, "link", number)
            record.arch = arch
            self._links.join(record)

    def _begin(self, event: Begin) -> None:
        if event.is_step:
            self._settle_notes()
            self.source = event.made or self._log
        self._end_unit()
        self._bar()

    def _entry(self, symbol: str, arch: str | None, number: int) -> None:
        record = self._open(symbol, "kernel", number)
        record.arch = arch
        self._entered.setdefault(symbol, Queue(Open.withdraw_all, NAMED)).join(record)

    def _properties(self, symbol: str, number: int) -> None:
        queue = self._entered.get(symbol)
        if queue is None:
            self._times.join(self._open(symbol, "function", number))
            return
        taker = queue.line(self._last)
        if not queue.waiting:
            del self._entered[symbol]
        if taker is None:  # lines of it will come all the same, and belong to no row
            taker = Open(symbol, None, number)
            taker.barred = True
        taker.stage = NAMED
        self._last = taker
        for queue in (self._used, self._times):
            queue.join(taker)

    def _frame(self, event: Frame) -> None:
        record = self._last  # ptxas writes this line and the one that names its function at once
        if record is None or record.stage != NAMED:
            self._last = None
            self._belongs_to_none(event.line, event.number, is_awaited=False)
            return
        if record.barred:  # one of two records of a name has it, and which is unknown
            self._last = None
            self._unknown(event.line, event.number)
            return
        stack, stores, loads, tail, *_ = event
        record.take(FRAMED, tail, stack_frame=stack, spill_stores=stores, spill_loads=loads)
        if not tail.is_clear:
            self._unknown(event.line, event.number)

    def _used_up(self, event: Used) -> None:
        queue = self._links if event.by_linker else self._used
        is_awaited = bool(queue.waiting)
        if is_awaited:
            self._last = queue.line(self._last)
        elif event.by_linker or self._last is None or not self._takes_unawaited(self._last):
            self._last = None
        record = self._last
        if record is None:
            self._belongs_to_none(event.line, event.number, is_awaited)
            return
        record.take(USED_UP, event.tail, used_registers=event.registers)
        if not event.tail.is_clear:
            record.incomplete = "part of its 'Used' line is not understood"
            self._unknown(event.line, event.number)

    def _takes_unawaited(self, last: Open) -> bool:
        """Returns whether `last` takes the `Used` line after it, while no record waits for one."""
        if last.barred:
            return False
        if last.kind == "kernel" and last.stage == ENTERED:
            self._entered.pop(last.symbol, None)  # a log of which only these two lines were kept
            return True
        if last.kind == "function" and last.stage == FRAMED:
            last.kind = "kernel"  # device functions have no such line
            self._times.promote(last)
            last.incomplete = "its 'Compiling entry function' line is missing"
            return True
        return False

    def _time(self, event: Time) -> None:
        record = self._times.line(self._last)
        self._last = None  # nothing follows a record's time
        if record is None:
            self._unknown(event.line, event.number)
        else:
            record.figures["compile_time_ms"] = event.milliseconds

    def _note(self, event: Note) -> None:
        if event.function or not event.text.startswith("Overriding "):
            self._notes.append((event.function, event.number, event.text))
            if len(self._notes) > _REACH:  # warnings alone, without the kernels' lines
                self._settle_notes()
        if event.is_error:
            self._gap(Gap(is_certain=False))

    def _unreadable(self, event: Unreadable) -> None:
        if event.is_damaged:
            self._gap(Gap(is_certain=True))
        if event.entry is None:
            self._unknown(event.line, event.number)
            return
        record = self._open(event.entry, "kernel", event.number)
        record.barred = True
        record.incomplete = "its 'Compiling entry function' line is garbled"
        self._last = None

    def _unknown(self, line: bytes, number: int) -> None:
        self.statistics.unknown += 1
        if len(self.statistics.unknown_samples) < _SAMPLES:
            sample = line[:300].decode("utf-8", "replace").strip()
            self.statistics.unknown_samples.append((self._log or "-", number, sample))

    def _gap(self, event: Gap) -> None:
        self._unit_is_whole = False
        self._bar()
        if event.is_certain:
            for queue in self._queues():
                queue.settle()

    def _bar(self) -> None:
        """Ends the records before a gap: none of them takes a line after it."""
        self._last = None
        if self._times.waiting or self._has_open_record():
            for queue in self._queues():
                for record in queue.waiting:
                    record.barred = True

    def _queues(self) -> tuple[Queue, ...]:
        return (self._used, self._times, self._links, *self._entered.values())

    def _belongs_to_none(self, line: bytes, number: int, is_awaited: bool) -> None:
        self._unknown(line, number)
        if not is_awaited:  # the line that names its function is missing
            self._gap(Gap(is_certain=True))

    def _open(self, symbol: str, kind: str, number: int) -> Open:
        """Begins a record."""
        if self._notes:
            self._settle_notes()
        record = Open(symbol, self.source, number, kind)
        for _, text in self._pending.pop(symbol, ()):
            record.note(text)
        if kind == "kernel":
            self.statistics.entries += 1
            self._unit[symbol] = record
        else:
            self._unit.setdefault(symbol, record)
        self._last = record
        self._window.append(record)
        self._trim()
        return record

    def _trim(self) -> None:
        """Ends the oldest records: they can no longer change."""
        while len(self._window) > _REACH:
            record = self._window.popleft()
            if self._unit.get(record.symbol) is record:
                del self._unit[record.symbol]
            if record.stage == ENTERED:
                self._entered.pop(record.symbol, None)
            self._finished.append(record.freeze())

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
        while len(self._pending) > _REACH:
            name = next(iter(self._pending))
            for number, text in self._pending.pop(name):
                self._unattached(number, f"{name}: {text}")
        for number, text in self._unit_notes[_REACH:]:
            self._unattached(number, text)
        del self._unit_notes[_REACH:]

    def _end_unit(self) -> None:
        """Ends a run of ptxas. The notes right before the next run's first line are that run's."""
        kernels: list[Open] = []
        if self._unit_notes:
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

    def _unattached(self, number: int, text: str) -> None:
        self.statistics.unattached += 1
        if len(self.statistics.unattached_samples) < _SAMPLES:
            self.statistics.unattached_samples.append((self._log or "-", number, text))


def parse(chunks: Iterable[bytes], source: str | None, statistics: Statistics) -> Iterator[Row]:
    """Yields the records of one log, in its order.

    Args:
        chunks: its bytes, in pieces.
        source: what to call the log if no build tool's line names an object.
        statistics: added to while reading.
    """
    parser = Parser(source, statistics)
    for chunk in chunks:
        yield from parser.feed(chunk)
    yield from parser.finish()
