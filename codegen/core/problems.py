"""Problems in files that people write: every problem located, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from codegen.core.words import one_line


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
    """One problem and its place."""

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
    """A command line asks for something that does not exist; the message says what exists."""
