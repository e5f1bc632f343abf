"""The expression language of specs: a safe, typed subset of Python's expressions.

Names, ints, floats, bools, strings, lists; `+ - * / // % **`, comparisons, `and or not`, `x if c
else y`, `in`; min, max, ceil_div, is_pow2, log2, next_pow2. Parsed with `ast`, checked node by
node, and only then compiled. Names and types are checked when a spec is loaded, so that every
expression that loads has a value in Python and, if it is needed there, the same value in C++
(emit/cpp.py).

The runtime reads filters and tensors' extents with this module and where.py: standard library only.
"""

from __future__ import annotations

import ast
import copy
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeGuard

from codegen.core.dtypes import DTYPES, SCALARS
from codegen.core.words import did_you_mean

INT64_MAX = 2**63 - 1
# Facts about a call's device: DeviceFacts of runtime/include/launch.h.
DEVICE_FACTS = ("sm_count", "max_shared_memory")
# The grid of a launch may also name it: the blocks of the launch that the device holds at once.
MAX_RESIDENT_BLOCKS = "max_resident_blocks"
# Rules that choose a kernel may also name it: 86 for 8.6, 0 for the CPU.
COMPUTE_CAPABILITY = "compute_capability"

_MAX_LENGTH = 2000
_MAX_DEPTH = 60
_MAX_REPETITION = 5000  # nodes of C++ that repeats an operand, as `x in [1, 2]` does
_MAX_TRUTHS = 64  # the most sets that are kept for a condition
MAX_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Kind:
    """The kind of an expression's value. A text (dtype or enum) may list the values it takes.

    `given`: the value exists only if one of these names is true.
    """

    name: str
    values: tuple[str, ...] | None = None
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_number(self) -> bool:
        """Returns whether the value is a number; bools count, as they do in Python."""
        return self.name in ("int", "bool", "float")


INT, BOOL, FLOAT, LIST = Kind("int"), Kind("bool"), Kind("float"), Kind("list")
DTYPE = Kind("text", DTYPES)


