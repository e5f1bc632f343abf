"""Recovers a kernel's key from its symbol, exactly and without a demangler.

A configuration is the C++ type kernelmint::configs::<family>::<target>::<tokens>, passed to its
kernel as a template argument, so the Itanium ABI spells it in the symbol as names after their
lengths: `10kernelmint7configs13flash_forward4sm80...`. A name that a symbol has used already, the
ABI (5.1.10, compression) writes as `S_`, `S0_`, ..., in the order in which the names came: so a
kernel of namespace kernelmint has `NS_7configs13flash_forward...`, and one whose other arguments
named the namespace first `NS1_7configs...`, or even `NS2_13flash_forward...`.

A log that went through c++filt has declarations in place of symbols; they spell it all.
"""

from __future__ import annotations

import re
from functools import lru_cache

from codegen.core.architectures import of_target

KEY = re.compile(r"[a-z]\w*\.[a-z]\w*\.[a-z0-9]+(?:-[a-z0-9]+)*")
_LENGTH = re.compile(r"[1-9][0-9]{0,8}")
_NAMESPACE = re.compile(r"(?:10kernelmint|(S[0-9A-Z]{0,4}_))7configs|(S[0-9A-Z]{0,4}_)(?=[1-9])")
# Spellings beside names: substitutions, template parameters, arrays, codes of a letter or two.
_CODE = re.compile(r"S[0-9A-Z]*_|T[0-9]*_|A[0-9]*_|[DS][a-z]|[A-Za-z_]")
_SPELT = re.compile(r"kernelmint::configs::(\w+)::(\w+)::(\w+)(?!\w|::)")
# Innermost brackets of a declaration; `->` closes none.
_BRACKETS = re.compile(r"\([^()<>]*\)|<(?:[^()<>]|(?<=-)>)*>")
_TYPES = {"b": "bool", "d": "double", "f": "float", "i": "int"}


def key_of_symbol(symbol: str) -> str | None:
    """Returns the key of the first configuration named in `symbol`; None without a
    configuration."""
    start = symbol.find("10kernelmint")
    if start < 0:
        spelt = _SPELT.search(symbol)
        key = f"{spelt[1]}.{spelt[2]}.{_tokens(spelt[3])}" if spelt else ""
        return key if KEY.fullmatch(key) else None
    own, _ = _own_names(symbol)
    is_spelt = False  # true after kernelmint::configs
    for match in _NAMESPACE.finditer(symbol, start):
        parent, whole = match.groups()
        if whole and not (is_spelt and _may_be(whole, own, ["kernelmint", "configs"])):
            continue
        if parent and not _may_be(parent, own, ["kernelmint"]):
            continue
        is_spelt = True
        names = _names(symbol, match.end())
        if names is not None and not (whole and names[1] != "cpu" and of_target(names[1]) is None):
            family, target, type_name = names
            key = f"{family}.{target}.{_tokens(type_name)}"
            if KEY.fullmatch(key):
                return key
    return None


def _tokens(type_name: str) -> str:
    """Returns a key's tokens from its configuration's type: codegen.spec.names.cpp_type_name."""
    return type_name.rstrip("_").replace("_", "-")


@lru_cache(1 << 16)  # a large library has each for several architectures
def kernel_of_symbol(symbol: str) -> str:
    """Returns the function's own name, without namespaces, template arguments and parameters; for a
    symbol whose mangling is not plain, all of it."""
    own, _ = _own_names(symbol)
    if own or symbol.startswith("_Z"):
        return own[-1] if own else symbol
    text, count = symbol, 1
    while count:
        text, count = _BRACKETS.subn("", text)
    return text.removesuffix(" const").rpartition("::")[2].rpartition(" ")[2] or symbol


def arguments_of_symbol(symbol: str, key: str) -> list[str]:
    """Returns the function's template arguments beside the configuration of that key, types without
    their namespaces. Empty for a symbol whose mangling is not plain."""
    tokens = key.rpartition(".")[2].replace("-", "_")
    if not symbol.startswith("_Z"):
        return [text for text in _spelt_arguments(symbol) if f"::{tokens}" not in text]
    types = [f"{len(tokens) + n}{tokens}{'_' * n}" for n in range(3)]
    own, at = _own_names(symbol)
    arguments = []
    try:
        if not own or symbol[at] != "I":
            return []
        at += 1
        while symbol[at] != "E":
            begin = at
            at, text = _read(symbol, begin)
            if text and not any(name in symbol[begin:at] for name in types):
                arguments.append(text)
    except (IndexError, ValueError, RecursionError):
        return []
    return arguments


def _spelt_arguments(declaration: str) -> list[str]:
    """Returns the template arguments of a function as c++filt spells it, without namespaces."""
    name = f"{kernel_of_symbol(declaration)}<"
    arguments = [""]
    depth = 0
    for letter in declaration.partition(name)[2]:
        depth += (letter in "(<") - (letter in ")>")
        if depth < 0:
            break
        if letter == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += letter
    return [text.strip() for text in arguments if text]


def _read(symbol: str, at: int) -> tuple[int, str]:
    """Returns the end of the template argument, or the part of one, that is spelt at `at`, and its
    form for people."""
    if length := _LENGTH.match(symbol, at):
        at = length.end() + int(length[0])
        text, is_template = symbol[length.end() : at], symbol[at] == "I"
    elif code := _CODE.match(symbol, at):
        at, text = code.end(), _TYPES.get(code[0], code[0])
        is_template = text[0] == "S" and symbol[at] == "I"
        if text == "L":  # a type, then a value
            begin, kind = _read(symbol, at)
            at = symbol.index("E", begin) + 1
            value = symbol[begin : at - 1].replace("n", "-")
            return at, str(value == "1").lower() if kind == "bool" else value
        if text[0] in "AKORV":  # before a type
            return _read(symbol, at)
        if text == "P":
            at, text = _read(symbol, at)
            return at, f"{text}*"
        if text in ("F", "I", "J", "N", "X"):  # several, up to an E
            parts = []
            while symbol[at] != "E":
                at, part = _read(symbol, at)
                parts.append(part)
            return at + 1, parts[-1] if text == "N" else ", ".join(parts)
    else:
        raise ValueError(symbol)
    if is_template:
        at, arguments = _read(symbol, at)
        text += f"<{arguments}>"
    return at, text


def _own_names(symbol: str) -> tuple[list[str], int]:
    """Returns the namespaces of a function and its name, which S_, S0_, ... stand for, as far as
    they can be read; and where they end."""
    at = 3 if symbol.startswith("_ZN") else 2 if symbol.startswith("_Z") else len(symbol)
    names = []
    while length := _LENGTH.match(symbol, at):
        at = length.end() + int(length[0])
        names.append(symbol[length.end() : at])
    return names, at


def _may_be(substitution: str, own: list[str], path: list[str]) -> bool:
    """Returns whether a substitution may stand for a namespace of that path: certain for the
    function's own names."""
    index = 0 if substitution == "S_" else int(substitution[1:-1], 36) + 1
    return index >= len(own) or own[: index + 1][-len(path) :] == path


def _names(symbol: str, at: int) -> list[str] | None:
    """Returns three names after their lengths, with something after them; None if there are
    fewer."""
    names: list[str] = []
    for _ in range(3):
        length = _LENGTH.match(symbol, at)
        if length is None:
            return None
        start = length.end()
        at = start + int(length[0])
        names.append(symbol[start:at])
    return names if at < len(symbol) else None
