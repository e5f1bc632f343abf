"""Configuration <-> key, exactly, both ways.

A key is `family.target.` and the tokens of the parameters in spec order, joined by `-`: a bool's
token if it is true, an int's token and its value (`m` for minus), a dtype or enum as itself;
`default` if there are no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codegen.core.dtypes import DTYPES
from codegen.spec.model import Parameter, ParameterType, ParameterValue, Target

NO_TOKENS = "default"
_INT = re.compile(r"m?(0|[1-9][0-9]*)$")


class KeyFormatError(Exception):
    """A text is not a valid key of a target; the message says why."""


def token_of(parameter: Parameter, value: ParameterValue) -> str:
    """Returns the token of this value in a key; empty for a false bool."""
    if parameter.type is ParameterType.BOOL:
        return (parameter.token or "") if value else ""
    if parameter.type is ParameterType.INT:
        sign = "m" if int(value) < 0 else ""
        return f"{parameter.token}{sign}{abs(int(value))}"
    return str(value)


class _Tokens(dict[ParameterValue, str]):
    """The tokens of a parameter's values, made once."""

    def __init__(self, parameter: Parameter) -> None:
        super().__init__()
        self._parameter = parameter

    def __missing__(self, value: ParameterValue) -> str:
        token = self[value] = token_of(self._parameter, value)
        return token


def tokens_of(parameters: Sequence[Parameter]) -> Callable[[Sequence[ParameterValue]], str]:
    """Returns a function from a configuration's values to the last part of its key."""
    tables = [_Tokens(parameter) for parameter in parameters]

    def tokens(values: Sequence[ParameterValue]) -> str:
        pieces = [table[value] for table, value in zip(tables, values, strict=True)]
        return "-".join(filter(None, pieces)) or NO_TOKENS

    return tokens


def parse_tokens(parameters: Sequence[Parameter], text: str) -> tuple[ParameterValue, ...]:
    """Returns the values that `text`, the last part of a key, stands for. Raises KeyFormatError."""
    pieces = [] if text == NO_TOKENS else text.split("-")
    if text == NO_TOKENS and any(p.type.is_text for p in parameters):
        pieces = [text]
    values: list[ParameterValue] = []
    position = 0
    for parameter in parameters:
        piece = pieces[position] if position < len(pieces) else None
        if parameter.type is ParameterType.BOOL:
            present = piece is not None and piece == parameter.token
            values.append(present)
            position += present
            continue
        if piece is None:
            raise KeyFormatError(f"it ends before {expected(parameter)}")
        value = _read(parameter, piece)
        if value is None:
            raise KeyFormatError(f"got '{piece}', expected {expected(parameter)}")
        values.append(value)
        position += 1
    if position < len(pieces):
        raise KeyFormatError(f"'{pieces[position]}' is unknown, or not in its place")
    return tuple(values)


def expected(parameter: Parameter) -> str:
    """Returns the tokens that a key may hold for this parameter, in words."""
    if parameter.type is ParameterType.INT:
        return f"{parameter.name} ({parameter.token}<number>)"
    return f"{parameter.name} ({', '.join(map(str, parameter.values or DTYPES))})"


def _read(parameter: Parameter, piece: str) -> ParameterValue | None:
    if parameter.type is ParameterType.INT:
        digits = piece.removeprefix(parameter.token or "")
        if not piece.startswith(parameter.token or "") or not _INT.match(digits):
            return None
        if digits == "m0" or len(digits) > 11:
            return None
        return -int(digits[1:]) if digits.startswith("m") else int(digits)
    texts = (parameter.values or ()) if parameter.type is ParameterType.ENUM else DTYPES
    return piece if piece in texts else None


def symbol_fragment(family: str, target: str, type_name: str) -> str:
    """Returns the text that every mangled name of a kernel of this configuration contains.

    It consists of Itanium's length-prefixed names of `configs::<family>::<target>::<type>`; the
    `kernelmint` before them is often a substitution (`S_`).
    """
    names = ("configs", family, target, type_name)
    return "".join(f"{len(name)}{name}" for name in names) + "E"


@dataclass(frozen=True)
class KeyParts:
    """A key, split at its dots."""

    family: str
    target: str
    tokens: str

    @classmethod
    def split(cls, key: str) -> KeyParts:
        """Splits a key. Raises KeyFormatError unless it has three parts."""
        parts = key.split(".")
        if len(parts) != 3 or not all(parts):
            raise KeyFormatError("a key is family.target.tokens")
        return cls(*parts)


def key_prefix(target: Target) -> str:
    """Returns the beginning of all keys of the target."""
    return f"{target.family}.{target.name}."
