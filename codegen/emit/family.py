"""The files of a family: Args, its entry in the registry, its Python class."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.emit import python_face, scalars
from codegen.emit.cpp import (
    comment,
    dtype_enumerator,
    translate,
)
from codegen.emit.cpp_names import (
    ConfigNames,
    TableNames,
    asks_device,
    evaluated,
    requirements,
)
from codegen.emit.render import render
from codegen.space.expand import FamilySpace
from codegen.spec.expressions import Expression
from codegen.spec.model import Family, Role, Tensor, Trace


@dataclass(frozen=True)
class _Member:
    declaration: str
    comment: str


def shape_text(tensor: Tensor) -> str:
    """[B, Sq, H, D]"""
    return "[" + ", ".join(dim.expression.text for dim in tensor.dims) + "]"


def args(family: Family) -> str:
    """args.h."""
    members: dict[str, _Member] = {}
    for tensor in family.tensors:
        role = ", output" if tensor.role is Role.OUTPUT else ", changed" if tensor.mutated else ""
        optional = ", optional" if tensor.optional else ""
        optional += ", on the host" if tensor.on_host else ""
        doc = f": {tensor.doc}" if tensor.doc else ""
        is_read = tensor.role is Role.INPUT and not tensor.mutated
        view = "ConstTensorView" if is_read else "TensorView"
        members[tensor.name] = _Member(
            f"{view}<{len(tensor.dims)}> {tensor.name};",
            comment(f"{shape_text(tensor)} {tensor.dtype}{role}{optional}{doc}"),
        )
    for scalar in family.scalars:
        if not scalar.of_gradient:
            members[scalar.name] = _Member(
                scalars.declaration(scalar), comment(scalar.doc or scalar.dtype)
            )
    arguments = [members[name] for name in family.argument_order if name in members]
    return render("args.h", family.file, family=family, arguments=arguments)


def trace_h(family: Family, trace: Trace) -> str:
    """trace.h: the record that traced kernels write."""
    names = ConfigNames(family.parameters)
    record = []
    for tensor in trace.record:
        extents = "".join(f"[{translate(extent, names)}]" for extent in tensor.shape)
        record.append(_Member(f"{tensor.name}{extents}", comment(tensor.doc)))
    return render(
        "trace.h",
        family.file,
        family=family.name,
        parameter=trace.parameter,
        grid=", ".join(extent.text for extent in trace.grid),
        rank=len(trace.grid),
        record=record,
    )


@dataclass(frozen=True)
class _DimRow:
    symbol: int | None
    function: str | None  # if it is not a symbol
    text: str


@dataclass(frozen=True)
class _TensorRow:
    name: str
    role: str
    optional: bool
    dtype_parameter: int | None
    dtype: str | None  # if it is not a parameter's
    dims: list[_DimRow]
    last: list[tuple[str, str]]  # what only some tensors say, in the order of TensorArgument


@dataclass(frozen=True)
class _ScalarRow:
    name: str
    values: str
    row: str
    cpp_type: str
    member: str
    of_gradient: bool


@dataclass(frozen=True)
class _TraceRow:
    parameter: int
    dims: list[_DimRow]


@dataclass(frozen=True)
class _FamilyRow:
    name: str
    symbols: tuple[str, ...]
    targets: list[str]
    asks_device: bool


def family_cpp(space: FamilySpace) -> str:
    """family.cpp: the arguments, their checks and defaults, the targets."""
    family = space.family
    names = TableNames(family)
    parameters = [parameter.name for parameter in family.parameters]
    tensors = []
    for tensor in family.tensors:
        is_parameter = tensor.dtype in parameters
        dims = [_dim_row(family, dim.expression, names) for dim in tensor.dims]
        tensors.append(
            _TensorRow(
                tensor.name,
                tensor.role.value,
                tensor.optional,
                parameters.index(tensor.dtype) if is_parameter else None,
                None if is_parameter else dtype_enumerator(tensor.dtype),
                dims,
                _last_members(tensor, names),
            )
        )
    rows = []
    for scalar in family.scalars:
        member = scalars.member(scalar)
        default = None
        if scalar.default is not None:
            result = "double" if member == "floating" else "std::int64_t"
            default = evaluated(scalar.default, names, result)
        row = scalars.row(scalar, default)
        values, cpp_type = scalars.values_row(scalar), scalars.cpp_type(scalar)
        rows.append(_ScalarRow(scalar.name, values, row, cpp_type, member, scalar.of_gradient))
    return render(
        "family.cpp",
        family.file,
        family=_FamilyRow(
            family.name,
            family.symbols,
            [chosen.target.name for chosen in space.targets],
            asks_device(
                [*(rule.that for rule in family.requires), *(s.default for s in family.scalars)]
            ),
        ),
        tensors=tensors,
        scalars=rows,
        requirements=requirements(family.requires, names),
        trace=None if family.trace is None else _trace_row(family, family.trace, names),
    )


def _last_members(tensor: Tensor, names: TableNames) -> list[tuple[str, str]]:
    members = []
    if tensor.mutated:
        members.append(("mutated", "true"))
    if tensor.on_host:
        members.append(("on_host", "true"))
    if tensor.strides != "rows":
        members.append(("strides", f"Strides::{tensor.strides}"))
    if tensor.alignment is not None:
        members.append(("alignment", evaluated(tensor.alignment, names, "std::int64_t")))
    return members


def _dim_row(family: Family, extent: Expression, names: TableNames) -> _DimRow:
    if extent.text in family.symbols:
        return _DimRow(family.symbols.index(extent.text), None, extent.text)
    return _DimRow(None, evaluated(extent, names, "std::int64_t"), extent.text)


def _trace_row(family: Family, trace: Trace, names: TableNames) -> _TraceRow:
    parameters = [parameter.name for parameter in family.parameters]
    return _TraceRow(
        parameters.index(trace.parameter),
        [_dim_row(family, extent, names) for extent in (*trace.grid, trace.floats)],
    )


def python(family: Family) -> str:
    """The family's Python module."""
    return render("family.py", family.file, **python_face.values(family))
