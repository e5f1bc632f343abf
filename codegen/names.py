"""Names that people choose, and what they may not be: they become C++ and Python identifiers."""

from __future__ import annotations

import keyword
import re

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*_?$")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*$")
TOKEN = re.compile(r"[a-z][a-z0-9]*$")
TARGET = re.compile(r"cpu$|sm([1-9][0-9]{1,2})(a?)$")

_CPP_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq unix linux
"""
CPP_KEYWORDS = frozenset(_CPP_KEYWORDS.split())

# What generated code says by these names.
_RESERVED = """
    Args Config Isa args bool context configs cpu dtypes expression fp16 bf16 f32 f64 i8 u8 i32
    i64 isa kernelmint key launch main out parameters python registry runtime self std symbols
    torch
"""


def reserved(name: str) -> str | None:
    """Why `name` cannot name a family, an argument, a symbol or a parameter; None: it can."""
    if name in CPP_KEYWORDS:
        return "is a C++ keyword"
    if keyword.iskeyword(name):
        return "is a Python keyword"
    if name in _RESERVED.split():
        return "has a meaning of its own in generated code"
    return None


def cpp_name(name: str) -> str:
    """A token or value as a C++ identifier: `auto` becomes `auto_`. Tokens hold no underscore, so
    the way back is exact."""
    return name + "_" if name in CPP_KEYWORDS else name
