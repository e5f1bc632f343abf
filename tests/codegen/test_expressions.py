"""The expression language: what it refuses, and that Python and C++ agree on what it accepts."""

from __future__ import annotations

import ast
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from codegen.core.expressions import (
    BOOL,
    DTYPE,
    DTYPES,
    EVALUATION_ERRORS,
    FLOAT,
    FUNCTIONS,
    INT,
    ExpressionError,
    IntegerPow,
    Kind,
    constant,
    integer_power,
    names_of,
    parse,
    power,
)
from codegen.emit.cpp import Value, literal, translate

ROOT = Path(__file__).resolve().parents[2]

MODE = Kind("text", ("auto", "fixed"))
SCOPE = {"a": INT, "b": INT, "c": INT, "p": BOOL, "q": BOOL, "dtype": DTYPE, "mode": MODE}


class CppNames:
    """The names as C++ variables."""

    def value(self, name: str) -> Value:
        return Value(name, SCOPE[name])

    def equals(self, name: str, other: str, is_name: bool) -> str:
        known = SCOPE[name].values
        assert known is not None
        return f"{name} == {other if is_name else known.index(other)}"


# ---- random expressions, by kind

EDGES = (2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1)

ints = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(st.integers(0, 1000), st.sampled_from(EDGES)).map(str),
        st.tuples(ints, st.sampled_from("+-*"), ints).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(ints, st.sampled_from(["//", "%"]), ints).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(ints, ints).map(lambda t: f"ceil_div({t[0]}, {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), ints, ints, ints).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]}, {t[3]})"
        ),
        ints.map(lambda t: f"(-{t})"),
        st.tuples(st.sampled_from(["log2", "next_pow2"]), ints).map(lambda t: f"{t[0]}({t[1]})"),
        # A negative number as the exponent would make the power a float.
        st.tuples(st.sampled_from(["2", "a"]), ints).map(
            lambda t: f"({t[0]} ** ceil_div({t[1]}, 1))"
        ),
        st.tuples(ints, st.sampled_from([0, 1, 2, 3, 63, 10**15])).map(
            lambda t: f"({t[0]} ** {t[1]})"
        ),
        st.tuples(ints, bools, ints).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(bools, ints).map(lambda t: f"({t[0]} + {t[1]})"),
    )
)
comparisons = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
bools = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["p", "q", "True", "False"]),
        st.tuples(ints, comparisons, ints).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(ints, comparisons, ints, comparisons, ints).map(lambda t: f"({' '.join(t)})"),
        st.tuples(bools, st.sampled_from(["and", "or"]), bools).map(lambda t: f"({' '.join(t)})"),
        bools.map(lambda t: f"(not {t})"),
        ints.map(lambda t: f"is_pow2({t})"),
        st.tuples(
            ints, st.sampled_from(["in", "not in"]), st.lists(sums, max_size=3).map(", ".join)
        ).map(lambda t: f"({t[0]} {t[1]} [{t[2]}])"),
        st.tuples(sums, comparisons, sums).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.sampled_from(
            ["dtype == 'bf16'", "dtype != f32", "dtype in [bf16, fp16]", "mode == auto",
             "'fixed' == mode", "mode not in ['auto']", "dtype == dtype"]
        ).map(lambda t: f"({t})"),
    )
)  # fmt: skip
# Without powers: these are compared, and std::pow and Python's ** may differ in the last bit.
sums = st.one_of(ints, st.tuples(ints, st.sampled_from("+*/"), st.sampled_from(["0.5", "3.0"])).map(
    lambda t: f"({' '.join(t)})"
))  # fmt: skip
floats = st.deferred(
    lambda: st.one_of(
        st.floats(-1e3, 1e3).map(repr).map(lambda t: f"({t})"),
        st.tuples(ints, ints).map(lambda t: f"({t[0]} / {t[1]})"),
        st.tuples(floats, st.sampled_from("+-*/"), numbers).map(lambda t: f"({' '.join(t)})"),
        st.tuples(numbers, floats).map(lambda t: f"(max({t[0]}, 1) ** {t[1]})"),
        st.tuples(ints, st.integers(1, 3)).map(lambda t: f"({t[0]} ** -{t[1]})"),
        st.tuples(numbers, floats).map(lambda t: f"min({t[0]}, {t[1]})"),
        st.tuples(ints, bools, floats).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    )
)
numbers = st.one_of(ints, floats)

