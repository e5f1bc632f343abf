"""Templates and their arguments, from demangled names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

# Brackets, and what separates names; an operator's name and -> are neither.
_OPERATOR = r"operator ?(?:\(\)|[<>=!+*/%&|^~,-]+)|->"
_BRACKET = re.compile(_OPERATOR + r"|[<>(){}\[\]]")
_SEPARATOR = re.compile(_OPERATOR + r"|[, ]")
_CLOSING = {"<": ">", "(": ")", "{": "}", "[": "]"}
_DEEPEST = 30  # templates within templates that are told apart
_UNNAMED = "(anonymous namespace)"


class Name(NamedTuple):
    """A function's name, without its template arguments, and those."""

    template: str
    arguments: tuple[str, ...]


class _Group(NamedTuple):
    bracket: str
    begin: int  # where the text between the brackets begins
    end: int


@cache
def of(name: str) -> Name:
    """Returns the template of a demangled function and its arguments, its classes' first.

    A name that is not demangled, or whose brackets do not match, is a template without arguments.
    """
    template, lists = _parted(name)
    return Name(template, tuple(argument for text in lists for argument in split(text)))


def template(name: str) -> str:
    """Returns the template of a demangled function: `of` takes twice as long."""
    return _parted(name)[0]


@cache
def _parted(name: str) -> tuple[str, list[str]]:
    """Returns a function's name without its lists of template arguments, and those."""
    groups, _, spaces = _scanned(name)
    lists = [g for g in groups if g.bracket == "(" and name[g.begin - 1 : g.end + 1] != _UNNAMED]
    end = lists[-1].begin - 1 if lists else len(name)
    begin = max((space + 1 for space in spaces if space < end), default=0)
    template, at = "", begin
    texts: list[str] = []
    for group in groups:
        if group.bracket == "<" and begin <= group.begin and group.end < end:
            template += name[at : group.begin - 1]
            at = group.end + 1
            texts.append(name[group.begin : group.end])
    return template + name[at:end], texts


def split(text: str) -> list[str]:
    """Returns the arguments of a list."""
    _, commas, _ = _scanned(text)
    places = [-1, *commas, len(text)]
    return [text[a + 1 : b].strip() for a, b in pairwise(places)]


def heads(name: Name) -> list[str]:
    """Returns the templates of which a function's arguments are."""
    return [inner[0][0] for value in name.arguments if (inner := _inner(value))]


def differing(lists: Sequence[tuple[str, ...]]) -> tuple[list[str], list[list[str]]]:
    """Returns which arguments differ among instantiations, and theirs of each.

    An argument is named by its place: 3.2 is the second of the third, which is a template as well.
    """
    columns = list(_columns([list(arguments) for arguments in lists], ""))
    return [name for name, _ in columns], [
        [values[index] for _, values in columns] for index in range(len(lists))
    ]


def _columns(lists: list[list[str]], prefix: str) -> Iterator[tuple[str, list[str]]]:
    for place in range(max(map(len, lists), default=0)):
        values = [arguments[place] if place < len(arguments) else "" for arguments in lists]
        if len(set(values)) < 2:
            continue
        inner = [_inner(value) for value in values]
        if (
            prefix.count(".") < _DEEPEST
            and inner[0]
            and all(i and i[0] == inner[0][0] for i in inner)
        ):
            yield from _columns([i[1] for i in inner if i], f"{prefix}{place + 1}.")
        else:
            yield f"{prefix}{place + 1}", values


@cache
def _inner(value: str) -> tuple[tuple[str, str], list[str]] | None:
    """Returns what is around an argument's own arguments, and those; None if it has none."""
    groups = [group for group in _scanned(value)[0] if group.bracket == "<"]
    if len(groups) != 1:
        return None
    (group,) = groups
    around = value[: group.begin], value[group.end :]
    return around, split(value[group.begin : group.end])


def _scanned(text: str) -> tuple[list[_Group], list[int], list[int]]:
    """Returns the groups, the commas and the spaces that are in no group of brackets."""
    groups: list[_Group] = []
    closing: list[str] = []
    begin = 0
    for match in _BRACKET.finditer(text):
        token = match[0]
        if token in _CLOSING:
            if not closing:
                begin = match.end()
            closing.append(_CLOSING[token])
        elif closing and token == closing[-1]:
            closing.pop()
            if not closing:
                groups.append(_Group(text[begin - 1], begin, match.start()))
    outside = [0, *(place for group in groups for place in (group.begin, group.end)), len(text)]
    found: dict[str, list[int]] = {",": [], " ": []}
    for first, last in zip(outside[::2], outside[1::2], strict=True):
        for match in _SEPARATOR.finditer(text, first, last):
            found.setdefault(match[0], []).append(match.start())
    return groups, found[","], found[" "]
