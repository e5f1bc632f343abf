"""Time traces of compilers, those of nvcc's --fdevice-time-trace and of Clang's -ftime-trace, as
events that lie within each other, and their sums."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from codegen.core.ptxas_rows import ReportError

from ..ptx_report.demangle import demangle

_KINDS = {
    "Processing Header File": "header",
    "Source": "header",
    "Instantiating Template Function": "template",
    "Instantiating Template Class": "template",
    "InstantiateFunction": "template",
    "InstantiateClass": "template",
    "OptFunction": "function",
    "Optimizing compilation unit": "function",  # ptxas
}
KINDS = ("unit", "header", "template", "function", "phase")
_BEGINNING = 4096  # bytes of a file within which a trace says that it is a trace
_OPERATOR = re.compile(r"operator(<=>|<<=|>>=|->\*|<<|>>|<=|>=|->|<|>)")


class Frame(NamedTuple):
    """The subject of an event: its kind, one of KINDS, and a name."""

    kind: str
    name: str


class Event(NamedTuple):
    """An event: its frame, its begin and end in seconds, and the thread that it belongs to."""

    frame: Frame
    begin: float
    end: float
    thread: tuple[Any, Any]


@dataclass
class Cost:
    """The cost of a frame: seconds with all that lies within it, without, and how many events."""

    total: float = 0.0
    self: float = 0.0
    count: int = 0


@dataclass
class Node:
    """A frame at its place in the flame graph: events at the same place are one node."""

    total: float = 0.0
    count: int = 0
    children: dict[Frame, Node] = field(default_factory=dict)


@dataclass
class Profile:
    """The sums over traces: the cost of each frame, the root of the flame graph, and the demangled
    names of functions."""

    costs: dict[Frame, Cost] = field(default_factory=dict)
    root: Node = field(default_factory=Node)
    names: dict[str, str] = field(default_factory=dict)

    def name(self, frame: Frame) -> str:
        """Returns a frame's name for people."""
        return self.names[frame.name] if frame.kind == "function" else frame.name

    def ranked(self, kind: str) -> list[tuple[str, Cost]]:
        """Returns the names of a kind, the most expensive by total seconds first."""
        of_kind = [(self.name(f), cost) for f, cost in self.costs.items() if f.kind == kind]
        return sorted(of_kind, key=lambda item: (-item[1].total, item[0]))


def files(paths: Sequence[Path]) -> list[Path]:
    """Returns the traces: files as they are named, and those of folders that begin as a trace.

    Raises ReportError if there is none.
    """
    traces: list[Path] = []
    for path in paths:
        try:
            inside = sorted(path.rglob("*.json")) if path.is_dir() else None
            traces += [path] if inside is None else filter(_is_trace, inside)
        except OSError as error:
            raise ReportError(f"{error.filename}: {error.strerror}") from None
    if not traces:
        raise ReportError(
            f"{', '.join(map(str, paths))}: no time trace in it: `kernelmint build --profile DIR` "
            "writes some, as does nvcc 13 with --fdevice-time-trace, and Clang with -ftime-trace"
        )
    return traces


def _is_trace(path: Path) -> bool:
    with open(path, "rb") as file:
        return b'"traceEvents"' in file.read(_BEGINNING)


def profile(traces: Sequence[Path]) -> Profile:
    """Returns the sums over traces. Raises ReportError, naming the file, if one is damaged."""
    made = Profile()
    for path in traces:
        _add(made, Frame("unit", str(path).removesuffix(".json")), _read(path))
    made.names = demangle(frame.name for frame in made.costs if frame.kind == "function")
    return made


def _add(made: Profile, unit: Frame, events: list[Event]) -> None:
    """Adds a unit's events, of which each thread's lie within each other."""
    of_unit = made.costs.setdefault(unit, Cost(count=1))
    stack: list[tuple[Event, Frame, Node]] = []
    events.sort(key=lambda event: (event.thread, event.begin, -event.end))
    for event in events:
        while stack and (event.thread != stack[-1][0].thread or event.begin >= stack[-1][0].end):
            stack.pop()
        frame, seconds = event.frame, event.end - event.begin
        cost = made.costs.setdefault(frame, Cost())
        cost.count += 1
        cost.self += seconds
        if all(outer != frame for _, outer, _ in stack):  # a recursion's time counts once
            cost.total += seconds
        if stack:
            outer_event, outer, _ = stack[-1]
            made.costs[outer].self -= min(event.end, outer_event.end) - event.begin
        else:
            of_unit.total += seconds
            made.root.total += seconds
        parent = stack[-1][2] if stack else made.root
        node = parent.children.setdefault(frame, Node())
        node.total += seconds
        node.count += 1
        stack.append((event, frame, node))


def _read(path: Path) -> list[Event]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    try:
        listed = json.loads(text)["traceEvents"]
        events = list(_events(listed))
    except json.JSONDecodeError as error:
        raise ReportError(
            f"{path}: no whole time trace: {error}: build it again (a compiler was ended while it "
            "wrote, or the file is another)"
        ) from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReportError(
            f"{path}: not a time trace of nvcc or Clang: {type(error).__name__}: {error}"
        ) from None
    if not events:
        raise ReportError(f"{path}: a time trace without events: build it again")
    return events


def _events(listed: list[dict[str, Any]]) -> Iterator[Event]:
    begun: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for event in listed:
        phase, name = event.get("ph"), event.get("name")
        if phase not in ("X", "b", "e"):  # metadata, or nvcc's empty first event
            continue
        arguments = event.get("args") or {}
        if "count" in arguments:
            continue  # Clang's sums, beside the events
        thread = (int(event["pid"]), int(event["tid"]))
        begin = end = event["ts"] / 1e6
        if phase == "X":
            end += event["dur"] / 1e6
        elif phase == "b":  # Clang 19 and later, of headers
            begun.setdefault((*thread, name, event.get("id")), []).append(event)
            continue
        else:
            first = begun[(*thread, name, event.get("id"))].pop()
            begin, arguments = first["ts"] / 1e6, first.get("args") or {}
        if not 0 <= begin <= end:
            raise ValueError(f"{name}: begins at {begin} s, and ends at {end} s")
        yield Event(_frame(str(name), str(arguments.get("detail") or arguments.get("name") or "")),
                    begin, end, thread)  # fmt: skip


def _frame(name: str, detail: str) -> Frame:
    kind = _KINDS.get(name) if detail else None
    if kind == "header":
        return Frame(kind, os.path.normpath(detail))
    if kind == "template":
        return Frame(kind, _template(detail.partition(" [")[0]))
    return Frame(kind, detail) if kind else Frame("phase", name)


def _template(name: str) -> str:
    """Returns the name of an instantiation without its arguments."""
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        hidden.append(match[0])
        return f"\0{len(hidden) - 1}\0"

    name, before = _OPERATOR.sub(hide, name), ""
    while name != before:
        name, before = re.sub(r"<[^<>]*>", "", name), name
    return re.sub(r"\0(\d+)\0", lambda match: hidden[int(match[1])], name)
