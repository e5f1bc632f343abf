"""Accepted specs as C++: one program prints what a batch of them says, Python says the same."""

from __future__ import annotations

import ast
import itertools
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codegen.core.dtypes import DTYPES
from codegen.core.expressions import BOOL, EVALUATION_ERRORS, Expression
from codegen.core.home import INCLUDE
from codegen.space.expand import FamilySpace
from codegen.spec.model import Configuration, ParameterType, Target

SYMBOLS = {"N": 24, "M": 5}
# What requirements and outputs see of a call beside them: the scalar `c`, and the device.
C, SM_COUNT = 11, 48

PRINTING = r"""
#pragma once
#include <cstdio>
#include <type_traits>
#include "launch.h"
namespace kernelmint {
template <class Args> struct Members;
template <class Config, class Isa>
LaunchResult launch(const void*, const LaunchContext&) {
  Members<typename Config::Args>::template print<Config>();
  return {};
}
inline void print(const char* name, bool value) { std::printf("%s %d\n", name, value); }
inline void print(const char* name, int value) { std::printf("%s %d\n", name, value); }
inline void print(const char* name, long value) { std::printf("%s %ld\n", name, value); }
inline void print(const char* name, double value) { std::printf("%s %.17g\n", name, value); }
}
"""
MAIN = r"""
#include <cmath>
#include <cstdio>
#include "registry.h"
using namespace kernelmint;
DECLARATIONS
void show(const char* name, std::int64_t value) {
  std::printf("%s %lld\n", name, static_cast<long long>(value));
}
void show(const char* name, double value) {
  if (std::isfinite(value))
    std::printf("%s %.17g\n", name, value);
  else  // the runtime refuses it
    std::printf("%s refused\n", name);
}
template <class Expression>
void number(const char* name, Expression expression, const Scope& scope) {
  const auto found = expression(scope);
  if (found.error == nullptr)
    show(name, found.value);
  else
    std::printf("%s refused\n", name);
}
int main() {
  const std::int64_t symbols[] = {SYMBOLS};
  const ScalarValue scalars[] = {{}, {.integer = SCALAR}};
  const DeviceFacts facts = {.sm_count = SM_COUNT};
  const FamilyEntry* families[] = {FAMILIES};
  for (const FamilyEntry* family : families) {
    const TargetEntry& target = *family->targets[0];
    for (std::size_t k = 0; k < target.num_kernels; ++k) {
      const KernelEntry& kernel = target.kernels[k];
      const Scope scope = {symbols, kernel.parameters, scalars, &facts};
      std::printf("key %s\n", kernel.key);
      kernel.baseline(nullptr, {});
      if (const Dim& d = family->tensors[1].dims[0]; d.symbol < 0) number("dim", d.value, scope);
      number("s", family->scalars[0].default_floating, scope);
      number("c", family->scalars[1].default_integer, scope);
      number("family", family->requirements[0].holds, scope);
      number("target", target.requirements[0].holds, scope);
    }
  }
}
"""


def header(target: Target) -> str:
    """cpu.h: prints each parameter and derived value of a configuration."""
    lines = []
    for parameter in target.parameters:
        value = f"Config::{parameter.name}"
        if parameter.type is ParameterType.DTYPE:
            value = " : ".join(
                f"std::is_same_v<typename {value}, {dtype}> ? {i}" for i, dtype in enumerate(DTYPES)
                if dtype != "bool"
            ) + " : -1"  # fmt: skip
        elif parameter.type is ParameterType.ENUM:
            value = f"static_cast<int>({value})"
        lines.append(f'    print("{parameter.name}", {value});')
    lines += [f'    print("{d.name}", Config::{d.name});' for d in target.derived]
    return "\n".join(
        [
            "#pragma once",
            '#include "printing.h"',
            f'#include "{target.family}/args.h"',
            "namespace kernelmint {",
            f"template <> struct Members<{target.family}::Args> {{",
            "  template <class Config> static void print() {",
            "    using kernelmint::print;",
            *lines,
            "  }",
            "};",
            "}",
            "",
        ]
    )


