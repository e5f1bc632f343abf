"""Spec texts as C++: expressions, string literals, comments."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Protocol

from codegen.core.dtypes import DTYPES, TABLE
from codegen.core.expressions import (
    BOOL,
    FLOAT,
    INT,
    Expression,
    IntegerPow,
    Kind,
    constant,
    names_of,
)


def dtype_enumerator(dtype: str) -> str:
    """Returns the dtype's value of the enum Dtype (runtime/include/registry.h)."""
    return f"Dtype::{TABLE[DTYPES.index(dtype)].enumerator}"


@dataclass(frozen=True)
class Value:
    """A C++ expression. `atom`: needs no parentheses."""

    text: str
    kind: Kind
    atom: bool = True


class Names(Protocol):
    """The C++ spelling of a spec's names where an expression will stand."""

    def value(self, name: str) -> Value:
        """Returns the number `name`."""

    def equals(self, name: str, other: str, is_name: bool) -> str:
        """Returns whether the text `name` is the value `other`, or the value of the name `other`,
        as C++."""


def translate(expression: Expression, names: Names) -> str:
    """Returns the C++ of an expression's value: std::int64_t, bool or double, equal to Python's."""
    return _Translator(names).visit(expression.tree).text


def literal(text: str) -> str:
    """Returns a C++ string literal."""
    escaped = []
    for character in text:
        if character in '"\\':
            escaped.append("\\" + character)
        elif character == "?" and escaped and escaped[-1] == "?":
            escaped.append("\\?")  # no trigraphs
        elif character < " " or character == "\x7f":
            escaped.append(f"\\{ord(character):03o}")
        else:
            escaped.append(character)
    return '"' + "".join(escaped) + '"'


def comment(text: str) -> str:
    """Returns text that can follow `//`: one line, without a backslash at its end, which would take
    the next line along."""
    line = " ".join(text.split())
    return line + "." if line.endswith("\\") else line


def is_wide(value: int) -> bool:
    """Returns whether a literal needs 64 bits."""
    return not -(2**31) < value < 2**31


def number(value: int | float | bool) -> Value:
    """Returns a number's literal."""
    if isinstance(value, bool):
        return Value("true" if value else "false", BOOL)
    if isinstance(value, int):
        return Value(f"std::int64_t{{{value}}}" if is_wide(value) else str(value), INT, value >= 0)
    return Value(repr(value), FLOAT, atom=math.copysign(1, value) > 0)


def filling(value: float) -> str:
    """Returns the Filling (registry.h) of a value."""
    text = "NAN" if math.isnan(value) else "INFINITY" if math.isinf(value) else repr(float(value))
    return f"{{true, {'-' if value == -math.inf else ''}{text}}}"


