"""The spelling of a spec's names in generated C++: within tables, and within a launch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from codegen.core.dtypes import DTYPES
from codegen.core.expressions import (
    BOOL,
    DEVICE_FACTS,
    FLOAT,
    INT,
    MAX_RESIDENT_BLOCKS,
    Expression,
    Kind,
    layout,
    scalar_kinds,
)
from codegen.emit import scalars
from codegen.emit.cpp import Names, Value, literal, translate
from codegen.space.product import derivation
from codegen.spec.model import (
    Family,
    Parameter,
    ParameterType,
    ParameterValue,
    Rule,
    Target,
)
from codegen.spec.names import cpp_name, enum_type

CPP_TYPES = {INT: "std::int64_t", BOOL: "bool", FLOAT: "double"}


class TableNames(Names):
    """Names where tables evaluate them: scope.symbols[i] and the like; derived values are locals.
    Without a target, the names that all targets share."""

    def __init__(self, family: Family, target: Target | None = None) -> None:
        parameters = family.parameters if target is None else target.parameters
        symbols = (*family.symbols, *family.element_symbols)
        self.symbols = {name: i for i, name in enumerate(symbols)}
        self.parameters = {p.name: (i, p) for i, p in enumerate(parameters)}
        names = ((name, s) for s in family.scalars for name in scalar_kinds([s]))
        self.scalars = {name: (i, scalar) for i, (name, scalar) in enumerate(names)}
        self.tensors = {tensor.name: i for i, tensor in enumerate(family.tensors)}
        self.dims = {tensor.name: tensor.dims for tensor in family.tensors}
        self.derivation = derivation(target or family)

    def locals(self, expression: Expression) -> list[str]:
        """Returns C++ that defines the derived values which an expression needs."""
        return [
            f"const {CPP_TYPES[d.expression.kind]} {d.name} = ({translate(d.expression, self)});"
            for d in self.derivation.needed_for(expression.names)
        ]

    def value(self, name: str) -> Value:
        """Returns the number `name`."""
        if call := layout(name):
            _, tensor, i = call  # expanded: nothing else is asked of tensors in tables
            stride = f"scope.tensors[{self.tensors[tensor]}].strides[{i}]"
            extent = translate(self.dims[tensor][i].expression, self)
            return Value(f"({stride} == 0 && ({extent}) > 1)", BOOL)
        if name in self.symbols:
            return Value(f"scope.symbols[{self.symbols[name]}]", INT)
        if name in self.tensors:
            return Value(f"scope.present[{self.tensors[name]}]", BOOL)
        if name in self.parameters:
            i, parameter = self.parameters[name]
            return Value(f"scope.parameters[{i}]", parameter.kind)
        if name in self.scalars:
            i, scalar = self.scalars[name]
            return Value(f"scope.scalars[{i}].{scalars.member(scalar)}", scalar.kind)
        if name in DEVICE_FACTS:
            return Value(f"scope.device->{name}", INT)
        return Value(name, self.derivation.kind(name))

    def equals(self, name: str, other: str, is_name: bool) -> str:
        """Returns whether the text `name` equals another name or value, as C++."""
        if is_name:
            return f"{self.value(name).text} == {self.value(other).text}"
        if name in self.parameters:
            number = table_number(self.parameters[name][1], other)
        else:
            number = scalars.place(self.scalars[name][1], other)
        return f"{self.value(name).text} == {number}"


class ConfigNames(Names):
    """Names where a launch or a record uses them: args.X, Config::x, context.facts.x."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        derived: Mapping[str, Expression] | None = None,
        sizes: Mapping[str, Kind] | None = None,
        tensors: Container[str] = (),
    ) -> None:
        self.kinds = {p.name: p for p in parameters}
        self.derived = derived or {}
        self.sizes = sizes or {}
        self.tensors = tensors

    def value(self, name: str) -> Value:
        """Returns the number `name`."""
        if name in self.kinds:
            return Value(f"Config::{name}", self.kinds[name].kind)
        if name in self.derived:
            return Value(f"Config::{name}", self.derived[name].kind)
        if name in DEVICE_FACTS:
            return Value(f"context.facts.{name}", INT)
        if name == MAX_RESIDENT_BLOCKS:
            return Value("resident.count", INT)
        if name in self.tensors:
            return Value(f"(args.{name}.data != nullptr)", BOOL)
        return Value(f"args.{name}", self.sizes[name])

    def equals(self, name: str, other: str, is_name: bool) -> str:
        """Returns whether the text `name` equals another name or value, as C++."""
        if name in self.kinds and self.kinds[name].type is ParameterType.DTYPE:
            right = f"typename Config::{other}" if is_name else other
            return f"std::is_same_v<typename Config::{name}, {right}>"
        left = self.value(name).text
        if is_name:
            return f"static_cast<int>({left}) == static_cast<int>({self.value(other).text})"
        scope = "Config" if name in self.kinds else "Config::Args"
        return f"{left} == {scope}::{enum_type(name)}::{cpp_name(other)}"


def asks_device(expressions: Iterable[Expression | None]) -> bool:
    """Returns whether one of the expressions names a fact about the device."""
    return any(e is not None and not e.names.isdisjoint(DEVICE_FACTS) for e in expressions)


def evaluated(expression: Expression, names: TableNames, result: str) -> str:
    """Returns an IntExpression or a FloatExpression of registry.h.

    The expression stands in a template argument, which a `>` without parentheses would end.
    """
    text = " ".join([*names.locals(expression), f"return ({translate(expression, names)});"])
    scope = " scope" if "scope." in text else ""
    return f"&evaluated<{result}, [](const Scope&{scope}) -> {result} {{ {text} }}>"


def table_number(parameter: Parameter, value: ParameterValue) -> int:
    """Returns a parameter's value in the tables: a Dtype's number, an enum's index."""
    if parameter.type is ParameterType.DTYPE:
        return DTYPES.index(str(value))
    if parameter.type is ParameterType.ENUM:
        return (parameter.values or ()).index(value)
    return int(value)


def requirements(rules: Sequence[Rule], names: TableNames) -> list[str]:
    """Returns rules as rows of a table of Requirement (registry.h)."""
    rows = []
    for rule in rules:
        members = [f".holds = {evaluated(rule.that, names, 'std::int64_t')}"]
        members += [f".text = {literal(rule.that.text)}", f".because = {literal(rule.because)}"]
        if not rule.that.names.isdisjoint(names.scalars):
            members.append(".needs_scalars = true")
        rows.append("{" + ",\n     ".join(members) + "}")
    return rows
