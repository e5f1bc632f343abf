"""The one table of dtypes, and what C++ has of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import torch

from codegen.core import dtypes

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "runtime/include"


def test_the_header_is_that_of_the_table() -> None:
    text = (INCLUDE / "dtype_list.h").read_text(encoding="utf-8")
    assert text == dtypes.header(), "python -m codegen.core.dtypes > runtime/include/dtype_list.h"


def test_pytorch_has_each_under_its_name_and_size() -> None:
    for dtype in dtypes.TABLE:
        assert getattr(torch, dtype.torch).itemsize * 8 == dtype.bits, dtype


def test_cpp_has_a_type_of_each_name_and_size_and_the_enum_its_order(tmp_path) -> None:
    source = tmp_path / "types.cpp"
    lines = ['#include "dtypes.h"', '#include "registry.h"', "using namespace kernelmint;"]
    for number, dtype in enumerate(dtypes.TABLE):
        lines.append(f"static_assert(8 * sizeof({dtype.name}) == {dtype.bits});")
        lines.append(f"static_assert(static_cast<int>(Dtype::{dtype.enumerator}) == {number});")
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["c++", "-std=c++20", "-fsyntax-only", f"-I{INCLUDE}", source], check=True)


def test_the_docs_name_each() -> None:
    docs = (ROOT / "docs/specs.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"A tensor's dtype is one of ([\w,\s]+), or the name", docs)
    assert set(re.split(r"[,\s]+", listed)) == set(dtypes.DTYPES)
