"""One extension serves every Python from 3.12 on: its sources use Python's stable ABI alone, which
the build of an older Python does not find out."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "runtime" / "src"
# What reaches into Python's objects instead of calling a function.
_MACRO = re.compile(r"\bPy[A-Z][A-Za-z]*_(?:GET|SET|AS)_[A-Z]+\b|->(?:ob|tp)_\w+")
_OF_OLDER = re.compile(r"#if PY_VERSION_HEX < 0x030C0000\n.*?#else", re.DOTALL)


def test_the_extension_uses_the_stable_abi_alone() -> None:
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".h")]
    assert len(files) > 10
    found = {
        path.name: names
        for path in files
        if (names := _MACRO.findall(_OF_OLDER.sub("", path.read_text())))
    }
    assert found == {}


def test_what_is_looked_for_is_found() -> None:
    assert _MACRO.findall(
        "PyTuple_GET_SIZE(a.ptr()), NB_TUPLE_GET_ITEM(t, 0), PyTuple_Size(t)"
    ) == ["PyTuple_GET_SIZE"]
