"""What is wrong with what people wrote: every problem located, all of them at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MAX_LINE = 1000
_MAX_KNOWN = 1000
_MAX_COMPARED = 100  # comparing takes a time that grows with the square of the length


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, and where."""

    location: Location
    message: str

    def __str__(self) -> str:
        return f"{one_line(str(self.location))}: {one_line(self.message)}"


class SpecError(Exception):
    """The specs cannot be used; `problems` says why, sorted by place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


class TooManyProblemsError(Exception):
    """A file has so many problems that reading on would take long and not help."""


class UsageError(Exception):
    """A command line asks for something that is not there; the message says what is."""


def one_line(text: str) -> str:
    """The text on one line that a terminal shows as it is, shortened if it is very long."""
    if len(text) > _MAX_LINE:
        text = f"{text[: _MAX_LINE - 20]} … {text[-17:]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an error on an unknown `name`: the nearest known one, or the few there are."""
    names = list(dict.fromkeys(known))
    if len(name) > _MAX_COMPARED or len(names) > _MAX_KNOWN:
        return ""
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f" (did you mean '{near[0]}'?)"
    if 0 < len(names) <= 12:
        return f" (known: {', '.join(names)})"
    return ""


def display_path(path: Path) -> str:
    """The path as people know it: relative if it lies below the working folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
