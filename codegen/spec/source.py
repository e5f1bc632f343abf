"""YAML text to plain data that remembers the place of each key and value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from codegen.core.problems import Location, Problem, TooManyProblemsError
from codegen.core.staleness import read_regular
from codegen.core.words import display_path

# PyYAML reads some 150 kB a second.
MAX_BYTES = 128 * 1024
# Anchors and aliases can make a small file unfold without end.
MAX_NODES = 50_000
MAX_PROBLEMS = 100

_PLAIN_BOOLS = ("true", "True", "false", "False")
_PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
_PLAIN_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?$")

# Control characters, lone surrogates, and marks that turn the direction of later text: they
# would make generated code another than it looks like, or no text at all.
_UNREADABLE = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

Steps = tuple["str | int", ...]


class LocatedMapping(dict[str, Any]):
    """A YAML mapping that knows its path within the document."""

    def __init__(self, path: Steps) -> None:
        super().__init__()
        self.path = path


def _place(node: yaml.Node, offset: int = 0) -> Location:
    mark = node.start_mark
    return Location(mark.name, mark.line + 1, mark.column + 1 + offset)


def _joined(first: yaml.Node, second: yaml.Node | None) -> yaml.Node | None:
    """Joins the entries of two mappings or lists; under the same key, their values likewise."""
    if isinstance(first, yaml.SequenceNode) and isinstance(second, yaml.SequenceNode):
        return yaml.SequenceNode(second.tag, first.value + second.value, second.start_mark)
    if not (isinstance(first, yaml.MappingNode) and isinstance(second, yaml.MappingNode)):
        return second
    entries = list(first.value)
    places = {
        key.value: i
        for i, (key, value) in enumerate(entries)
        if isinstance(key, yaml.ScalarNode) and not isinstance(value, yaml.ScalarNode)
    }
    for key, value in second.value:
        i = places.pop(key.value, None) if isinstance(key, yaml.ScalarNode) else None
        if i is not None and type(value) is type(entries[i][1]):
            entries[i] = (key, _joined(entries[i][1], value))
        else:
            entries.append((key, value))
    return yaml.MappingNode(second.tag, entries, second.start_mark)


class Document:
    """One YAML file: `data`, the place of each of its keys and values, and its problems so far.

    With `shared`, another file's mappings and lists go before those under the same keys of this
    one; a key that both give a value is a duplicate.

    It refuses, beyond YAML itself: duplicate keys, YAML 1.1's accidental booleans (`on`,
    `no`), octal and sexagesimal integers, timestamps and other tags, texts that UTF-8 cannot hold.
    """

    def __init__(self, path: Path, shared: Path | None = None) -> None:
        self.path = path
        self.name = display_path(path)
        self.problems: list[Problem] = []
        self.data: Any = None
        self._keys: dict[Steps, Location] = {}
        self._values: dict[Steps, Location] = {}
        self._single_line: set[Steps] = set()
        self._nodes = 0
        node = self._compose(path)
        if shared is not None and (first := self._compose(shared)) is not None:
            node = _joined(first, node)
        if node is None or self.problems:
            return
        try:
            self.data = self._build(node, (), frozenset())
        except TooManyProblemsError:
            self.data = None
        except RecursionError:
            self._report_file(self.name, "is nested too deeply")

    def _compose(self, path: Path) -> yaml.Node | None:
        """Returns the nodes of a file, whose marks name it; None for an empty file and for one that
        cannot be read."""
        name = display_path(path)
        try:
            content = read_regular(path)
            if len(content) > MAX_BYTES:
                self._report_file(
                    name,
                    f"has {len(content):,} bytes, more than {MAX_BYTES:,}: write products in place "
                    "of lists of configurations, or split the family",
                )
                return None
            loader = yaml.SafeLoader(content.decode())
            loader.name = name
            try:
                return loader.get_single_node()
            finally:
                loader.dispose()
        except OSError as error:
            self._report_file(name, f"cannot be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            self._report_file(name, f"is not UTF-8 text (byte {error.start})")
        except yaml.reader.ReaderError as error:
            reason = f"{error.reason} (character {error.position})"
            self._report_file(name, f"is not YAML text: {reason}")
        except yaml.MarkedYAMLError as error:
            self._report_syntax(name, error)
        except RecursionError:
            self._report_file(name, "is nested too deeply")
        return None

    def locate(self, *path: str | int, key: bool = False, offset: int = 0) -> Location:
        """Returns the place of the value (or the key) at `path`, or of the nearest thing around it.

        `offset` counts characters into a text that stands on one line.
        """
        if key and path in self._keys:
            return self._keys[path]
        while path and path not in self._values:
            path = path[:-1]
        place = self._values.get(path, Location(self.name, 1, 1))
        if path not in self._single_line:
            return place
        return replace(place, column=place.column + offset)

    def report(self, message: str, *path: str | int, key: bool = False, offset: int = 0) -> None:
        """Adds a problem at `path`, as `add` does."""
        self.add(Problem(self.locate(*path, key=key, offset=offset), message))

    def add(self, problem: Problem) -> None:
        """Adds a problem. Raises TooManyProblemsError if that is the last to be told."""
        self.problems.append(problem)
        if len(self.problems) == MAX_PROBLEMS:
            raise TooManyProblemsError

    def _report_file(self, name: str, message: str) -> None:
        self.problems.append(Problem(Location(name, 1, 1), f"the file {message}"))

    def _report_syntax(self, name: str, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        context = f" {error.context}" if error.context else ""
        hint = ""
        if error.context and "flow" in error.context:
            hint = "; quote a text that holds brackets, commas or ': '"
        message = f"not YAML: {error.problem}{context}{hint}"
        self.problems.append(Problem(Location(name, *place), message))

    def _build(self, node: yaml.Node, path: Steps, above: frozenset[int]) -> Any:
        self._nodes += 1
        self._values[path] = _place(node)
        if id(node) in above:
            self.report("endless aliases here", *path)
            return None
        if self._nodes > MAX_NODES:
            self.report(
                f"with its aliases unfolded, the file holds more than {MAX_NODES:,} values: write "
                "products in place of lists of configurations, or split the family",
                *path,
            )
            raise TooManyProblemsError
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        above = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, i), above) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        mapping = LocatedMapping(path)
        for key, key_node, value_node in self._entries(node, path):
            self._keys[(*path, key)] = _place(key_node)
            mapping[key] = self._build(value_node, (*path, key), above)
        return mapping

    def _entries(
        self, node: yaml.MappingNode, path: Steps
    ) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        seen: dict[str, Location] = {}
        for key_node, value_node in node.value:
            place = _place(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                self.add(Problem(place, "a key must be a plain name"))
                continue
            key = key_node.value
            if key_node.style is None and key_node.tag.endswith((":bool", ":null")):
                # `on: 1`, `no: 1` and `~: 1` would not be the names they look like.
                self.add(Problem(place, f"in YAML 1.1 '{key}' is not a name: write \"{key}\""))
            if key in seen:
                first = seen[key]
                file = "" if first.file == place.file else f"in {first.file} "
                message = f"duplicate key '{key}' (first {file}on line {first.line})"
                self.add(Problem(place, message))
                continue
            if wrong := _UNREADABLE.search(key):
                self.add(Problem(place, f"this key holds the character {wrong[0]!a}"))
                continue
            seen[key] = place
            yield key, key_node, value_node

    def _scalar(self, node: yaml.ScalarNode, path: Steps) -> Any:
        text: str = node.value
        if node.start_mark.line == node.end_mark.line:
            self._single_line.add(path)
            if node.style in ("'", '"'):
                self._values[path] = _place(node, 1)
        kind = node.tag.rpartition(":")[2]
        if kind == "str":
            if wrong := _UNREADABLE.search(text):
                self.report(f"this text holds the character {wrong[0]!a}", *path)
                return ""
            return text
        if kind == "null":
            return None
        if kind == "bool":
            if text not in _PLAIN_BOOLS:
                self.report(
                    f"YAML 1.1 reads '{text}' as a boolean: write true or false, "
                    f'or "{text}" for the text',
                    *path,
                )
            return text.lower() in ("true", "yes", "on")
        if kind == "int" and _PLAIN_INT.match(text) and len(text) < 4000:
            return int(text)
        if kind == "float" and _PLAIN_FLOAT.match(text):
            return float(text)
        self.report(
            f"YAML 1.1 reads '{text}' as a {kind}: write a plain decimal number, "
            f'or "{text}" for the text',
            *path,
        )
        return {"int": 0, "float": 0.0}.get(kind, text)
