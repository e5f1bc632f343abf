"""Names that people choose, and the names they cannot choose: they become C++ and Python
identifiers."""

from __future__ import annotations

import errno
import keyword
import re
from collections.abc import Container, Iterable

from codegen.core.dtypes import DTYPES
from codegen.core.expressions import COMPUTE_CAPABILITY, DEVICE_FACTS, MAX_RESIDENT_BLOCKS

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*_?\Z")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
TOKEN = re.compile(r"[a-z][a-z0-9]*\Z")
# Text that needs no escapes between quotes in `#include "…"` and in CMake.
FILE = re.compile(r"[A-Za-z0-9_+.-]+(/[A-Za-z0-9_+.-]+)*\Z")
MAX_NAME = 64

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
# Macros of the headers that generated code includes: no C++ name can be one of them.
_MACROS = """
    alloca assert be16toh be32toh be64toh errno htobe16 htobe32 htobe64 htole16 htole32 htole64
    issubnormal le16toh le32toh le64toh major makedev minor offsetof signbit stderr stdin stdout
    BUFSIZ EOF INFINITY MAXFLOAT NAN NFDBITS NULL NZERO SNAN SNANF SNANL WEOF
"""
_MACRO_FAMILY = re.compile(
    r"(ADJ|ATOMIC|CLOCK|CLONE|CUDA|CUDART|EXIT|FD|FP|HUGE|KERNELMINT|LC|MATH|MOD|PTHREAD|RENAME|"
    r"SCHED|SEEK|STA)_[A-Z0-9_]+\Z|(SYS|CPU)_\w+\Z|[FRWX]_OK\Z|"
    r"([SU]?CHAR|U?SHRT|U?INT\w*|U?LONG|U?LLONG|U?LONG_LONG|S?SIZE|PTRDIFF|WCHAR|WINT|RAND|"
    r"SIG_ATOMIC|BOOL)_(MAX|MIN|WIDTH|C|BIT)\Z|"
    r"M_(E|LOG2E|LOG10E|LN2|LN10|PI|PI_2|PI_4|1_PI|2_PI|2_SQRTPI|SQRT2|SQRT1_2)([fl]|f\d+x?)?\Z"
)
_MACRO_NAMES = frozenset((*_MACROS.split(), *errno.errorcode.values()))
CPP_KEYWORDS = frozenset(_CPP_KEYWORDS.split()) | _MACRO_NAMES

# Names that generated code uses.
_RESERVED_WORDS = """
    Args Config ConstTensorView Dtype Isa TensorView TraceRecord args context configs cpu
    dtypes expression isa kernelmint key
    launch library main out parameters python runtime scalars scope self std symbols torch workspace
"""
_RESERVED = frozenset((*_RESERVED_WORDS.split(), *DTYPES))


def reserved(name: str) -> str | None:
    """Returns why `name` cannot name a family, an argument, a symbol or a parameter; None: it
    can."""
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters, more than {MAX_NAME}"
    if name in _MACRO_NAMES or _MACRO_FAMILY.match(name):
        return "is a macro of C++'s headers"
    if name in CPP_KEYWORDS:
        return "is a C++ keyword"
    if keyword.iskeyword(name):
        return "is a Python keyword"
    if name in (*DEVICE_FACTS, MAX_RESIDENT_BLOCKS, COMPUTE_CAPABILITY):
        return "is a fact about the device in expressions"
    if name in _RESERVED:
        return "is reserved in generated code"
    return None


def cpp_name(name: str) -> str:
    """Returns a token or value as a C++ identifier: `auto_` for `auto`. Tokens hold no underscore,
    so the way back is exact."""
    return name + "_" if name in CPP_KEYWORDS else name


def enum_type(parameter: str) -> str:
    """Returns the C++ type of an enum parameter."""
    return f"{parameter}_type"


def taken(members: Iterable[str]) -> frozenset[str]:
    """Returns the names that a C++ type with these members may not have: it would hide their
    meaning."""
    return CPP_KEYWORDS | _RESERVED | frozenset(members)


def cpp_type_name(tokens: str, taken: Container[str]) -> str:
    """Returns the C++ type of the configuration that a key's tokens name; the way back is exact.

    `bf16` becomes `bf16_`, since the type's members mean the dtype.
    """
    name = tokens.replace("-", "_")
    while name in taken:
        name += "_"
    return name
