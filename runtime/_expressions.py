"""The specs' expression language, for filters of kernels and for tensors' extents.

The same whitelist as the code generator's: names, literals, lists, arithmetic, comparison, and, or,
not, `x if c else y`, in, and the functions below. Evaluated by walking the tree, so that extents
may be torch.compile's symbolic integers.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from runtime.errors import InvalidArgument

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
    "is_pow2": lambda a: a > 0 and a & (a - 1) == 0,
    "log2": lambda a: int(math.log2(a)) if a & (a - 1) == 0 else a.bit_length() - 1,
}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


@functools.cache
def parse(text: str) -> ast.expr:
    """The tree of an expression; InvalidArgument where it is not one of this language."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise InvalidArgument(f"{text!r} is not an expression: {error}") from None
    _check(tree, text)
    return tree


def names(text: str) -> frozenset[str]:
    """The names that an expression uses, its functions aside."""
    called = {id(n.func) for n in ast.walk(parse(text)) if isinstance(n, ast.Call)}
    return frozenset(
        n.id for n in ast.walk(parse(text)) if isinstance(n, ast.Name) and id(n) not in called
    )


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an expression; every name must be in `values`."""
    return _evaluate(parse(text), values)


def _check(node: ast.AST, text: str) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            children: list[ast.AST] = []
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            children = [*elements]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            children = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            children = [operand]
        case ast.BoolOp(values=operands):
            children = [*operands]
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(
            type(op) in _COMPARE for op in ops
        ):
            children = [left, *rest]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            children = [*arguments]
        case _:
            raise InvalidArgument(
                f"{text!r}: `{ast.unparse(node)}` is not allowed here; allowed are names, "
                f"literals, lists, arithmetic, comparison, and, or, not, in, `x if c else y`, and "
                f"{', '.join(_FUNCTIONS)}"
            )
    for child in children:
        _check(child, text)


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_evaluate(e, values) for e in elements]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](_evaluate(operand, values))
        case ast.BoolOp(op=ast.And(), values=operands):
            return all(_evaluate(o, values) for o in operands)
        case ast.BoolOp(values=operands):
            return any(_evaluate(o, values) for o in operands)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            terms = [_evaluate(t, values) for t in (left, *rest)]
            return all(
                _COMPARE[type(op)](a, b) for op, a, b in zip(ops, terms, terms[1:], strict=False)
            )
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, values) else orelse, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_evaluate(a, values) for a in arguments))
    raise AssertionError("parse() lets no other node through")