def run(folder: Path, spaces: Sequence[FamilySpace]) -> str:
    """What the program over generated/ in this folder prints. Raises CalledProcessError."""
    out = folder / "generated"
    (folder / "printing.h").write_text(PRINTING)
    for space in spaces:
        target = space.targets[0].target
        path = folder / "specs" / space.family.name / "cpu.h"
        path.write_text(header(target))
    sources = {
        "shards": sorted(out.glob("*/cpu_[0-9]*.cpp")),
        "families": sorted(out.glob("*/family.cpp")),
        "tables": sorted(out.glob("*/cpu_table.cpp")),
    }
    for name, paths in sources.items():
        (folder / f"{name}.cpp").write_text("".join(f'#include "{path}"\n' for path in paths))
    names = [f"kernelmint::{space.family.name}" for space in spaces]
    filled = {
        "SYMBOLS": ", ".join(map(str, SYMBOLS.values())),
        "SCALAR": str(C),
        "SM_COUNT": str(SM_COUNT),
        "DECLARATIONS": "\n".join(
            f"namespace {name} {{ extern const FamilyEntry kFamily; }}" for name in names
        ),
        "FAMILIES": ", ".join(f"&{name}::kFamily" for name in names),
    }
    text = MAIN
    for word, replacement in filled.items():
        text = text.replace(word, replacement)
    (folder / "main.cpp").write_text(text)
    subprocess.run(
        [
            *("c++", "-std=c++20", "-O0", "-w", "-I", INCLUDE, "-I", folder),
            *("-I", folder / "specs", "-I", out, "-DKERNELMINT_ISA=baseline"),
            *("-DKERNELMINT_ISA_baseline", "-DKERNELMINT_TARGET_cpu", "-o", folder / "program"),
            *(folder / f"{name}.cpp" for name in (*sources, "main")),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    done = subprocess.run([folder / "program"], check=True, capture_output=True, text=True)
    return done.stdout


@dataclass(frozen=True)
class _Called:
    """What Python says of a value of a call; a call may refuse it if `may_be_refused`."""

    value: Any  # _REFUSED: none
    may_be_refused: bool


_REFUSED = "refused"  # as the program says it


def differences(printed: str, spaces: Sequence[FamilySpace]) -> Iterator[str]:
    """Where C++ and Python disagree."""
    actual = iter(printed.splitlines())
    for space in spaces:
        (chosen,) = space.targets
        for configuration in chosen.configurations:
            for name, expected in _values(space, chosen.target, configuration):
                line = next(actual, "nothing more")
                if not _agrees(line.removeprefix(f"{name} "), expected):
                    yield f"{configuration.key}: {name}: C++ has {line!r}, Python {expected!r}"
    yield from itertools.islice(actual, 1)


def _agrees(printed: str, expected: Any) -> bool:
    if not isinstance(expected, _Called):
        return _same(printed, expected)
    if expected.value == _REFUSED or printed == _REFUSED:
        return printed == expected.value or (printed == _REFUSED and expected.may_be_refused)
    return _same(printed, expected.value)


def _same(printed: str, expected: Any) -> bool:
    if isinstance(expected, str) or printed == str(expected):
        return printed == expected or printed == str(expected)
    try:
        # std::pow and Python's ** may differ in the last bit.
        return math.isclose(float(printed), expected, rel_tol=4e-16 * isinstance(expected, float))
    except ValueError:
        return False


def _values(
    space: FamilySpace, target: Target, configuration: Configuration
) -> Iterator[tuple[str, Any]]:
    """What the program prints for a configuration: (name, Python's value)."""
    yield "key", configuration.key
    scope: dict[str, Any] = {**SYMBOLS, "c": C, "sm_count": SM_COUNT}
    for parameter in target.parameters:
        value = scope[parameter.name] = configuration.parameters[parameter.name]
        if parameter.type is ParameterType.DTYPE:
            yield parameter.name, DTYPES.index(str(value))
        elif parameter.type is ParameterType.ENUM:
            yield parameter.name, (parameter.values or ()).index(value)
        else:
            yield parameter.name, int(value)
    for name, number in configuration.derived.items():
        scope[name] = number
        yield name, int(number) if isinstance(number, bool) else number
    family = space.family
    dim = family.tensors[1].dims[0]
    if dim.symbol is None:
        yield "dim", _called(dim.expression, scope)
    for scalar in family.scalars:
        assert scalar.default is not None
        called = _called(scalar.default, scope)
        if scalar.dtype == "f64" and called.value != _REFUSED:
            called = replace(called, value=float(called.value))
        yield scalar.name, called
    yield "family", _called(family.requires[0].that, scope)
    rule = _called(target.requires[0].that, scope)
    inlined = any(_called(d.expression, scope).may_be_refused for d in target.derived)
    yield "target", replace(rule, may_be_refused=rule.may_be_refused or inlined)


def _called(expression: Expression, scope: Mapping[str, Any]) -> _Called:
    """Its value in Python, whose integers have no bound; a call's have 64 bits, on the way too."""
    try:
        value = expression.evaluate(scope)
    except EVALUATION_ERRORS:
        value = _REFUSED
    return _Called(int(value) if isinstance(value, bool) else value, _has_large(expression, scope))


def _has_large(expression: Expression, scope: Mapping[str, Any]) -> bool:
    """Whether a part of it is an integer that a float does not hold, or has no value."""
    functions = {id(n.func) for n in ast.walk(expression.tree) if isinstance(n, ast.Call)}
    for node in ast.walk(expression.tree):
        if isinstance(node, ast.expr) and id(node) not in functions and not _is_list(node):
            try:
                part = Expression("", node, BOOL).evaluate(scope)
            except EVALUATION_ERRORS:
                continue  # of a branch that is not taken, or the whole has none
            if isinstance(part, int) and abs(part) > 2**53:
                return True
    return False


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple)