class _Scalar(Protocol):
    """A scalar argument of a spec or of a manifest."""

    @property
    def dtype(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def length(self) -> int: ...


def scalar_kind(scalar: _Scalar) -> Kind:
    """Returns the kind of a scalar argument in expressions."""
    if scalar.dtype == "enum":
        return Kind("text", scalar.values)
    return {"float": FLOAT, "bool": BOOL, "int": INT}[SCALARS[scalar.dtype].python]


def scalar_kinds(scalars: Iterable[_Scalar]) -> dict[str, Kind]:
    """Returns the names of scalar arguments in expressions, with their kinds: of a list, those of
    its numbers, such as `stride[0]`."""
    return {
        name: scalar_kind(scalar)
        for scalar in scalars
        for name in (
            [f"{scalar.name}[{i}]" for i in range(scalar.length)]
            if scalar.length
            else [scalar.name]
        )
    }


# A front's rule may ask how an input lies in memory: `stride(x, 1)`, in elements, and
# `aligned(x, 16)`: whether its address and its strides, but those of 1, are multiples of 16 bytes.
# A target's requirements may also ask `expanded(x, 1)`: whether that dimension has more than one
# element, all one in memory.
_LAYOUTS = {
    "stride": "stride takes an input and one of its dimensions, as in stride(x, 0)",
    "aligned": "aligned takes an input and a power of two of bytes, as in aligned(x, 16)",
    "expanded": "expanded takes an input and one of its dimensions, as in expanded(x, 0)",
}


def layout_name(function: str, tensor: str, number: int) -> str:
    """Returns the name that a call of a layout function has in a scope, and after parsing."""
    return f"_{function}_{number}_{tensor}"


def layout(name: str) -> tuple[str, str, int] | None:
    """Returns the function, the tensor and the number of such a name; None for other names."""
    if not name.startswith("_"):
        return None
    _, function, number, tensor = name.split("_", 3)
    return function, tensor, int(number)


class ExpressionError(Exception):
    """An expression is wrong; `problems` holds (offset into its text, message) for each problem."""

    def __init__(self, problems: Iterable[tuple[int, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(message for _, message in self.problems))


def ceil_div(a: int, b: int) -> int:
    """Returns the least integer that is no less than a / b."""
    return -(-a // b)


def is_pow2(a: int) -> bool:
    """Returns whether a is 1, 2, 4, …"""
    return a > 0 and a & (a - 1) == 0


def log2(a: int) -> int:
    """Returns the binary logarithm, rounded down. Raises ValueError below 1."""
    if a < 1:
        raise ValueError(f"log2 of {a}")
    result = 0
    while a >= 2 << result:  # a size of a graph is compared: the graph holds for this result
        result += 1
    return result


def next_pow2(a: int) -> int:
    """Returns the least power of two that is no less than a."""
    return 1 if a <= 1 else 2 << log2(a - 1)


def power(a: float, b: float) -> float:
    """Returns a ** b as a real number within 64 bits. Raises ValueError or OverflowError without
    such a number."""
    if isinstance(b, int) and b >= 0 and isinstance(a, int):
        if abs(a) > 1 and (b > 62 or abs(a**b) > INT64_MAX):
            raise OverflowError(f"{a} ** {b} exceeds 64 bits")
        return int(a**b)
    return math.pow(a, b)


def integer_power(a: int, b: int) -> int:
    """Returns a ** b of integers within 64 bits. Raises ValueError if b is negative, OverflowError
    without such a number."""
    if b < 0:
        raise ValueError(f"an integer to the power of {b}")
    if isinstance(a, int) and isinstance(b, int):
        return int(power(a, b))
    return a**b  # a size of a graph


def in_range(value: Any) -> Any:
    """Returns the value, if C++ has it: a finite double, an integer of 64 bits. Raises
    OverflowError otherwise."""
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError("the result is not a finite number")
    if isinstance(value, int) and not -INT64_MAX <= value <= INT64_MAX:
        raise OverflowError("the result exceeds 64 bits")
    return value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil_div": ceil_div,
    "is_pow2": is_pow2,
    "log2": log2,
    "next_pow2": next_pow2,
}
# The names that compiled expressions may use besides their own; no builtins.
ENVIRONMENT: dict[str, Any] = {
    "__builtins__": {},
    "_power": power,
    "_integer_power": integer_power,
    "_in_range": in_range,
    **FUNCTIONS,
}

EVALUATION_ERRORS = (ArithmeticError, ValueError)


def reason(error: Exception) -> str:
    """Returns one of EVALUATION_ERRORS in words; Python's own differ from version to version."""
    return "division by zero" if isinstance(error, ZeroDivisionError) else str(error)


@dataclass(frozen=True)
class Expression:
    """A checked expression."""

    text: str
    tree: ast.expr
    kind: Kind

    @cached_property
    def names(self) -> frozenset[str]:
        """Returns the names that the expression uses, functions excluded."""
        return frozenset(names_of(self.tree))

    @cached_property
    def normal(self) -> str:
        """Returns the expression in normal form: texts quoted, parentheses only if needed."""
        return ast.unparse(self.tree)

    @property
    def operand(self) -> str:
        """Returns the normal form, to stand beside an operator."""
        plain = isinstance(self.tree, (ast.Name, ast.Call)) or self.normal.isdigit()
        return self.normal if plain else f"({self.normal})"

    @cached_property
    def python(self) -> str:
        """Returns Python source of the same value, for ENVIRONMENT; of the same kind in all
        cases."""
        text = ast.unparse(_PowerCalls().visit(copy.deepcopy(self.tree)))
        if self.kind == FLOAT:
            return f"1.0 * ({text})"
        if self.kind == INT and isinstance(self.tree, (ast.IfExp, ast.Call)):
            return f"+({text})"  # `true if p else 2` is 1 or 2
        return text

    @cached_property
    def size(self) -> int:
        """Returns the number of names, numbers and operations in the expression."""
        return sum(isinstance(node, ast.expr) for node in ast.walk(self.tree))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Returns the expression's value. Raises one of EVALUATION_ERRORS if it has no value that
        C++ also has."""
        return in_range(eval(self._code, ENVIRONMENT, dict(values)))

    @cached_property
    def _code(self) -> Any:
        return compile(self.python, "<spec>", "eval")


# The operator of `a ** b` if both are integers and b is no number: the result is an integer.
IntegerPow = type("Pow", (ast.Pow,), {})  # ast.unparse writes an operator by its class's name


class _PowerCalls(ast.NodeTransformer):
    """Rewrites `a ** b` to `_power(a, b)`, which cannot run away."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Pow):
            function = "_integer_power" if isinstance(node.op, IntegerPow) else "_power"
            return ast.Call(ast.Name(function, ast.Load()), [node.left, node.right], [])
        return node


class _BareConstants(ast.NodeTransformer):
    """Rewrites `dtype == bf16` to `dtype == "bf16"`: values need no quotes if no name hides them.

    YAML's `true` and `false` become True and False, and a question about a tensor's memory becomes
    the name of its answer, as `stride[0]` becomes the name of that number.
    """

    def __init__(self, scope: Mapping[str, Kind]) -> None:
        self.scope = scope
        self.values = {v for kind in scope.values() for v in kind.values or ()} - scope.keys()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.values:
            return ast.copy_location(ast.Constant(node.id), node)
        if node.id in ("true", "false"):
            return ast.copy_location(ast.Constant(node.id == "true"), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = ast.unparse(node)
        return ast.copy_location(ast.Name(name, ast.Load()), node) if name in self.scope else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(
                func=ast.Name(id=asked),
                args=[ast.Name(id=tensor), ast.Constant(value=int(number))],
                keywords=[],
            ) if (name := layout_name(asked, tensor, number)) in self.scope:
                return ast.copy_location(ast.Name(name, ast.Load()), node)
        function, node.func = node.func, ast.Constant(None)
        self.generic_visit(node)
        node.func = function  # `max(a, b)`, beside a value that is called max
        return node


def names_of(tree: ast.expr) -> list[str]:
    """Returns the names an expression uses, functions excluded, in order of appearance."""
    functions = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in functions]
    nodes.sort(key=lambda n: n.col_offset)
    return list(dict.fromkeys(n.id for n in nodes))


# Spellings of other languages, and the spelling here.
_HABITS = [
    (re.compile(habit), meant)
    for habit, meant in (
        (r"&&|\bAND\b", "and"),
        (r"\|\||\bOR\b", "or"),
        (r"!(?!=)|\bNOT\b", "not"),
        (r"<>|!==", "!="),
        (r"=>", ">="),
        (r"=<", "<="),
        (r"===|(?<![<>!=])=(?![=<>])", "=="),
        (r"\bmod\b", "%"),
        (r"\bdiv\b", "//"),
        (r"\?", "x if c else y"),
        (r"\b(\d+) ?[kK]i?(?:B|bytes)?\b", r"\1 * 1024"),
        (r"\b(\d+) ?[mM]i?(?:B|bytes)?\b", r"\1 * 1024 ** 2"),
        (r"\b(\d+) ?[gG]i?(?:B|bytes)?\b", r"\1 * 1024 ** 3"),
        (r"\b(\d+) ?(?:[bB]|bytes?)\b", r"\1"),
    )
]
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPERATORS_MEANT: dict[type[ast.AST], str] = {
    ast.BitAnd: "and", ast.BitOr: "or", ast.Invert: "not", ast.BitXor: "**", ast.Is: "==",
    ast.IsNot: "!=", ast.LShift: "* 2 **", ast.RShift: "// 2 **",
}  # fmt: skip
_FUNCTIONS_MEANT = {
    "abs": "max(x, -x)", "cdiv": "ceil_div(x, y)", "ceil": "ceil_div(x, y)", "floor": "x // y",
    "int": "x // y", "next_power_of_2": "next_pow2(x)", "pow": "x ** y", "sqrt": "x ** 0.5",
}  # fmt: skip


def _meant(text: str) -> tuple[int, str]:
    """Returns the place of syntax that other languages have, and a hint how it is written here, or
    ""."""
    plain = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    for habit, replacement in _HABITS:
        if match := habit.search(plain):
            return match.start(), f"; for '{match[0]}' write '{match.expand(replacement)}'"
    return 0, ""


def syntax(text: str) -> ast.expr:
    """Returns the syntax tree of an expression, not yet checked."""
    if len(text) > _MAX_LENGTH:
        raise ExpressionError([(0, f"an expression is at most {_MAX_LENGTH} characters long")])
    flat = text.replace("\n", " ")
    indent = len(flat) - len(flat.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(flat.strip(), mode="eval").body
    except SyntaxError as error:
        offset, hint = _meant(flat)
        if not hint:
            offset = indent + max((error.offset or 1) - 1, 0)
            if "never closed" in str(error.msg) or "unmatched" in str(error.msg):
                hint = "; quote a text that holds commas"
        raise ExpressionError([(offset, f"not an expression: {error.msg}{hint}")]) from None
    except (ValueError, MemoryError, RecursionError):
        raise ExpressionError([(0, "not an expression")]) from None
    if _depth(tree) > _MAX_DEPTH:
        raise ExpressionError([(0, f"an expression nests at most {_MAX_DEPTH} levels deep")])
    for node in ast.walk(tree):  # ast counts bytes; people count characters
        if isinstance(node, ast.expr):
            before = flat.strip().encode()[: node.col_offset]
            node.col_offset = indent + len(before.decode(errors="ignore"))
    return tree


def parse(text: str, scope: Mapping[str, Kind], expects: str | Kind = "number") -> Expression:
    """Checks `text` against the whitelist, the names of `scope` and their kinds.

    `expects` is the required kind of the value: "bool", "int" (or a bool), "number" (either, or a
    float), or of which kind; only Python evaluates an expression that is a text, which lists its
    values. Raises ExpressionError with every problem.
    """
    if isinstance(expects, Kind) and expects.is_number:
        expects = "number" if expects == FLOAT else expects.name
    values = {"": expects} if isinstance(expects, Kind) else {}
    tree = _BareConstants({**scope, **values}).visit(syntax(text))
    checker = _Checker(scope, chooses_texts=bool(values))
    kind = checker.visit(tree)
    if not checker.problems and (needed := _needed(kind, expects)):
        hint = ""
        if isinstance(tree, ast.Tuple):
            hint = ": a comma ends it; join conditions by `and`, and write 1000 without one"
        checker.problems.append((0, f"'{text.strip()}' must be {needed}{hint}"))
    if not checker.problems:
        _check_constants(tree, checker)
    if not checker.problems and _repetition(tree) > _MAX_REPETITION:
        checker.problems.append((0, "nested comparisons repeat their operands too often in C++"))
    if checker.problems:
        raise ExpressionError(sorted(set(checker.problems)))
    return Expression(" ".join(text.split()), tree, kind or INT)


def _needed(kind: Kind | None, expects: str | Kind) -> str | None:
    """Says which kind of value an expression must have, and which it has."""
    if isinstance(expects, Kind):
        values = expects.values or ()
        if _is_text(kind) and set(kind.values or ()) <= set(values):
            return None
        return f"one of {', '.join(values)}"
    articles = {
        "bool": (kind == BOOL, "true or false"),
        "int": (kind in (INT, BOOL), "an integer"),
        "number": (kind is not None and kind.is_number, "a single number"),
    }
    fits, needed = articles[expects]
    return None if fits else needed


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _check_constants(tree: ast.expr, checker: _Checker) -> None:
    """Evaluates the parts without names: 1 // 0 is an error now, not when it is used."""
    if isinstance(tree, (ast.Constant, ast.List, ast.Tuple, ast.Name)):
        if isinstance(tree, (ast.List, ast.Tuple)):
            for element in tree.elts:
                _check_constants(element, checker)
        return
    if not names_of(tree):
        try:
            constant(tree)
        except EVALUATION_ERRORS as error:
            checker.add(tree, f"'{ast.unparse(tree)}' has no value: {reason(error)}")
        return
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr) and not (isinstance(tree, ast.Call) and child is tree.func):
            _check_constants(child, checker)


def constant(tree: ast.expr) -> bool | int | float:
    """Returns the value of a checked expression without names. Raises one of EVALUATION_ERRORS."""
    value: bool | int | float = Expression("", tree, _Checker({}).visit(tree) or INT).evaluate({})
    return value


def _repetition(tree: ast.AST) -> int:
    """Returns the size of an expression in C++, where comparisons write an operand more than
    once."""
    if isinstance(tree, ast.Compare):
        sizes = [_repetition(operand) for operand in (tree.left, *tree.comparators)]
        times = [
            len(b.elts) if isinstance(b, ast.List | ast.Tuple) else 1 for b in tree.comparators
        ]
        return sum(sizes[i] * times[i] + sizes[i + 1] for i in range(len(times)))
    return 1 + sum(map(_repetition, ast.iter_child_nodes(tree)))


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)


# Sets of names, of each of which one at least is known to be true.
_Truths = frozenset[frozenset[str]]


class _Checker:
    """Visitor that finds the kind of each node; None if a problem below it was reported."""

    def __init__(self, scope: Mapping[str, Kind], chooses_texts: bool = False) -> None:
        self.scope = scope
        self.chooses_texts = chooses_texts  # `x if c else y` may be one
        self.problems: list[tuple[int, str]] = []
        self.kinds: dict[ast.expr, Kind | None] = {}
        self.truths: _Truths = frozenset()  # where a node stands

    def add(self, node: ast.expr, message: str) -> None:
        self.problems.append((node.col_offset, message))

    def visit(self, node: ast.expr) -> Kind | None:
        """Returns the kind of a node; each node is checked once."""
        if node not in self.kinds:
            self.kinds[node] = self._kind(node)
        return self.kinds[node]

    def _kind(self, node: ast.expr) -> Kind | None:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._name(node)
            case ast.List() | ast.Tuple():
                for element in node.elts:
                    self.visit(element)
                return LIST
            case ast.UnaryOp(op=ast.Not()):
                self._condition(node.operand)
                return BOOL
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                kind = self._number(node.operand)
                return FLOAT if kind == FLOAT else INT
            case ast.BinOp() if isinstance(node.op, _OPERATORS):
                return self._arithmetic(node)
            case ast.BoolOp():
                truths = self.truths
                for value in node.values:
                    self._condition(value)
                    self.truths |= _truths(value, isinstance(node.op, ast.And))
                self.truths = truths
                return BOOL
            case ast.Compare() if all(isinstance(op, _COMPARISONS) for op in node.ops):
                operands = [node.left, *node.comparators]
                kinds = [self.visit(operand) for operand in operands]
                for i, op in enumerate(node.ops):
                    self._comparison(op, operands[i], kinds[i], operands[i + 1], kinds[i + 1])
                return BOOL
            case ast.IfExp():
                self._condition(node.test)
                truths, kinds = self.truths, []
                for branch, outcome in ((node.body, True), (node.orelse, False)):
                    self.truths = truths | _truths(node.test, outcome)
                    is_text = self.chooses_texts and _is_text(self.visit(branch))
                    kinds.append(self.visit(branch) if is_text else self._number(branch))
                self.truths = truths
                if any(map(_is_text, kinds)):
                    return self._either(node, kinds)
                return _common(kinds)
            case ast.Call():
                return self._call(node)
            case _:
                operators = [getattr(node, "op", None), *getattr(node, "ops", ())]
                spellings = [m for op in operators if (m := _OPERATORS_MEANT.get(type(op)))]
                hint = f": write `{spellings[0]}`" if spellings else ""
                text = ast.unparse(node)
                self.add(node, f"'{text}' is not part of the expression language{hint}")
                return None

    def _either(self, node: ast.IfExp, kinds: list[Kind | None]) -> Kind | None:
        if not all(map(_is_text, kinds)):
            self.add(node, f"'{ast.unparse(node)}' is a text or a number")
            return None
        return Kind("text", tuple(v for kind in kinds if kind for v in kind.values or ()))

    def _constant(self, node: ast.Constant) -> Kind | None:
        value = node.value
        if isinstance(value, bool):
            return BOOL
        if isinstance(value, int):
            if value > INT64_MAX:
                self.add(node, "this integer exceeds 64 bits")
            return INT
        if isinstance(value, float):
            if not math.isfinite(value):
                self.add(node, "this number exceeds a double")
            return FLOAT
        if isinstance(value, str):
            return Kind("text", (value,))
        self.add(node, f"'{ast.unparse(node)}' is not part of the expression language")
        return None

    def _name(self, node: ast.Name) -> Kind | None:
        if node.id in self.scope:
            kind = self.scope[node.id]
            if kind.given and not _is_given(kind, self.truths):
                conditions, first = " or ".join(kind.given), kind.given[0]
                self.add(
                    node,
                    f"'{node.id}' is known only if {conditions} is passed: say so, as in "
                    f"'not {first} or …' and '… if {first} else …'",
                )
            return kind
        if node.id in FUNCTIONS:
            self.add(node, f"'{node.id}' is a function: {node.id}(…)")
        elif node.id in (*DEVICE_FACTS, MAX_RESIDENT_BLOCKS):
            self.add(node, f"'{node.id}' is a fact about the device, which is not known here")
        else:
            names = [n for n in self.scope if layout(n) is None]
            values = [v for kind in self.scope.values() for v in kind.values or ()]
            hint = next(filter(None, (
                did_you_mean(node.id, names, list_few=False),
                did_you_mean(node.id, values, list_few=False),
                did_you_mean(node.id, names),
            )), "")  # fmt: skip
            self.add(node, f"unknown name '{node.id}'{hint}")
        return None

    def _number(self, node: ast.expr) -> Kind | None:
        kind = self.visit(node)
        if kind is not None and not kind.is_number:
            self.add(node, f"'{ast.unparse(node)}' is a {kind.name}, not a number: compare it")
            return None
        return kind

    def _condition(self, node: ast.expr) -> None:
        if self._number(node) in (INT, FLOAT):
            text = ast.unparse(node)
            self.add(node, f"'{text}' must be true or false: compare it, as in {text} != 0")

    def _integer(self, node: ast.expr) -> None:
        if self._number(node) == FLOAT:
            self.add(node, f"'{ast.unparse(node)}' must be an integer")

    def _arithmetic(self, node: ast.BinOp) -> Kind | None:
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            self._integer(node.left)
            self._integer(node.right)
            return INT
        left, right = self._number(node.left), self._number(node.right)
        if isinstance(node.op, ast.Div):
            return FLOAT
        if isinstance(node.op, ast.Pow) and left != FLOAT and right in (INT, BOOL):
            exponent = node.right
            if isinstance(exponent, ast.Constant):
                return INT
            if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.operand, ast.Constant):
                return FLOAT if isinstance(exponent.op, ast.USub) else INT
            node.op = IntegerPow()
            return INT
        return FLOAT if FLOAT in (left, right) else INT

    def _comparison(
        self, op: ast.cmpop, a: ast.expr, left: Kind | None, b: ast.expr, right: Kind | None
    ) -> None:
        if left is None or right is None:
            return
        if isinstance(op, (ast.In, ast.NotIn)):
            if isinstance(b, (ast.List, ast.Tuple)):
                for element in b.elts:
                    self._comparison(ast.Eq(), a, left, element, self.visit(element))
            else:
                self.add(b, "'in' takes a list: x in [1, 2]")
        elif left == LIST or right == LIST:
            self.add(a, "a list is only allowed to the right of 'in'")
        elif left.is_number != right.is_number:
            texts, numbers = (b, a) if left.is_number else (a, b)
            self.add(
                a,
                f"compares a text ('{ast.unparse(texts)}') with a number "
                f"('{ast.unparse(numbers)}')",
            )
        elif not left.is_number:
            self._text_comparison(op, a, left, b, right)

    def _text_comparison(
        self, op: ast.cmpop, a: ast.expr, left: Kind, b: ast.expr, right: Kind
    ) -> None:
        if not isinstance(op, (ast.Eq, ast.NotEq)):
            self.add(a, "texts compare only with == and !=")
        elif isinstance(a, ast.Constant) and isinstance(b, ast.Constant):
            self.add(a, "compares two constants")
        elif isinstance(a, ast.Constant) or isinstance(b, ast.Constant):
            literal, other = (a, right) if isinstance(a, ast.Constant) else (b, left)
            assert isinstance(literal, ast.Constant)
            value = str(literal.value)
            if other.values is not None and value not in other.values:
                hint = did_you_mean(value, other.values)
                self.add(literal, f"'{value}' is not among its values{hint}")
        elif left.values != right.values:
            self.add(a, f"'{ast.unparse(a)}' and '{ast.unparse(b)}' have different values")

    def _call(self, node: ast.Call) -> Kind | None:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            name = ast.unparse(node.func)
            if name in _LAYOUTS and name in {
                layout_[0] for layout_ in map(layout, self.scope) if layout_
            }:
                self.add(node, _LAYOUTS[name])
            else:
                spelling = _FUNCTIONS_MEANT.get(name)
                hint = f": write {spelling}" if spelling else did_you_mean(name, FUNCTIONS)
                self.add(node, f"unknown function '{name}'{hint}")
            return None
        name = node.func.id
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            self.add(node, f"{name} takes plain arguments")
            return None
        least, most = {"min": (2, 16), "max": (2, 16), "ceil_div": (2, 2)}.get(name, (1, 1))
        if not least <= len(node.args) <= most:
            count = f"{least}" if least == most else f"{least} or more"
            self.add(node, f"{name} takes {count} arguments, not {len(node.args)}")
            return None
        if name in ("min", "max"):
            kind = _common([self._number(arg) for arg in node.args])
            return INT if kind == BOOL else kind
        for arg in node.args:
            self._integer(arg)
        return BOOL if name == "is_pow2" else INT


def _is_text(kind: Kind | None) -> TypeGuard[Kind]:
    return kind is not None and kind.name == "text"


def known_where(condition: Expression, scope: Mapping[str, Kind]) -> dict[str, Kind]:
    """Returns the scope of an expression that is evaluated only if a condition holds."""
    truths = _truths(condition.tree, True)
    return {n: replace(k, given=()) if _is_given(k, truths) else k for n, k in scope.items()}


def _is_given(kind: Kind, truths: _Truths) -> bool:
    return any(some <= {*kind.given} for some in truths)


def _truths(condition: ast.expr, outcome: bool) -> _Truths:
    """Returns sets of names: of each set, one name is true if the condition's value is
    `outcome`."""
    match condition:
        case ast.Name(id=name) if outcome:
            return frozenset([frozenset([name])])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _truths(operand, not outcome)
        case ast.BoolOp(op=op, values=values):
            first, *others = [_truths(value, outcome) for value in values]
            for other in others:
                if isinstance(op, ast.And) is outcome:
                    first |= other
                elif len(first) * len(other) > _MAX_TRUTHS:
                    return frozenset()
                else:
                    first = frozenset(a | b for a in first for b in other)
            return first
        case _:
            return frozenset()


def _common(kinds: list[Kind | None]) -> Kind | None:
    if None in kinds:
        return None
    if FLOAT in kinds:
        return FLOAT
    return BOOL if all(kind == BOOL for kind in kinds) else INT
