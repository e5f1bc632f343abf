"""The expression language: what it refuses, and that Python and C++ agree on what it accepts."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from codegen.emit.cpp import Value, literal, translate
from codegen.spec.expressions import (
    BOOL,
    DTYPE,
    DTYPES,
    EVALUATION_ERRORS,
    FLOAT,
    INT,
    ExpressionError,
    Kind,
    parse,
)

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

ints = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 1000).map(str),
        st.tuples(ints, st.sampled_from("+-*"), ints).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(ints, st.sampled_from(["//", "%"]), ints).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(ints, ints).map(lambda t: f"ceil_div({t[0]}, {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), ints, ints, ints).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]}, {t[3]})"
        ),
        ints.map(lambda t: f"(-{t})"),
        ints.map(lambda t: f"log2({t})"),
        st.tuples(ints, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})"),
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
            ints, st.sampled_from(["in", "not in"]), st.lists(st.integers(0, 9), max_size=3)
        ).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.sampled_from(
            ["dtype == 'bf16'", "dtype != f32", "dtype in [bf16, fp16]", "mode == auto",
             "'fixed' == mode", "mode not in ['auto']", "dtype == dtype"]
        ).map(lambda t: f"({t})"),
    )
)  # fmt: skip
floats = st.deferred(
    lambda: st.one_of(
        st.floats(-1e3, 1e3).map(repr).map(lambda t: f"({t})"),
        st.tuples(ints, ints).map(lambda t: f"({t[0]} / {t[1]})"),
        st.tuples(floats, st.sampled_from("+-*/"), numbers).map(lambda t: f"({' '.join(t)})"),
        st.tuples(numbers, floats).map(lambda t: f"(max({t[0]}, 1) ** {t[1]})"),
        st.tuples(ints, st.integers(1, 3)).map(lambda t: f"({t[0]} ** -{t[1]})"),
        st.tuples(numbers, floats).map(lambda t: f"min({t[0]}, {t[1]})"),
    )
)
numbers = st.one_of(ints, floats)

values = st.fixed_dictionaries(
    {
        "a": st.integers(-50, 50),
        "b": st.integers(0, 4096),
        "c": st.integers(1, 8),
        "p": st.booleans(),
        "q": st.booleans(),
        "dtype": st.sampled_from(DTYPES),
        "mode": st.sampled_from(MODE.values),
    }
)


def fits(value: float) -> bool:
    """Whether Python's unbounded value is one that 64 bits hold, on the way there too."""
    return math.isfinite(value) and abs(value) < 2**53


class Python:
    """The value of every part of an expression; None where one has none or is too large."""

    @staticmethod
    def value(text: str, scope: dict) -> float | None:
        expression = parse(text, SCOPE)
        try:
            value = expression.evaluate(scope)
        except EVALUATION_ERRORS:
            return None
        return value if fits(value) else None


def refusal(text: str) -> str | None:
    try:
        parse(text, SCOPE)
    except ExpressionError as error:
        return str(error)
    return None


def every_part_fits(text: str, scope: dict) -> bool:
    """C++ evaluates in 64 bits what Python evaluates without bound."""
    depth, starts = 0, []
    for end, character in enumerate(text):
        if character == "(":
            starts.append(end)
        elif character == ")":
            start = starts.pop()
            while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
                start -= 1
            if Python.value(text[start : end + 1], scope) is None:
                return False
    return depth == 0 and Python.value(text, scope) is not None


def test_python_and_cpp_agree(tmp_path) -> None:
    """Some hundreds of random expressions, compiled once as generated code would have them."""
    cases: list[tuple[str, dict, float]] = []

    @settings(max_examples=400, deadline=None, database=None, derandomize=False)
    @given(st.one_of(ints, bools, floats), values)
    def collect(text: str, scope: dict) -> None:
        if why := refusal(text):  # a constant part without a value: refused when loaded
            assert "has no value" in why or "exceeds" in why, text
        elif len(text) < 600 and every_part_fits(text, scope):
            cases.append((text, scope, parse(text, SCOPE).evaluate(scope)))

    collect()
    assert len(cases) > 150
    lines = []
    for i, (text, scope, _) in enumerate(cases):
        arguments = ", ".join(
            str(scope[n] if n not in ("dtype", "mode") else SCOPE[n].values.index(scope[n]))
            if not isinstance(scope[n], bool)
            else str(int(scope[n]))
            for n in SCOPE
        )
        expression = parse(text, SCOPE)
        kind = "double" if expression.kind == FLOAT else "std::int64_t"
        form = "%.17g" if kind == "double" else "%ld"
        lines.append(
            f"static {kind} f{i}({', '.join(f'std::int64_t {n}' for n in SCOPE)}) "
            f"{{ return {translate(expression, CppNames())}; }}"
        )
        lines.append(f'static void g{i}() {{ std::printf("{form}\\n", f{i}({arguments})); }}')
    source = "\n".join(
        ["#include <algorithm>", "#include <cmath>", "#include <cstdio>",
         '#include "arithmetic.h"', "namespace kernelmint {", *lines, "}",
         "int main() {", *(f"  kernelmint::g{i}();" for i in range(len(cases))), "}"]
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
        # std::pow and Python's ** may differ in the last bits.
        assert math.isclose(float(actual), expected, rel_tol=1e-12, abs_tol=1e-300), (text, scope)


@pytest.mark.parametrize(
    "text",
    [
        "a.b", "a[0]", "a()", "min", "min(a)", "min(*[a, b])", "min(a, key=b)", "print(a)",
        "lambda: a", "[x for x in [a]]", "{1: 2}", "{1}", "f'{a}'", "b''", "1j", "None", "...",
        "a is b", "a << 1", "a & b", "a | b", "a ^ b", "~a", "a @ b", "(a := 1)", "await a",
        "a if b else c", "a and b", "not a", "1 +", "", " ", "a b", "import os", "a; b", "a = 1",
        "[a]", "a == [1]", "a in b", "dtype < 'f32'", "'bf16' == 'bf16'", "dtype + 1", "dtype",
        "mode == dtype", "a ** b", "1 / 0", "9 ** 99", "2 ** 64", "99999999999999999999", "1e999",
        "a // 1.5", "log2(0)", "ceil_div(1, 0)", "(-8) ** 0.5", "\0", "a\\", "é", "__import__",
        "0 in [a, 'x']", "min(a, dtype)",
    ],
)  # fmt: skip
def test_refused(text) -> None:
    with pytest.raises(ExpressionError):
        parse(text, SCOPE, "number")


@settings(max_examples=300, deadline=None)
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