_INTEGER_FUNCTIONS: dict[type[ast.operator], str] = {
    ast.Add: "sum",
    ast.Sub: "difference",
    ast.Mult: "product",
    ast.FloorDiv: "floor_div",
    ast.Mod: "floor_mod",
}
_VARIADIC = ("sum", "product")
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class _Translator:
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit(self, node: ast.expr) -> Value:
        if not isinstance(node, ast.Name) and not names_of(node):
            return number(constant(node))
        match node:
            case ast.Name():
                return self.names.value(node.id)
            case ast.UnaryOp(op=ast.Not()):
                return Value("!" + self.operand(node.operand), BOOL)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.visit(node.operand)
            case ast.UnaryOp():
                value = self.visit(node.operand)
                if value.kind == FLOAT:
                    return Value("-" + _parens(value), FLOAT, atom=False)
                return _call("negative", INT, value)
            case ast.BinOp():
                return self.arithmetic(node)
            case ast.BoolOp():
                return self.connective(node)
            case ast.Compare():
                return self.comparison(node)
            case ast.IfExp():
                body, other = _alike(self.visit(node.body), self.visit(node.orelse))
                text = f"({self.operand(node.test)} ? {_parens(body)} : {_parens(other)})"
                return Value(text, _common(body, other))
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, [self.visit(arg) for arg in node.args])
            case _:
                raise AssertionError(f"unchecked expression: {ast.dump(node)}")

    def operand(self, node: ast.expr) -> str:
        return _parens(self.visit(node))

    def arithmetic(self, node: ast.BinOp) -> Value:
        left, right = self.visit(node.left), self.visit(node.right)
        is_float = FLOAT in (left.kind, right.kind)
        if isinstance(node.op, ast.Pow):
            if isinstance(node.op, IntegerPow) or (left.kind != FLOAT and _is_count(node.right)):
                return _call("power", INT, left, right)
            return _call("real_power", FLOAT, _double(left), _double(right))
        if isinstance(node.op, ast.Div):
            as_float = _double if is_float else _exact
            return _call("quotient", FLOAT, as_float(left), as_float(right))
        if is_float:
            symbol = _SYMBOLS[type(node.op)]
            text = f"{_parens(_double(left))} {symbol} {_parens(_double(right))}"
            return Value(text, FLOAT, atom=False)
        function = _INTEGER_FUNCTIONS[type(node.op)]
        if function in _VARIADIC and _is_computed(node.left, type(node.op)):
            return Value(f"{left.text[:-1]}, {right.text})", INT)  # a + b + c is one sum
        return _call(function, INT, left, right)

    def connective(self, node: ast.BoolOp) -> Value:
        symbol = " && " if isinstance(node.op, ast.And) else " || "
        text = symbol.join(self.operand(value) for value in node.values)
        return Value(text, BOOL, atom=False)

    def comparison(self, node: ast.Compare) -> Value:
        operands = [node.left, *node.comparators]
        parts = [self.compare(op, operands[i], operands[i + 1]) for i, op in enumerate(node.ops)]
        if len(parts) == 1:
            return parts[0]
        return Value(" && ".join(map(_parens, parts)), BOOL, atom=False)

    def compare(self, op: ast.cmpop, a: ast.expr, b: ast.expr) -> Value:
        if isinstance(op, (ast.In, ast.NotIn)):
            assert isinstance(b, (ast.List, ast.Tuple))
            text = self.membership(a, b.elts)
            return Value(("!" if isinstance(op, ast.NotIn) else "") + text, BOOL)
        if self.is_text(a) or self.is_text(b):
            text = self.equal_texts(a, b)
            return Value(("!" if isinstance(op, ast.NotEq) else "") + f"({text})", BOOL)
        left, right = _alike(self.visit(a), self.visit(b))
        return Value(f"{_parens(left)} {_SYMBOLS[type(op)]} {_parens(right)}", BOOL, atom=False)

    def membership(self, a: ast.expr, elements: list[ast.expr]) -> str:
        if self.is_text(a):
            equal = [f"({self.equal_texts(a, element)})" for element in elements]
            return f"({' || '.join(equal)})" if equal else "false"
        value, *listed = _alike(*(self.visit(node) for node in (a, *elements)))
        number_type = "double" if value.kind == FLOAT else "std::int64_t"
        texts = ", ".join(element.text for element in listed)
        return f"expression::is_in<{number_type}>({value.text}, {{{texts}}})"

    def is_text(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return self.names.value(node.id).kind.name == "text"
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    def equal_texts(self, a: ast.expr, b: ast.expr) -> str:
        name, other = (a, b) if isinstance(a, ast.Name) else (b, a)
        assert isinstance(name, ast.Name)
        if isinstance(other, ast.Name):
            return self.names.equals(name.id, other.id, is_name=True)
        assert isinstance(other, ast.Constant)
        return self.names.equals(name.id, str(other.value), is_name=False)

    def call(self, name: str, arguments: list[Value]) -> Value:
        if name not in ("min", "max"):
            return _call(name, BOOL if name == "is_pow2" else INT, *arguments)
        alike = _alike(*arguments)
        kind = FLOAT if alike[0].kind == FLOAT else INT
        function = f"expression::{name}<double>" if kind == FLOAT else f"expression::{name}"
        text = alike[0].text
        for value in alike[1:]:
            text = f"{function}({text}, {value.text})"
        return Value(text, kind)


def _is_computed(node: ast.expr, op: type[ast.operator]) -> bool:
    """Returns whether a node is the result of `op` in C++ as in Python."""
    return isinstance(node, ast.BinOp) and type(node.op) is op and bool(names_of(node))


def _call(function: str, kind: Kind, *arguments: Value) -> Value:
    return Value(f"expression::{function}({', '.join(a.text for a in arguments)})", kind)


def _is_count(node: ast.expr) -> bool:
    """Returns whether an exponent is an integer of zero or more, as the checker decided."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.UAdd) and _is_count(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _parens(value: Value) -> str:
    return value.text if value.atom else f"({value.text})"


def _double(value: Value) -> Value:
    """Converts an operand as Python's arithmetic does if the other one is a float: rounded."""
    return value if value.kind == FLOAT else Value(f"double({value.text})", FLOAT)


def _exact(value: Value) -> Value:
    """Converts an operand as Python compares and divides it: without rounding."""
    return value if value.kind == FLOAT else _call("exact", FLOAT, value)


def _alike(*values: Value) -> list[Value]:
    """Converts all values to floats, if one of them is a float."""
    if FLOAT in (value.kind for value in values):
        return [_exact(value) for value in values]
    return list(values)


def _common(a: Value, b: Value) -> Kind:
    if FLOAT in (a.kind, b.kind):
        return FLOAT
    return BOOL if a.kind == b.kind == BOOL else INT
