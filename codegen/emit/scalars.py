"""A scalar argument in all that is generated: C++, Python, schemas, the manifest."""

from __future__ import annotations

from codegen.core import manifest
from codegen.core.dtypes import SCALARS
from codegen.core.expressions import FLOAT
from codegen.emit.cpp import dtype_enumerator, literal
from codegen.spec.model import Scalar
from codegen.spec.names import cpp_name, enum_type


def cpp_type(scalar: Scalar) -> str:
    """Returns the scalar's type, for code that fills Args."""
    return f"Args::{enum_type(scalar.name)}" if scalar.values else SCALARS[scalar.dtype].cpp


def declaration(scalar: Scalar) -> str:
    """Returns the scalar's declaration in Args; an enum's also declares its type."""
    if not scalar.values:
        extent = f"[{scalar.length}]" if scalar.length else ""
        return f"{SCALARS[scalar.dtype].cpp} {scalar.name}{extent};"
    values = ", ".join(cpp_name(value) for value in scalar.values)
    return f"enum class {enum_type(scalar.name)} {{ {values} }} {scalar.name};"


def member(scalar: Scalar) -> str:
    """Returns the member of ScalarValue (registry.h) that holds the scalar."""
    return "floating" if scalar.kind == FLOAT else "integer"


def place(scalar: Scalar, text: str) -> int:
    """Returns the number of one of an enum's texts in that member."""
    return scalar.values.index(text)


def values_row(scalar: Scalar) -> str:
    """Returns the array of an enum's texts; empty for a number."""
    texts = ", ".join(map(literal, scalar.values))
    return f"constexpr const char* kValuesOf_{scalar.name}[] = {{{texts}}};" if texts else ""


def row(scalar: Scalar, default: str | None) -> str:
    """Returns the scalar's ScalarArgument (registry.h); `default` is the function of its
    default."""
    dtype = dtype_enumerator("i32" if scalar.values else scalar.dtype)
    members = [f".name = {literal(scalar.name)}", f".dtype = {dtype}"]
    if scalar.default is None:
        members.append(".required = true")
    else:
        members.append(f".default_{member(scalar)} = {default}")
        members.append(f".text = {literal(scalar.default.text)}")
    if scalar.values:
        members.append(f".values = kValuesOf_{scalar.name}")
        members.append(f".num_values = {len(scalar.values)}")
    if scalar.length:
        members.append(f".length = {scalar.length}")
    on_one_line = scalar.default is None and not scalar.values
    return f"{{{(', ' if on_one_line else ',' + chr(10) + '     ').join(members)}}}"


def annotation(scalar: Scalar) -> str:
    """Returns the scalar's type in Python, without None."""
    texts = ", ".join(f'"{value}"' for value in scalar.values)
    if texts:
        return f"Literal[{texts}]"
    number = SCALARS[scalar.dtype].python
    return f"Sequence[{number}]" if scalar.length else number


def described(scalar: Scalar) -> str:
    """Returns the scalar's line in a docstring."""
    default = "required" if scalar.default is None else f"default {scalar.default.text}"
    kind = f"one of {', '.join(scalar.values)}" if scalar.values else scalar.dtype
    kind = f"{scalar.length} of {kind}" if scalar.length else kind
    return f"{scalar.name}: {kind}, {default}" + (f": {scalar.doc}" if scalar.doc else "")


def in_schema(scalar: Scalar) -> str:
    """Returns the scalar's argument in a schema of torch.library."""
    kind = "str" if scalar.values else SCALARS[scalar.dtype].schema
    kind += "[]" if scalar.length else ""
    optional, default = ("", "") if scalar.default is None else ("?", "=None")
    return f"{kind}{optional} {scalar.name}{default}"


def in_manifest(scalar: Scalar) -> manifest.Tensor | manifest.Scalar:
    """Returns the scalar's entry in the manifest."""
    return manifest.Scalar(
        name=scalar.name,
        role="scalar",
        dtype=scalar.dtype,
        default=None if scalar.default is None else scalar.default.normal,
        values=scalar.values,
        length=scalar.length,
        doc=scalar.doc,
    )