values = st.fixed_dictionaries(
    {
        "a": st.one_of(st.integers(-50, 50), st.sampled_from([-(2**63), *EDGES])),
        "b": st.one_of(st.integers(0, 4096), st.sampled_from(EDGES)),
        "c": st.integers(1, 8),
        "p": st.booleans(),
        "q": st.booleans(),
        "dtype": st.sampled_from(DTYPES),
        "mode": st.sampled_from(MODE.values),
    }
)


class Refused(Exception):
    """A value that a call refuses."""


class Call:
    """What an expression is when a kernel is called: Python's value, each integer on the way within
    64 bits, and each that is compared with a float, or divided, one that a float holds."""

    def __init__(self, scope: dict) -> None:
        self.scope = scope

    def value(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Name) and not names_of(node):
            return constant(node)
        result = self.computed(node)
        if isinstance(node, ast.Name | ast.IfExp) or is_min_max(node):
            return result
        if isinstance(result, int) and abs(result) >= 2**63:
            raise Refused
        return result

    def computed(self, node: ast.expr) -> Any:
        match node:
            case ast.Name():
                return self.scope[node.id]
            case ast.BoolOp():
                wanted = isinstance(node.op, ast.And)
                return wanted is all((self.value(n) is True) is wanted for n in node.values)
            case ast.UnaryOp():
                return self.apply(node, operand=self.value(node.operand))
            case ast.IfExp():
                is_float = is_float_kind(node)
                chosen = self.value(node.body if self.value(node.test) else node.orelse)
                return exact(chosen) if is_float else chosen
            case ast.BinOp():
                left, right = self.value(node.left), self.value(node.right)
                if isinstance(node.op, ast.Div):
                    ints = not is_float_kind(node.left) and not is_float_kind(node.right)
                    left, right = (exact(left), exact(right)) if ints else (left, right)
                return self.apply(node, left=left, right=right)
            case ast.Call():
                values = [self.value(argument) for argument in node.args]
                if is_min_max(node) and is_float_kind(node):
                    values = [exact(value) for value in values]
                if node.func.id == "ceil_div":
                    values = [within(-within(values[0])), values[1]]
                    return -within(values[0] // checked(values[1]))
                return FUNCTIONS[node.func.id](*values)
            case ast.Compare():
                return self.compare(node)
        raise AssertionError(ast.dump(node))

    def compare(self, node: ast.Compare) -> bool:
        before = node.left
        for op, after in zip(node.ops, node.comparators, strict=True):
            listed = isinstance(op, ast.In | ast.NotIn)
            nodes = [before, *(after.elts if listed else [after])]
            if is_text(nodes[0]) or is_text(nodes[-1]):
                values = [self.text(n) for n in nodes]
            else:
                values = [self.value(n) for n in nodes]
                if any(map(is_float_kind, nodes)):
                    values = [exact(value) for value in values]
            name = ast.unparse(ast.Compare(ast.Name("x"), [op], [ast.Name("y")]))
            if not eval(name, {"x": values[0], "y": values[1:] if listed else values[1]}):
                return False
            before = after
        return True

    def text(self, node: ast.expr) -> str:
        return self.scope[node.id] if isinstance(node, ast.Name) else node.value

    def apply(self, node: ast.expr, **values: Any) -> Any:
        """An operator on values; of the expression's own language, so that ** cannot run away."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            function = integer_power if isinstance(node.op, IntegerPow) else power
            return function(values["left"], values["right"])
        names = {field: ast.Name(field, ast.Load()) for field in values}
        operation = type(node)(op=node.op, **names)
        return eval(ast.unparse(operation), {}, values)


def exact(value: Any) -> float:
    if isinstance(value, int) and abs(value) > 2**53:
        raise Refused
    return float(value)


def within(value: int) -> int:
    if abs(value) >= 2**63:
        raise Refused
    return value


def checked(divisor: int) -> int:
    if divisor == 0:
        raise Refused
    return divisor


def is_float_kind(node: ast.expr) -> bool:
    return parse(ast.unparse(node), SCOPE).kind == FLOAT


def is_text(node: ast.expr) -> bool:
    name = SCOPE[node.id].name if isinstance(node, ast.Name) else None
    return name == "text" or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_min_max(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and node.func.id in ("min", "max")


def called(text: str, scope: dict) -> Any:
    """The value at a call, or None if it is refused; it is Python's, where there is one."""
    expression = parse(text, SCOPE)
    try:
        value = Call(scope).value(expression.tree)
        if isinstance(value, float) and not math.isfinite(value):
            return None
    except (Refused, *EVALUATION_ERRORS):
        return None
    # -2**63 is what a scalar may be, but no value of Expression.evaluate.
    if value != -(2**63):
        assert expression.evaluate(scope) == value, (text, scope)
    return value


# (expression, a, b, its value at a call; None: refused)
HARD = [
    ("log2(a)", 0, 0, None), ("log2(a)", -5, 0, None), ("log2(a)", 2**63 - 1, 0, 62),
    ("a + b", 2**63 - 1, 1, None), ("a - b", -(2**63), 1, None), ("a * b", 2**62, 2, None),
    ("a * b // b", 2**62, 4, None), ("-a", -(2**63), 0, None), ("a // b", -(2**63), -1, None),
    ("a % b", -(2**63), -1, 0), ("a // b", 1, 0, None), ("a % b", 1, 0, None),
    ("ceil_div(a, b)", -(2**63), 1, None), ("ceil_div(a, b)", -7, 2, -3),
    ("a ** 2", 2**32, 0, None),
    ("2 ** a", 62, 0, 2**62), ("2 ** a", 63, 0, None), ("2 ** a", -1, 0, None),
    ("next_pow2(a)", 2**62 + 1, 0, None), ("next_pow2(a)", 2**62, 0, 2**62),
    ("a ** 1000000000000000", 1, 0, 1), ("a ** 1000000000000001", -1, 0, -1),
    ("a ** 1000000000000000", 2, 0, None), ("a ** 0", 0, 0, 1), ("a / b", 1, 0, None),
    ("a / b", 2**53 + 1, 3, None), ("a * 0.5", 2**53 + 1, 0, 2**52), ("a ** -1", 0, 0, None),
    ("a ** 0.5", -1, 0, None), ("(a * 1e200) ** 2.0", 1, 0, None), ("a * 1e308", 10, 0, None),
    ("a == b + 0.5", 2**53 + 1, 0, None), ("a in [1, 8 // b]", 1, 0, None),
    ("a // b in []", 1, 0, None), ("p or a // b == 1", 1, 0, True),
    ("1 if p else log2(a)", 0, 0, 1),
    ("a if p else 0.5", 2**53 + 1, 0, None), ("min(a, 0.5)", 2**53 + 1, 0, None),
]  # fmt: skip
PRINT = r"""
#include <cstdio>
static void show(double value) { std::printf("%.17g\n", value); }
static void show(std::int64_t value) { std::printf("%lld\n", static_cast<long long>(value)); }
template <class F> void print(F function) {
  try {
    show(function());
  } catch (const kernelmint::expression::NoValue&) {
    std::puts("refused");
  }
}
"""


def refusal(text: str) -> str | None:
    try:
        parse(text, SCOPE)
    except ExpressionError as error:
        return str(error)
    return None


def test_python_and_cpp_agree_or_refuse(tmp_path) -> None:
    """Hard expressions and hundreds of random ones, compiled as generated code would have them."""
    cases: list[tuple[str, dict, Any]] = []
    for text, a, b, expected in HARD:
        scope = {"a": a, "b": b, "c": 1, "p": True, "q": False, "dtype": "f32", "mode": "auto"}
        assert called(text, scope) == expected, text
        cases.append((text, scope, expected))

    @settings(max_examples=600)  # one file of C++
    @given(st.one_of(ints, bools, floats), values)
    def collect(text: str, scope: dict) -> None:
        if why := refusal(text):  # a constant part without a value: refused when loaded
            assert "has no value" in why or "exceeds" in why, text
        elif len(text) < 600:
            cases.append((text, scope, called(text, scope)))

    collect()
    assert len(cases) > 150
    lines = []
    for i, (text, scope, _) in enumerate(cases):
        arguments = ", ".join(
            f"{scope[n]}LL" if n in "abc" and scope[n] != -(2**63)
            else "INT64_MIN" if n in "abc"
            else str(SCOPE[n].values.index(scope[n]) if SCOPE[n].values else int(scope[n]))
            for n in SCOPE
        )  # fmt: skip
        expression = parse(text, SCOPE)
        kind = "double" if expression.kind == FLOAT else "std::int64_t"
        lines.append(
            f"static {kind} f{i}({', '.join(f'std::int64_t {n}' for n in SCOPE)}) "
            f"{{ return {translate(expression, CppNames())}; }}"
        )
        lines.append(f"static void g{i}() {{ print([] {{ return f{i}({arguments}); }}); }}")
    source = "\n".join(
        ['#include "arithmetic.h"', PRINT, "namespace kernelmint {", *lines,
         "}", "int main() {", *(f"  kernelmint::g{i}();" for i in range(len(cases))), "}"]
    )  # fmt: skip
    (tmp_path / "cases.cpp").write_text(source)
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed"
    subprocess.run(
        [compiler, "-std=c++20", "-O0", "-w", "-I", ROOT / "runtime/include", "cases.cpp", "-o",
         "cases"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    printed = subprocess.run([tmp_path / "cases"], capture_output=True, text=True, check=True)
    for (text, scope, expected), actual in zip(cases, printed.stdout.split(), strict=True):
        if expected is None or actual == "refused":
            same = expected is None and actual in ("refused", "inf", "-inf", "nan", "-nan")
        elif isinstance(expected, float):  # std::pow and Python's ** may differ in the last bits
            same = math.isclose(float(actual), expected, rel_tol=1e-12, abs_tol=1e-300)
        else:
            same = int(actual) == expected
        assert same, (text, scope, expected, actual)


@pytest.mark.parametrize(
    "text",
    [
        "a.b", "a[0]", "a()", "min", "min(a)", "min(*[a, b])", "min(a, key=b)", "print(a)",
        "lambda: a", "[x for x in [a]]", "{1: 2}", "{1}", "f'{a}'", "b''", "1j", "None", "...",
        "a is b", "a << 1", "a & b", "a | b", "a ^ b", "~a", "a @ b", "(a := 1)", "await a",
        "a if b else c", "a and b", "not a", "1 +", "", " ", "a b", "import os", "a; b", "a = 1",
        "[a]", "a == [1]", "a in b", "dtype < 'f32'", "'bf16' == 'bf16'", "dtype + 1", "dtype",
        "mode == dtype", "2 ** (1 - 2)", "1 / 0", "9 ** 99", "2 ** 64", "1e999",
        "99999999999999999999",
        "a // 1.5", "log2(0)", "ceil_div(1, 0)", "(-8) ** 0.5", "\0", "a\\", "é", "__import__",
        "0 in [a, 'x']", "min(a, dtype)",
    ],
)  # fmt: skip
def test_refused(text) -> None:
    with pytest.raises(ExpressionError):
        parse(text, SCOPE, "number")


@settings(max_examples=3 * settings.default.max_examples)
@given(st.text(alphabet="abpq01 ()[]+-*/%<>=!,.'\"andornotifelse\n\\", max_size=60))
def test_any_text_is_an_expression_or_an_expression_error(text) -> None:
    if refusal(text) is None:
        assert translate(parse(text, SCOPE), CppNames())


@pytest.mark.parametrize(
    ("text", "scope", "value"),
    [
        ("7 // -2", {}, -4),
        ("-7 % 3", {}, 2),
        ("a // b", {"a": -7, "b": 2}, -4),
        ("ceil_div(a, b)", {"a": 7, "b": 2}, 4),
        ("a ** -0.5", {"a": 64}, 0.125),
        ("2 ** (a - 1) // 3", {"a": 4}, 2),
        ("2 ** b ** a", {"a": 2, "b": 3}, 512),
        ("10 * log2(a) + log2(b)", {"a": 1, "b": 7}, 2),
        ("100 * next_pow2(a) + next_pow2(b)", {"a": -3, "b": 1025}, 2148),
        ("dtype in [bf16, 'fp16']", {"dtype": "fp16"}, True),
        ("1 < a <= 3", {"a": 3}, True),
        ("p + p", {"p": True}, 2),
        ("p == true and (false if p else true) == false", {"p": True}, True),
    ],
)
def test_means_what_python_means(text, scope, value) -> None:
    assert parse(text, SCOPE).evaluate(scope) == value


def test_all_problems_of_an_expression_at_once() -> None:
    with pytest.raises(ExpressionError) as error:
        parse("x + y * a", SCOPE)
    assert [offset for offset, _ in error.value.problems] == [0, 4]


@given(st.text())
def test_a_cpp_literal_is_one_line_of_printable_text(text) -> None:
    text = text.encode(errors="ignore").decode()
    written = literal(text)
    assert written.splitlines() == [written] or any(c in written for c in "\x85\u2028\u2029")
    assert "??" not in written.replace("\\?", "")


def test_a_value_that_is_called_as_a_function_hides_no_function():
    """`reduce == max`, and `max(a, b)` beside it."""
    scope = {"a": INT, "b": INT, "reduce": Kind("text", ("min", "max"))}
    expression = parse("max(a, b) if reduce == max else min(a, b)", scope)
    assert expression.evaluate({"a": 1, "b": 2, "reduce": "max"}) == 2
    assert expression.evaluate({"a": 1, "b": 2, "reduce": "min"}) == 1


@pytest.mark.parametrize(
    ("text", "offset", "hint"),
    [
        ("x = 8", 2, "for '=' write '=='"),
        ("x == 1 && y == 2", 7, "for '&&' write 'and'"),
        ("x == 1 || y == 2", 7, "for '||' write 'or'"),
        ("x == 1 AND y == 2", 7, "for 'AND' write 'and'"),
        ("!(x == 1)", 0, "for '!' write 'not'"),
        ("x <> 1", 2, "for '<>' write '!='"),
        ("x !== 1", 2, "for '!==' write '!='"),
        ("x === 1", 2, "for '===' write '=='"),
        ("x => 1", 2, "for '=>' write '>='"),
        ("x =< 1", 2, "for '=<' write '<='"),
        ("x mod 8 == 0", 2, "for 'mod' write '%'"),
        ("x div 8 == 0", 2, "for 'div' write '//'"),
        ("x > 1 ? y : 1", 6, "for '?' write 'x if c else y'"),
        ("x <= 48KB", 5, "for '48KB' write '48 * 1024'"),
        ("x <= 48 KiB", 5, "for '48 KiB' write '48 * 1024'"),
        ("x <= 48k", 5, "for '48k' write '48 * 1024'"),
        ("x <= 2MB", 5, "for '2MB' write '2 * 1024 ** 2'"),
        ("x <= 1G", 5, "for '1G' write '1 * 1024 ** 3'"),
        ("x <= 16 bytes", 5, "for '16 bytes' write '16'"),
        ("  x = 8", 4, "for '=' write '=='"),
        ("mode == 'a = b' and x = 1", 22, "for '=' write '=='"),
        ("max(x", 3, "quote a text that holds commas"),
        ("16) == y", 2, "quote a text that holds commas"),
        ("x & 1", 0, "write `and`"),
        ("x | 1", 0, "write `or`"),
        ("x ^ 2 == 4", 0, "write `**`"),
        ("~x", 0, "write `not`"),
        ("x is 1", 0, "write `==`"),
        ("x is not 1", 0, "write `!=`"),
        ("x << 2 == 4", 0, "write `* 2 **`"),
        ("sqrt(x) > 1", 0, "unknown function 'sqrt': write x ** 0.5"),
        ("ceil(x / 2) > 1", 0, "write ceil_div(x, y)"),
        ("x == 1, y == 2", 0, "a comma ends it; join conditions by `and`"),
        ("dtype == float16", 9, "did you mean 'fp16'?"),
        ("dtype == half", 9, "did you mean 'fp16'?"),
        ("dtype == FP32", 9, "did you mean 'f32'?"),
        ("dtype == 'bfloat16'", 9, "'bfloat16' is not among its values (did you mean 'bf16'?)"),
        ("dtype in [float8_e5m2]", 10, "did you mean 'e5m2'?"),
        ("mode == Split", 8, "did you mean 'split'?"),
    ],
)
def test_what_is_written_elsewhere_is_told_as_it_is_written_here(text, offset, hint) -> None:
    scope = {"x": INT, "y": INT, "dtype": DTYPE, "mode": Kind("text", ("auto", "split"))}
    with pytest.raises(ExpressionError) as error:
        parse(text, scope, "bool")
    ((place, message), *_) = error.value.problems
    assert place == offset
    assert hint in message
