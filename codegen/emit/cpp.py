"""Spec texts as C++: expressions, string literals, comments."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Protocol

from codegen.spec.expressions import BOOL, FLOAT, INT, Expression, Kind, constant, names_of

SCALAR_TYPES = {
    "f32": "float",
    "f64": "double",
    "i32": "std::int32_t",
    "i64": "std::int64_t",
    "bool": "bool",
}


def dtype_enumerator(dtype: str) -> str:
    """The dtype's value of the enum Dtype (runtime/include/registry.h)."""
    return "Dtype::" + ("boolean" if dtype == "bool" else dtype)


@dataclass(frozen=True)
class Value:
    """A C++ expression. `wide`: computed in 64 bits; `atom`: needs no parentheses."""

    text: str
    kind: Kind
    wide: bool = True
    atom: bool = True


class Names(Protocol):
    """What a spec's names are called where the C++ will stand."""

    def value(self, name: str) -> Value:
        """The number `name`."""

    def equals(self, name: str, other: str, is_name: bool) -> str:
        """Whether the text `name` is the value `other`, or the value of the name `other`."""


def translate(expression: Expression, names: Names) -> str:
    """The C++ of an expression's value: std::int64_t, bool or double, equal to Python's."""
    return _Translator(names).visit(expression.tree).text


def literal(text: str) -> str:
    """A C++ string literal."""
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
    """Text that can follow `//`: one line, and no backslash that would take the next line along."""
    line = " ".join(text.split())
    return line + "." if line.endswith("\\") else line


def number(value: int | float | bool) -> Value:
    """A literal."""
    if isinstance(value, bool):
        return Value("true" if value else "false", BOOL, wide=False)
    if isinstance(value, int):
        wide = not -(2**31) < value < 2**31
        return Value(f"std::int64_t{{{value}}}" if wide else str(value), INT, wide, value >= 0)
    return Value(repr(value), FLOAT, atom=math.copysign(1, value) > 0)


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
                return Value("!" + self.operand(node.operand), BOOL, wide=False)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.visit(node.operand)
            case ast.UnaryOp():
                value = self.visit(node.operand)
                kind = FLOAT if value.kind == FLOAT else INT
                return Value("-" + _widened(value), kind, atom=False)
            case ast.BinOp():
                return self.arithmetic(node)
            case ast.BoolOp():
                return self.connective(node)
            case ast.Compare():
                return self.comparison(node)
            case ast.IfExp():
                body, other = self.visit(node.body), self.visit(node.orelse)
                text = f"({self.operand(node.test)} ? {_parens(body)} : {_parens(other)})"
                return Value(text, _common(body, other), body.wide or other.wide)
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, [self.visit(arg) for arg in node.args])
            case _:
                raise AssertionError(f"unchecked expression: {ast.dump(node)}")

    def operand(self, node: ast.expr) -> str:
        return _parens(self.visit(node))

    def arithmetic(self, node: ast.BinOp) -> Value:
        left, right = self.visit(node.left), self.visit(node.right)
        match node.op:
            case ast.FloorDiv():
                return Value(f"expression::floor_div({left.text}, {right.text})", INT)
            case ast.Mod():
                return Value(f"expression::floor_mod({left.text}, {right.text})", INT)
            case ast.Div():
                return Value(f"{_double(left)} / {_double(right)}", FLOAT, atom=False)
            case ast.Pow() if left.kind != FLOAT and _is_count(node.right):
                return Value(f"expression::power({left.text}, {right.text})", INT)
            case ast.Pow():
                return Value(f"std::pow({_double(left)}, {_double(right)})", FLOAT)
            case _:
                kind = FLOAT if FLOAT in (left.kind, right.kind) else INT
                wide = kind == FLOAT or left.wide or right.wide
                first = _parens(left) if wide else _widened(left)
                if isinstance(node.left, ast.BinOp) and type(node.left.op) is type(node.op):
                    first = left.text  # a + b + c and a * b * c need no parentheses
                text = f"{first} {_SYMBOLS[type(node.op)]} {_parens(right)}"
                return Value(text, kind, atom=False)

    def connective(self, node: ast.BoolOp) -> Value:
        symbol = " && " if isinstance(node.op, ast.And) else " || "
        text = symbol.join(self.operand(value) for value in node.values)
        return Value(text, BOOL, wide=False, atom=False)

    def comparison(self, node: ast.Compare) -> Value:
        operands = [node.left, *node.comparators]
        parts = [self.compare(op, operands[i], operands[i + 1]) for i, op in enumerate(node.ops)]
        if len(parts) == 1:
            return parts[0]
        text = " && ".join(map(_parens, parts))
        return Value(text, BOOL, wide=False, atom=False)

    def compare(self, op: ast.cmpop, a: ast.expr, b: ast.expr) -> Value:
        if isinstance(op, (ast.In, ast.NotIn)):
            assert isinstance(b, (ast.List, ast.Tuple))
            equal = [_parens(self.compare(ast.Eq(), a, element)) for element in b.elts]
            text = f"({' || '.join(equal)})" if equal else "false"
            return Value(("!" if isinstance(op, ast.NotIn) else "") + text, BOOL, wide=False)
        if _is_text(a) or _is_text(b) or self.is_text_name(a):
            text = self.equal_texts(a, b)
            return Value(("!" if isinstance(op, ast.NotEq) else "") + f"({text})", BOOL, wide=False)
        text = f"{self.operand(a)} {_SYMBOLS[type(op)]} {self.operand(b)}"
        return Value(text, BOOL, wide=False, atom=False)

    def is_text_name(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self.names.value(node.id).kind.name == "text"

    def equal_texts(self, a: ast.expr, b: ast.expr) -> str:
        name, other = (a, b) if isinstance(a, ast.Name) else (b, a)
        assert isinstance(name, ast.Name)
        if isinstance(other, ast.Name):
            return self.names.equals(name.id, other.id, is_name=True)
        assert isinstance(other, ast.Constant)
        return self.names.equals(name.id, str(other.value), is_name=False)

    def call(self, name: str, arguments: list[Value]) -> Value:
        if name not in ("min", "max"):
            texts = ", ".join(value.text for value in arguments)
            is_bool = name == "is_pow2"
            return Value(f"expression::{name}({texts})", BOOL if is_bool else INT, not is_bool)
        floating = any(value.kind == FLOAT for value in arguments)
        function = f"std::{name}<double>" if floating else f"expression::{name}"
        text = arguments[0].text
        for value in arguments[1:]:
            text = f"{function}({text}, {value.text})"
        return Value(text, FLOAT if floating else INT)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_count(node: ast.expr) -> bool:
    """Whether an exponent is an integer of zero or more, as the checker decided."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.UAdd) and _is_count(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _parens(value: Value) -> str:
    return value.text if value.atom else f"({value.text})"


def _widened(value: Value) -> str:
    if value.wide:
        return _parens(value)
    return f"std::int64_t{{{value.text}}}"


def _double(value: Value) -> str:
    return _parens(value) if value.kind == FLOAT else f"double({value.text})"


def _common(a: Value, b: Value) -> Kind:
    if FLOAT in (a.kind, b.kind):
        return FLOAT
    return BOOL if a.kind == b.kind == BOOL else INT
