"""Openings of docstrings and comments, counted for each room.

A function's docstring begins with one of VERBS; no other docstring and no comment, of Python or
C++, begins with one of FILLERS. A ceiling is a room's count: it may only fall. To lower it, rewrite
the openings that `python tests/test_english.py ROOM` prints, and write the new count here (without
ROOM it prints every count).
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
CPP = {".h", ".cuh", ".cpp", ".cu", ".mako"}
FILLERS = {"what", "whether", "of", "its", "those", "that", "as", "which"}
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
        Adapts Adds Allocates Allows Answers Applies Asks Asserts Becomes Begins Binds Builds
        Calls Captures Changes Checks Chooses Closes Collects Combines Compares Compiles Completes
        Computes Configures Converts Copies Counts Creates Declares Decodes Demangles Describes
        Divides Draws Drops Ends Evaluates Exits Expands Fails Fetches Fills Finds Fits Follows
        Forgets Formats Generates Gives Goes Has Holds Installs Inverts Joins Keeps Launches
        Leaves Lets Lists Loads Looks Makes Maps Marks Matches Measures Merges Moves Multiplies
        Names Normalizes Notes Opens Packs Pads Parses Passes Permutes Plots Prepares Prints Puts
        Raises Reads Records Reduces Refuses Registers Releases Removes Renders Repeats Replaces
        Reports Resolves Restores Returns Rewrites Rounds Runs Says Scales Sends Serves Sets Shows
        Simulates Sorts Splits Starts Stops Stores Subtracts Sums Takes Tests Times Trains
        Transposes Tries Tunes Turns Unpacks Updates Uses Verifies Waits Warns Watches Writes
        Yields
        """,
    )
)


class Ceiling(NamedTuple):
    docstrings: int  # with another opening
    comments: int  # with a filler
    undocumented: int = 0  # public functions and classes without a docstring


CEILINGS = {  # by folder; a file counts in the longest one that holds it
    "codegen": Ceiling(0, 0),
    "codegen/ptxas": Ceiling(0, 0),
    "examples": Ceiling(0, 0),
    "kernel_specs": Ceiling(0, 0),
    "kernelmint": Ceiling(0, 0, 11),
    "runtime": Ceiling(0, 0),
    "tools": Ceiling(0, 0),
    "tools/bench": Ceiling(0, 0),
    "tools/ptx_report": Ceiling(0, 0),
}


class Opening(NamedTuple):
    place: str
    kind: str  # of Ceiling's members
    text: str


def _first_word(text: str) -> str:
    found = re.match(r"\W*(\w+)", text)
    return found[1] if found else ""


def _docstrings(tree: ast.Module, file: str) -> Iterator[Opening]:
    """Yields wrong openings, and public definitions without a docstring."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, is_public = pending.pop()
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or isinstance(node, ast.ClassDef | ast.Module):
            text, line = ast.get_docstring(node), getattr(node, "lineno", 1)
            if text is None:
                if is_public and not isinstance(node, ast.Module):
                    yield Opening(f"{file}:{line}", "undocumented", node.name)
            else:
                word = _first_word(text)
                if (is_function and word not in VERBS) or word.lower() in FILLERS:
                    yield Opening(f"{file}:{line}", "docstrings", text.partition("\n")[0])
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "_")
            pending.append((child, is_public and not is_function and not str(name).startswith("_")))


def _python_comments(tree: ast.Module, source: str, file: str) -> Iterator[Opening]:
    texts: dict[int, list[tuple[int, int]]] = {}  # columns within strings, by line
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            for line in range(node.lineno, node.end_lineno + 1):
                begin = node.col_offset if line == node.lineno else 0
                end = node.end_col_offset if line == node.end_lineno else sys.maxsize
                texts.setdefault(line, []).append((begin, end))
    return _comments("#", source, file, texts)


def _comments(
    mark: str, source: str, file: str, texts: dict[int, list[tuple[int, int]]] | None = None
) -> Iterator[Opening]:
    goes_on = False
    for number, line in enumerate(source.splitlines(), 1):
        word = re.search(rf"(?:^|\s){mark}\W*(\w+)", line) if mark in line else None
        column = 0 if word is None else len(line[: word.start(1)].encode())
        if word is None or any(a <= column < b for a, b in (texts or {}).get(number, ())):
            goes_on = False
            continue
        if not goes_on and word[1].lower() in FILLERS:
            yield Opening(f"{file}:{number}", "comments", line[word.start(1) :])
        goes_on = line.lstrip().startswith(mark)


@functools.cache
def _openings() -> dict[str, list[Opening]]:
    rooms: dict[str, list[Opening]] = {room: [] for room in CEILINGS}
    for folder in sorted({room.partition("/")[0] for room in CEILINGS}):
        for path in sorted((ROOT / folder).rglob("*")):
            file = path.relative_to(ROOT).as_posix()
            if path.suffix not in {".py", *CPP} or path.name.startswith(("test_", "conftest")):
                continue
            room = max((room for room in CEILINGS if file.startswith(f"{room}/")), key=len)
            source = path.read_text(encoding="utf-8")
            if path.suffix in CPP:
                rooms[room] += _comments("//", source, file)
            else:
                tree = ast.parse(source)
                rooms[room] += [*_docstrings(tree, file), *_python_comments(tree, source, file)]
    return rooms


@pytest.mark.parametrize("room", CEILINGS)
def test_openings_become_fewer(room) -> None:
    for kind, most in CEILINGS[room]._asdict().items():
        openings = [opening for opening in _openings()[room] if opening.kind == kind]
        listed = "\n".join(f"{place}: {text}" for place, _, text in openings[:20])
        assert len(openings) <= most, f"{len(openings)} {kind} in {room}, at most {most}:\n{listed}"
        assert len(openings) > most - 20, (
            f"{room}: {kind} fell to {len(openings)}: lower the ceiling"
        )


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("def f():\n    '''Returns a kernel.'''\n", []),
        ("def f():\n    '''The kernel.'''\n", ["docstrings"]),
        ("def f():\n    '''Whether it runs.'''\n", ["docstrings"]),
        ("def f():\n    pass\n", ["undocumented"]),
        ("class A:\n    '''A kernel.'''\n    def f(self):\n        pass\n", ["undocumented"]),
        ("class A:\n    '''What runs.'''\n    def _f(self):\n        pass\n", ["docstrings"]),
        ("def _f():\n    def g():\n        '''Its key.'''\n", ["docstrings"]),
        ("x = 1  # of a kernel\n", ["comments"]),
        ("# What runs,\n# of all kernels\n", ["comments"]),
        ("# Kernels\n# of all\nx = '  # what'\n", []),
    ],
)
def test_an_opening_is_recognised(source, kinds) -> None:
    tree = ast.parse(source)
    openings = [*_docstrings(tree, "f.py"), *_python_comments(tree, source, "f.py")]
    assert [opening.kind for opening in openings] == kinds


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("int x;  // of a kernel\n", 1),
        ("// What runs,\n// of all kernels\nint x;\n", 1),
        ("// Kernels\n// of all\nint x;  // each row's\n", 0),
        ('auto url = "https://of.example";\n', 0),
    ],
)
def test_an_opening_of_a_comment_in_cpp_is_recognised(source, count) -> None:
    assert len(list(_comments("//", source, "f.h"))) == count


if __name__ == "__main__":
    for room in sys.argv[1:] or CEILINGS:
        kinds = [kind for _, kind, _ in _openings()[room]]
        print(room, Ceiling(*map(kinds.count, Ceiling._fields)))
        for place, kind, text in _openings()[room] if sys.argv[1:] else ():
            print(f"{place}: {kind}: {text}")
