"""One table of the dtypes of specs and of scalars, for Python and C++. Standard library only.

    python -m codegen.core.dtypes > runtime/include/dtype_list.h

writes the table of C++.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

# The greatest number of each dtype of floats, and whether it has infinity.
_RANGES = {
    "bf16": (float.fromhex("0x1.fep127"), True),
    "fp16": (65504.0, True),
    "f32": (float.fromhex("0x1.fffffep127"), True),
    "f64": (sys.float_info.max, True),
    "e4m3fn": (448.0, False),
    "e5m2": (57344.0, True),
    "complex64": (float.fromhex("0x1.fffffep127"), True),
    "complex128": (sys.float_info.max, True),
}


class Dtype(NamedTuple):
    """A row. Its place is its number in the enum Dtype, which packs hold: new rows come last."""

    name: str  # in specs; also its type in runtime/include/dtypes.h, unless C++ has that name
    torch: str  # PyTorch's name
    dlpack: int  # DLPack's DLDataTypeCode
    bits: int

    @property
    def enumerator(self) -> str:
        """Returns the dtype's value of the enum: its name, unless C++ has it as a keyword."""
        return "boolean" if self.name == "bool" else self.name

    @property
    def is_floating(self) -> bool:
        """Returns whether it is a dtype of floats, real or complex."""
        return self.name in _RANGES

    def holds(self, value: float) -> bool:
        """Returns whether elements may have that value, of at most 53 bits if it is an integer;
        floats round it."""
        if self.name == "e2m1x2":  # an element is two numbers
            return False
        if self.is_floating:
            most, has_infinity = _RANGES[self.name]
            return math.isnan(value) or abs(value) <= most or (math.isinf(value) and has_infinity)
        if not math.isfinite(value) or value != int(value):
            return False
        bits = 1 if self.name == "bool" else self.bits - (self.dlpack == 0)
        least = -(1 << bits) if self.dlpack == 0 else 0
        return max(least, -(1 << 53)) <= value <= min((1 << bits) - 1, 1 << 53)


TABLE = (
    Dtype("bf16", "bfloat16", 4, 16),
    Dtype("fp16", "float16", 2, 16),
    Dtype("f32", "float32", 2, 32),
    Dtype("f64", "float64", 2, 64),
    Dtype("i8", "int8", 0, 8),
    Dtype("u8", "uint8", 1, 8),
    Dtype("i32", "int32", 0, 32),
    Dtype("i64", "int64", 0, 64),
    Dtype("bool", "bool", 6, 8),
    Dtype("e4m3fn", "float8_e4m3fn", 10, 8),
    Dtype("e5m2", "float8_e5m2", 12, 8),
    Dtype("i16", "int16", 0, 16),
    Dtype("u16", "uint16", 1, 16),
    Dtype("u32", "uint32", 1, 32),
    Dtype("u64", "uint64", 1, 64),
    Dtype("complex64", "complex64", 5, 64),
    Dtype("complex128", "complex128", 5, 128),
    Dtype("e2m1x2", "float4_e2m1fn_x2", 17, 8),  # DLPack: 2 lanes of 4 bits
)
DTYPES = tuple(dtype.name for dtype in TABLE)
# Names in other projects.
_OTHER_NAMES = {
    **{dtype.torch: dtype.name for dtype in TABLE},
    **dict.fromkeys(("f16", "half"), "fp16"),
    **dict.fromkeys(("fp32", "float", "single"), "f32"),
    **dict.fromkeys(("fp64", "double"), "f64"),
    "bfloat": "bf16",
    "byte": "u8",
    "short": "i16",
    "int": "i32",
    "uint": "u32",
    "long": "i64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def of_other_name(name: str) -> str | None:
    """Returns the dtype that other projects call `name`: fp16 for "float16", "half" and "FP16";
    None for unknown names."""
    name = name.lower().removeprefix("torch.")
    return name if name in DTYPES else _OTHER_NAMES.get(name)


class ScalarType(NamedTuple):
    """The types of a scalar argument in PyTorch, Python and C++."""

    cpp: str
    python: str  # also in expressions: float, int or bool
    schema: (
        str  # in torch.library's schemas, where integers may change from call to call of a graph
    )


# The dtypes that scalars may have; runtime/src/kernel_scalars.cpp converts them.
SCALARS = {
    "f32": ScalarType("float", "float", "float"),
    "f64": ScalarType("double", "float", "float"),
    "i32": ScalarType("std::int32_t", "int", "SymInt"),
    "i64": ScalarType("std::int64_t", "int", "SymInt"),
    "bool": ScalarType("bool", "bool", "bool"),
}


def header() -> str:
    """Returns the text of dtype_list.h."""
    rows = [f'  ROW({d.enumerator}, "torch.{d.torch}", {d.dlpack}, {d.bits})' for d in TABLE]
    return "\n".join(
        [
            "// Written by `python -m codegen.core.dtypes`, out of its table; not edited by hand.",
            "// A row: the value of the enum Dtype, PyTorch's name, DLPack's code, bits.",
            "#pragma once",
            "",
            "// clang-format off",
            "#define KERNELMINT_DTYPES(ROW) \\",
            " \\\n".join(rows),
            "// clang-format on",
            "",
        ]
    )


if __name__ == "__main__":
    print(header(), end="")
