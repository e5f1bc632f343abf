"""Words of messages: counts, near names, paths. Standard library only."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from codegen.core.dtypes import of_other_name

_MAX_LINE = 1000
_MAX_KNOWN = 1000
_MAX_COMPARED = 100  # comparing takes a time that grows with the square of the length


def counted(count: int, what: str) -> str:
    """Returns a count with its noun: `1 kernel`, `2 kernels`, `1,000 kernels`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def one_line(text: str) -> str:
    """Returns the text on one line that a terminal shows unchanged, shortened if it is very
    long."""
    if len(text) > _MAX_LINE:
        text = f"{text[: _MAX_LINE - 20]} … {text[-17:]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def did_you_mean(name: str, candidates: Iterable[str], list_few: bool = True) -> str:
    """Returns a hint for an error on an unknown `name`: the dtype that other projects call so, or
    the nearest known name; without a near one and with `list_few`, the few known names."""
    names = list(dict.fromkeys(candidates))
    if len(name) > _MAX_COMPARED or len(names) > _MAX_KNOWN:
        return ""
    if (dtype := of_other_name(name)) in names:
        return f" (did you mean '{dtype}'?)"
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f" (did you mean '{near[0]}'?)"
    if list_few and 0 < len(names) <= 12:
        return f" (known: {', '.join(names)})"
    return ""


def below(path: Path, folders: Iterable[Path]) -> tuple[Path, Path] | None:
    """Returns the first folder that a file lies in, and the file's path within it: compared by
    their names and, for links, by what they lead to. None if the file lies in none of the
    folders."""
    for place in (os.path.abspath, os.path.realpath):
        for folder in folders:
            if Path(place(path)).is_relative_to(place(folder)):
                return folder, Path(place(path)).relative_to(place(folder))
    return None


def display_path(path: Path) -> str:
    """Returns the path as people know it: relative if it lies below the working folder."""
    relative = os.path.relpath(path)
    return os.path.normpath(path) if relative.startswith("..") else relative
