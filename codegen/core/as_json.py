"""Dataclasses as JSON and back, for manifest.json and pack.json. Standard library only.

A field stands under its name, or under the name that `named` gives. Fields are of these types: str,
int, float, bool, None, Mapping[str, …], tuple[…, ...], dataclasses, and unions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_NAMES = {
    str: "a string", int: "an integer", float: "a number", bool: "a bool", type(None): "null"
}  # fmt: skip


class FormError(ValueError):
    """JSON does not have the form that is read; the message says where, what it holds, and what was
    expected."""

    def __init__(self, value: object, expected: str, steps: tuple[str | int, ...] = ()) -> None:
        super().__init__(value, expected, steps)
        self.value, self.expected, self.steps = value, expected, steps

    def within(self, step: str | int) -> FormError:
        """Returns the same error, as the value that contains this member reports it."""
        return FormError(self.value, self.expected, (step, *self.steps))

    def __str__(self) -> str:
        path = "".join(f"[{s}]" if isinstance(s, int) else f".{s!s:.40}" for s in self.steps)
        place = f"{path.lstrip('.')}: " if path else ""
        return f"{place}got {self.value!a:.60}, expected {self.expected}"


def named(name: str, **options: Any) -> Any:
    """Declares a dataclass's field that has another name in JSON."""
    return dataclasses.field(metadata={"name": name}, **options)


def left_out(default: Any) -> Any:
    """Declares a dataclass's field that JSON lacks while it has its default."""
    return dataclasses.field(metadata={"left_out": True}, default=default)


@functools.cache
def _members(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    """Returns the fields of a dataclass: attribute, name in JSON, and the value that is left
    out."""
    return tuple(
        (
            field.name,
            field.metadata.get("name", field.name),
            field.default if "left_out" in field.metadata else dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def form(value: Any) -> Any:
    """Returns a dataclass's JSON, as dicts, lists and tuples."""
    kind: Any = type(value)
    writer = _writer(kind)
    assert writer is not None
    return writer(value)


@functools.cache
def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """Returns a function that converts a value of this type to JSON's; None for most types, whose
    values JSON holds unchanged: there may be 100,000 kernels."""
    if dataclasses.is_dataclass(kind):
        types_of = get_type_hints(kind)
        members = [
            (*member, _writer(types_of[member[0]])) for member in _members(cast("Any", kind))
        ]

        def write(value: Any) -> dict[str, Any]:
            members_ = {}
            for attribute, name, absent, writer in members:
                member = getattr(value, attribute)
                if absent is dataclasses.MISSING or member != absent:
                    members_[name] = member if writer is None or member is None else writer(member)
            return members_

        return write
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and (item := _writer(inner[0])) is not None:
        return lambda value: [item(member) for member in value]
    if origin in (Union, types.UnionType) and any(map(_writer, inner)):
        return lambda value: form(value) if dataclasses.is_dataclass(value) else value
    return None


def parse(text: str) -> Any:
    """Parses a text as JSON. Raises ValueError, also for values that are nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(kind: type[T], data: Any) -> T:
    """Makes a dataclass of JSON's dicts and lists. Raises FormError."""
    result: T = _reader(cast("Any", kind))(data)
    return result


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Returns a function that makes a value of this type of JSON's."""
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(inner)
    if origin is tuple:
        return _list_reader(_reader(inner[0]), _plain_types(inner[0]))
    if origin is not None:
        return _dict_reader(_reader(inner[1]), _plain_types(inner[1]))
    return functools.partial(_checked, kind)


@functools.cache
def _plain_types(kind: Any) -> frozenset[type]:
    """Returns the types of JSON's values of this type if all of them are plain, else none.

    Plain values are read without a call each: a manifest holds 20,000.
    """
    if kind in _NAMES:
        return frozenset({kind, int} if kind is float else {kind})
    if get_origin(kind) in (Union, types.UnionType):
        members = [_plain_types(member) for member in get_args(kind)]
        return frozenset().union(*members) if all(members) else frozenset()
    return frozenset()


def _checked(kind: Any, value: Any) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise FormError(value, _NAMES[kind])
    if kind is str and (not value.isascii() or "\0" in value) and not _is_printable(value):
        raise FormError(value, "a string that can be printed")
    return value


def _is_printable(text: str) -> bool:
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    types_of = get_type_hints(kind)
    members = [
        (attribute, name, absent, _plain_types(types_of[attribute]), _reader(types_of[attribute]))
        for attribute, name, absent in _members(kind)
    ]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise FormError(value, "an object")
        values = {}
        for attribute, name, absent, plain, reader in members:
            if name in value:
                member = value[name]
                if type(member) in plain and (
                    type(member) is not str or (member.isascii() and "\0" not in member)
                ):
                    values[attribute] = member
                    continue
                try:
                    values[attribute] = reader(member)
                except FormError as error:
                    raise error.within(name) from None
            elif absent is dataclasses.MISSING:
                raise FormError(", ".join(value), f"a member {name!r}")
        return kind(**values)

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> Any:
        refused = []
        for reader in readers:
            try:
                return reader(value)
            except FormError as error:
                refused.append(error)
        deepest = max(refused, key=lambda error: len(error.steps))
        if deepest.steps:
            raise deepest
        raise FormError(value, " or ".join(error.expected for error in refused))

    return read


def _list_reader(item: Callable[[Any], Any], plain: frozenset[type]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise FormError(value, "a list")
        if plain.issuperset(map(type, value)):
            texts = "".join([member for member in value if type(member) is str])
            if texts.isascii() and "\0" not in texts:
                return tuple(value)
        members = []
        for member in value:
            try:
                members.append(item(member))
            except FormError as error:
                raise error.within(len(members)) from None
        return tuple(members)

    return read


def _dict_reader(item: Callable[[Any], Any], plain: frozenset[type]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise FormError(value, "an object")
        if plain.issuperset(map(type, value.values())):
            texts = "".join([*value, *(m for m in value.values() if type(m) is str)])
            if texts.isascii() and "\0" not in texts:
                return value
        members = {}
        for name, member in value.items():
            try:
                members[_checked(str, name)] = item(member)
            except FormError as error:
                raise error.within(name) from None
        return members

    return read
