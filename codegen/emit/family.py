"""The files of a family: Args, its entry in the registry, its Python class."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.core.expressions import Expression
from codegen.emit import python_face, scalars
from codegen.emit.cpp import comment, dtype_enumerator, filling, literal, translate
from codegen.emit.cpp_names import ConfigNames, TableNames, asks_device, evaluated, requirements
from codegen.emit.render import render
from codegen.space.expand import FamilySpace
from codegen.spec.model import Dim, Family, RecordTensor, Role, Scalar, Tensor, Trace


def shape_text(tensor: Tensor) -> str:
    """Returns a shape as text, such as [B, Sq, H, D], or L of [N] for a list."""
    shape = "[" + ", ".join(dim.expression.text for dim in tensor.dims) + "]"
    return f"{tensor.length.expression.text} of {shape}" if tensor.length else shape


def args(family: Family) -> str:
    """Returns args.h."""
    members: dict[str, tuple[str, str]] = {}  # declarations and comments
    for tensor in family.tensors:
        role = ", output" if tensor.role is Role.OUTPUT else ", changed" if tensor.mutated else ""
        role += "" if tensor.fill is None else f", filled with {tensor.fill:g}"
        optional = ", optional" if tensor.optional else ""
        optional += ", on the host" if tensor.on_host else ""
        optional += f", {tensor.packed} elements in each" if tensor.packed else ""
        doc = f": {tensor.doc}" if tensor.doc else ""
        is_read = tensor.role is Role.INPUT and not tensor.mutated
        view = ("Const" if is_read else "") + ("TensorList" if tensor.length else "TensorView")
        members[tensor.name] = (
            f"{view}<{len(tensor.dims)}> {tensor.name};",
            comment(f"{shape_text(tensor)} {tensor.dtype}{role}{optional}{doc}"),
        )
    for scalar in family.scalars:
        if not scalar.of_gradient:
            members[scalar.name] = scalars.declaration(scalar), comment(scalar.doc or scalar.dtype)
    arguments = [members[name] for name in family.argument_order if name in members]
    has_lists = any(tensor.length for tensor in family.tensors)
    return render("args.h", family.file, family=family, arguments=arguments, has_lists=has_lists)


def slots(scalars: Sequence[Scalar]) -> list[int]:
    """Returns the place of each scalar among the values of a call, where a list has several."""
    lengths = [max(scalar.length, 1) for scalar in scalars]
    return [sum(lengths[:i]) for i in range(len(lengths))]


def trace_h(family: Family, trace: Trace) -> str:
    """Returns trace.h: the record that traced kernels write."""
    names = ConfigNames(family.parameters)

    def extents(tensor: RecordTensor) -> str:
        return "".join(f"[{translate(extent, names)}]" for extent in tensor.shape)

    record = [(tensor.name + extents(tensor), comment(tensor.doc)) for tensor in trace.record]
    grid = ", ".join(extent.text for extent in trace.grid)
    return render("trace.h", family.file, family=family.name, trace=trace, grid=grid, record=record)


def family_cpp(space: FamilySpace) -> str:
    """Returns family.cpp: the arguments, their checks and defaults, the targets."""
    family = space.family
    names = TableNames(family)
    symbols = [*family.symbols, *family.element_symbols]

    def value(expression: Expression, result: str = "std::int64_t") -> str:
        return evaluated(expression, names, result)

    def scalar_row(scalar: Scalar) -> str:
        result = "double" if scalars.member(scalar) == "floating" else "std::int64_t"
        return scalars.row(scalar, value(scalar.default, result) if scalar.default else None)

    def length(dim: Dim) -> str:
        symbol = dim.symbol and f".symbol = {symbols.index(dim.symbol)}"
        text = literal(dim.expression.text)
        return f"{{{symbol or f'.value = {value(dim.expression)}'}, .text = {text}}}"

    def last_members(tensor: Tensor) -> list[tuple[str, str]]:
        """Returns the members that only some tensors have, in the order of TensorArgument."""
        members = [
            ("mutated", tensor.mutated and "true"),
            ("on_host", tensor.on_host and "true"),
            ("strides", tensor.strides != "rows" and f"Strides::{tensor.strides}"),
            ("alignment", tensor.alignment is not None and value(tensor.alignment)),
            ("fill", tensor.fill is not None and filling(tensor.fill)),
            ("is_list", tensor.length and "true"),
            ("is_flat", tensor.flat and "true"),
            ("length", tensor.length and length(tensor.length)),
        ]
        return [(member, text) for member, text in members if text]

    expressions = [*(rule.that for rule in family.requires), *(s.default for s in family.scalars)]
    return render(
        "family.cpp",
        family.file,
        family=family,
        symbols=symbols,
        slots=slots(family.scalars),
        parameters=[parameter.name for parameter in family.parameters],
        targets=[chosen.target.name for chosen in space.targets],
        asks_device=asks_device(expressions),
        requirements=requirements(family.requires, names),
        dtype_enumerator=dtype_enumerator,
        value=value,
        scalars=scalars,
        scalar_row=scalar_row,
        last_members=last_members,
    )


def python(family: Family) -> str:
    """Returns the family's Python module."""
    return render("family.py", family.file, **python_face.values(family))
