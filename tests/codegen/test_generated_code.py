"""The generated C++ compiles without a warning and says what the spec says; so does the Python."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

# Everything a spec can say that is easily got wrong in C++.
FAMILY = r"""
family: odd
summary: "Quotes \" and a backslash \\ and */ and ${nothing} \\"
arguments:
  x:     {tensor: [B, N, 4, W], dtype: bool, doc: "ends in a backslash \\"}
  idx:   {tensor: ["ceil_div(N, 3)", "N if flag else -(-N // 2)"], dtype: i64}
  point: {tensor: [], dtype: f64}
  y:     {output: ["max(N, 2 * W, 1)", "2 ** 3 + B % 4"], dtype: acc}
  z:     {output: [B], dtype: f32, optional: true}
  w:     {output: ["min(count, 9) + fold", B], dtype: f32, optional: true}
  scale: {scalar: f64, default: "(N + 0.5) / W ** 2"}
  must:  {scalar: f32}
  count: {scalar: i64, default: N - 7 // 2}
  exact: {scalar: bool, default: N == 8 or flag}
parameters:
  acc:  {type: dtype, values: [f32, f64]}
  flag: {type: bool}
derived:
  fold: 3 if flag else 2
requires:
  - {that: "N % 2 == 0 and W in [1, 2, 4]", because: "\"pairs\" of N"}
  - {that: acc != f64 or flag, because: that is so}
  - {that: N > W, because: a > ends no list of template arguments}
  - {that: scale > 0 and count * fold < sm_count or not exact, because: each has a unit}
"""
CPU = r"""
target: cpu
kernel: cpu.h
parameters:
  mode: {type: enum, values: [auto, default, fixed]}
  shift: {type: int}
derived:
  bytes: 8 * shift
  ratio: shift / 3
  large: 2 ** 40 + shift
  even: shift % 2 == 0
  positive: shift > 0
workspace:
  tmp:  {shape: ["N * (4 if acc == f32 else 2)", count + 1], dtype: u8, doc: "over a scalar \\"}
  rows: {shape: [bytes * N, B], dtype: acc, when: exact and positive}
  slots: {shape: [sm_count, fold], dtype: f32, fill: 0}
requires:
  - {that: bytes * N < large and (mode != auto or even), because: derived values are inlined}
sets:
  default:
    - {mode: auto, shift: -3}
    - {mode: default, shift: 4}
"""
# A family with no parameter at all.
BARE_FAMILY = """
family: bare
summary: Nothing to choose.
arguments:
  x: {tensor: [N], dtype: f32}
  y: {output: [N], dtype: f32}
"""
BARE_CPU = """
target: cpu
kernel: cpu.h
sets:
  default: [{}]
"""
HEADER = """
#include <type_traits>
#include "cpu_scratch.h"
#include "launch.h"
namespace kernelmint::odd {
using cpu::Scratch;  // kernelmint::cpu's, also beside the namespace odd::cpu of a workspace
}
namespace kernelmint {
template <class Config, class Isa>
LaunchResult launch(const void*, const LaunchContext&) {
  using Args = typename Config::Args;
  if constexpr (requires(Args args) { args.workspace; }) {
    static_assert(std::is_same_v<decltype(Args{}.workspace.tmp), u8*>);
    static_assert(std::is_same_v<decltype(Args{}.workspace.rows), void*>);
  }
  return {Config::key};
}
}
"""
SM80 = """
target: sm80
kernel: sm80.cuh:odd_sm80
parameters:
  mode: {type: enum, values: [auto, wide]}
  rows: {type: int}
derived:
  lanes: 32 * rows
workspace:
  part: {shape: [N, lanes], dtype: f32}
launch:
  grid: ["ceil_div(N, rows) * (2 if mode == auto else 1)", count, "sm_count if exact else W"]
  block: [lanes, 1 if acc == f32 else fold]
  shared_memory: "min(4 * rows + (16 if flag else 0) + count, max_shared_memory)"
sets:
  default:
    - {mode: auto, rows: 1}
    - {acc: f64, flag: true, mode: wide, rows: 2}
"""
KERNEL = """
namespace kernelmint::odd {
template <class Config>
__global__ void odd_sm80(const typename Config::Args args) {
  if (Config::mode == Config::mode_type::auto_) *args.y.template as<typename Config::acc>() = 0;
  args.workspace.part[threadIdx.x] = 0;
}
}
"""


@pytest.fixture
def odd(workspace):
    shutil.rmtree(workspace.demo)
    for name, family, cpu in (("odd", FAMILY, CPU), ("bare", BARE_FAMILY, BARE_CPU)):
        folder = workspace.root / "kernel_specs" / name
        folder.mkdir()
        (folder / "family.yaml").write_text(family)
        (folder / "cpu.yaml").write_text(cpu)
        (folder / "cpu.h").write_text(HEADER)
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    return workspace


def compile_(workspace, source: Path | str, *options: str) -> None:
    done = subprocess.run(
        [
            *("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-O1"),
            *("-I", ROOT / "runtime/include", "-I", ROOT / "runtime/pack"),
            *("-I", "kernel_specs", "-I", "generated"),
            *("-DKERNELMINT_ISA=baseline", "-DKERNELMINT_ISA_baseline", "-DKERNELMINT_TARGET_cpu"),
            *(source, *options),
        ],
        cwd=workspace.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# What runtime/src does with the tables, in short: 0 and the reason if there is no value.
MAIN = r"""
#include <cstdio>
#include "registry.h"
using namespace kernelmint;
namespace kernelmint::bare { extern const FamilyEntry kFamily; }
namespace kernelmint::odd { extern const FamilyEntry kFamily; }
const std::int64_t symbols[] = {5, 8, 2};        // B, N, W
template <class Expression>
void print(Expression expression, const Scope& scope) {
  const auto found = expression(scope);
  if (found.error != nullptr)
    std::printf(" (%s)", found.error);
  else
    std::printf(" %.15g", static_cast<double>(found.value));
}
void print(const FamilyEntry& family) {
  const TargetEntry& target = *family.targets[0];
  std::printf("%s symbols %d targets %d kernels %zu asks %d\n", family.name, family.num_symbols,
              family.num_targets, target.num_kernels, family.asks_device + 2 * target.asks_device);
  for (std::size_t k = 0; k < target.num_kernels; ++k) {
    const KernelEntry& kernel = target.kernels[k];
    const ScalarValue scalars[] = {{.floating = 0.5}, {}, {.integer = 5}, {.integer = 1}};
    const DeviceFacts facts = {.sm_count = 12, .max_shared_memory = 0};
    const Scope scope = {symbols, kernel.parameters, scalars, &facts};
    std::printf("%s %d", kernel.key, kernel.baseline(nullptr, {}).error == nullptr);
    for (int t = 0; t < family.num_tensors; ++t)
      for (int d = 0; d < family.tensors[t].rank; ++d)
        if (const Dim& dim = family.tensors[t].dims[d]; dim.symbol < 0) print(dim.value, scope);
    for (int s = 0; s < family.num_scalars; ++s) {
      const ScalarArgument& scalar = family.scalars[s];
      if (scalar.default_floating) print(scalar.default_floating, scope);
      if (scalar.default_integer) print(scalar.default_integer, scope);
    }
    for (int w = 0; w < target.num_workspaces; ++w) {
      print(target.workspace[w].elements, scope);
      if (target.workspace[w].fill.is_set) std::printf(" filled");
    }
    for (int r = 0; r < family.num_requirements; ++r) print(family.requirements[r].holds, scope);
    for (int r = 0; r < target.num_requirements; ++r) print(target.requirements[r].holds, scope);
    std::printf("\n");
  }
}
int main() {
  print(bare::kFamily);
  print(odd::kFamily);
}
"""


def program(odd, text: str) -> list[str]:
    """What a program over the families' tables prints, by line."""
    (odd.root / "main.cpp").write_text(text)
    sources = sorted(odd.out.rglob("*.cpp"))
    parts = [str(path) for path in sources if path.name != "library.cpp"]  # one a library
    compile_(odd, "main.cpp", *parts, "-o", "main")
    done = subprocess.run([odd.root / "main"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_tables_hold_what_the_spec_says(odd) -> None:
    # idx: ceil_div(8, 3); 8 or -(-8 // 2); x: 4; y: max(8, 4, 1), 8 + 5 % 4. scale:
    # 8.5 / 4; count: 8 - 3; exact: true. tmp: 8 * (4 or 2) * (5 + 1); rows: 32 * 8 * 5 where shift
    # is positive; slots: 12 * fold. Requires: true; acc != f64 or flag; 8 > 2; 5 * fold < 12;
    # then, for shift = -3 (odd): mode != auto fails; for 4 and mode default: 32 * 8 < 2^40.
    expected = ["bare symbols 1 targets 1 kernels 1 asks 0", "bare.cpu.default 0"]
    rows = []
    for mode, shift, rest, holds in (("auto", "shiftm3", 0, 0), ("default", "shift4", 1280, 1)):
        for acc in ("f32", "f64"):
            for flag in (False, True):
                key = f"odd.cpu.{acc}{'-flag' if flag else ''}-{mode}-{shift}"
                idx, tmp = (8 if flag else 4), 48 * (4 if acc == "f32" else 2)
                valid = int(acc == "f32" or flag)
                fold, each = (3, 0) if flag else (2, 1)
                sizes = f"{tmp} {rest} {12 * fold} filled"
                required = f"1 {valid} 1 {each} {holds}"
                rows.append(f"{key} 0 4 3 {idx} 8 9 {5 + fold} 2.125 5 1 {sizes} {required}")
    assert program(odd, MAIN) == [*expected, "odd symbols 3 targets 1 kernels 8 asks 3", *rows]


THROWING = """
#include <stdexcept>
#include "launch.h"
namespace kernelmint {
template <class Config, class Isa>
LaunchResult launch(const void*, const LaunchContext&) { throw std::runtime_error("no such tile"); }
}
"""
CATCHING = r"""
#include <cstdio>
#include "registry.h"
using namespace kernelmint;
namespace kernelmint::odd { extern const FamilyEntry kFamily; }
int main() {
  const KernelEntry& kernel = odd::kFamily.targets[0]->kernels[0];
  const std::int64_t symbols[] = {5, 8, 0};  // B, N, W
  const Scope scope = {symbols, kernel.parameters, nullptr, nullptr};
  std::puts(odd::kFamily.scalars[2].default_integer(scope).error);
  std::puts(kernel.baseline(nullptr, {}).error);
}
"""


def test_no_exception_leaves_a_function_of_the_tables(odd) -> None:
    """A library and the runtime that loads it are built apart: neither may unwind the other."""
    folder = odd.root / "kernel_specs/odd"
    (folder / "cpu.h").write_text(THROWING)
    family = (folder / "family.yaml").read_text()
    (folder / "family.yaml").write_text(family.replace("default: N - 7 // 2", "default: N // W"))
    assert odd.run("regenerate").status == 0
    assert program(odd, CATCHING) == ["division by zero", "no such tile"]


def test_a_tree_other_than_the_configured_one_does_not_compile(odd) -> None:
    """CMake read files.cmake, then regenerate wrote: the lists of sources may differ."""
    define = '-DKERNELMINT_CONFIGURED_FINGERPRINT="{}"'
    families = json.loads((odd.out / "manifest.json").read_text())["families"]
    listed = (odd.out / "files.cmake").read_text()
    assert len({family["fingerprint"] for family in families}) == 2
    for family in families:
        name, fingerprint = family["name"], family["fingerprint"]
        assert f'set(KERNELMINT_FINGERPRINT_{name} "{fingerprint}")' in listed
        library = f"generated/{name}/library.cpp"
        compile_(odd, library, define.format(fingerprint), "-fsyntax-only")
        with pytest.raises(AssertionError, match="not the one that CMake configured: run cmake"):
            compile_(odd, library, define.format("0" * 32), "-fsyntax-only")


def test_a_familys_fingerprint_changes_with_its_own_files_alone(odd) -> None:
    def fingerprints() -> dict[str, str]:
        manifest = json.loads((odd.out / "manifest.json").read_text())
        return {family["name"]: family["fingerprint"] for family in manifest["families"]}

    before = fingerprints()
    spec = odd.root / "kernel_specs/bare/family.yaml"
    spec.write_text(spec.read_text().replace("Nothing to choose.", "Nothing is to be chosen."))
    assert odd.run("regenerate").status == 0
    after = fingerprints()
    assert after["odd"] == before["odd"]
    assert after["bare"] != before["bare"]


# Names that mean something else where generated C++ stands, were they written as they are.
HIDING_FAMILY = """
family: hiding
summary: '\"\"\"'
arguments:
  x: {tensor: [N], dtype: dtype, doc: 'a "" quote"'}
  y: {output: [N], dtype: dtype}
parameters:
  dtype: {type: dtype, values: [bf16, f32]}
  causal: {type: bool}
"""
HIDING_CPU = """
target: cpu
kernel: cpu.h
parameters:
  mode: {type: enum, values: [errno, auto]}
derived:
  count: true if causal else 0
  most: max(causal, false)
  half: 2 if causal else 0.5
  large: 2 ** 62 * (2 if causal else 1) - 1 + 2 ** 62 * (0 if causal else 1)
sets:
  default: [{mode: auto}, {mode: errno}]
"""
HIDING_HEADER = """
#include <type_traits>
#include "launch.h"
namespace kernelmint {
template <class Config, class Isa>
LaunchResult launch(const void*, const LaunchContext&) {
  using dtype = typename Config::dtype;
  static_assert(std::is_same_v<dtype, bf16> || std::is_same_v<dtype, f32>);
  static_assert(std::is_same_v<decltype(Config::count), const int>);
  static_assert(Config::count == (Config::causal ? 1 : 0) && Config::most == Config::count);
  static_assert(std::is_same_v<decltype(Config::half), const double>);
  static_assert(Config::half == (Config::causal ? 2 : 0.5));
  static_assert(Config::large == 9223372036854775807);
  return {Config::key};
}
}
"""


def test_a_name_means_what_the_spec_says_wherever_it_stands(workspace) -> None:
    """A configuration named bf16 does not hide the dtype, nor a value the macro errno."""
    shutil.rmtree(workspace.demo)
    folder = workspace.root / "kernel_specs/hiding"
    folder.mkdir()
    (folder / "family.yaml").write_text(HIDING_FAMILY)
    (folder / "cpu.yaml").write_text(HIDING_CPU)
    (folder / "cpu.h").write_text(HIDING_HEADER)
    assert workspace.run("regenerate").status == 0
    for source in workspace.out.rglob("*.cpp"):
        compile_(workspace, source, "-fsyntax-only")
    text = (workspace.out / "python/hiding.py").read_text()
    assert ast.get_docstring(ast.parse(text)).endswith("hiding: " + 3 * '"')
    # With a dtype alone, the key's tokens are those of the dtype.
    (folder / "family.yaml").write_text(HIDING_FAMILY.replace("  causal: {type: bool}\n", ""))
    (folder / "cpu.yaml").write_text("target: cpu\nkernel: cpu.h\nsets: {default: [{}]}\n")
    lines = HIDING_HEADER.splitlines(keepends=True)
    (folder / "cpu.h").write_text(
        "".join(line for line in lines if not re.search("count|half|large", line))
    )
    assert workspace.run("regenerate").status == 0
    for source in workspace.out.rglob("*.cpp"):
        compile_(workspace, source, "-fsyntax-only")


def test_every_file_compiles_without_a_warning(odd) -> None:
    for source in odd.out.rglob("*.cpp"):
        compile_(odd, source, "-fsyntax-only")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_a_generated_launch_compiles(odd) -> None:
    folder = odd.root / "kernel_specs/odd"
    (folder / "sm80.yaml").write_text(SM80)
    (folder / "sm80.cuh").write_text(KERNEL)
    assert odd.run("regenerate").status == 0
    shards = sorted((odd.out / "odd").glob("*.cu"))
    assert shards
    for shard in shards:
        done = subprocess.run(
            [
                *("nvcc", "-std=c++20", "-arch=sm_80", "--expt-relaxed-constexpr", "-c"),
                *("-I", ROOT / "runtime/include", "-I", "kernel_specs", "-I", "generated"),
                *(shard, "-o", "/dev/null"),
            ],
            cwd=odd.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def generated_module(odd, monkeypatch):
    """The family's Python module, over a base class that records its calls."""

    class Kernel:
        def _run(self, *arguments: object) -> object:
            return "run", arguments

        def _call(self, *arguments: object) -> object:
            return "traced", arguments

    package, base = types.ModuleType("runtime"), types.ModuleType("runtime.handle")
    base.Kernel, base.is_dynamo_compiling = Kernel, bool
    monkeypatch.setitem(sys.modules, "runtime", package)
    monkeypatch.setitem(sys.modules, "runtime.handle", base)
    spec = importlib.util.spec_from_file_location("odd", odd.out / "python/odd.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_python_class_has_the_specs_signature(generated_module, monkeypatch) -> None:
    parameters = inspect.signature(generated_module.KERNEL_CLASS.__call__).parameters
    assert list(parameters) == [
        "self", "x", "idx", "point", "scale", "must", "count", "exact", "return_z", "return_w",
        "out",
    ]  # fmt: skip
    keyword_only = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert keyword_only == list(parameters)[4:]
    required = [n for n in keyword_only if parameters[n].default is inspect.Parameter.empty]
    assert required == ["must"]
    arguments = ("x", "i", "p"), (None, 2.0, None, None), (False, True), "o"
    for is_traced, way in ((False, "run"), (True, "traced")):
        monkeypatch.setattr(generated_module, "is_dynamo_compiling", lambda it=is_traced: it)
        called = generated_module.KERNEL_CLASS()("x", "i", "p", must=2.0, return_w=True, out="o")
        assert called == (way, arguments)
    assert 'Quotes " and a backslash \\ and */ and ${nothing} \\' in generated_module.__doc__


def test_the_operators_schemas_are_torchs(odd) -> None:
    families = json.loads((odd.out / "manifest.json").read_text())["families"]
    (operators,) = (family["operators"] for family in families if family["name"] == "odd")
    schema, in_place = (torch._C.parse_schema("kernelmint::" + text) for text in operators)
    assert [a.name for a in schema.arguments] == [
        "key", "x", "idx", "point", "scale", "must", "count", "exact", "return_z", "return_w",
    ]  # fmt: skip
    assert len(schema.returns) == 3
    assert str(schema.arguments[4].type) == "Optional[float]"
    assert str(schema.arguments[5].type) == "float"
    assert in_place.name == "kernelmint::odd_out"
    written = [a.name for a in in_place.arguments if a.alias_info and a.alias_info.is_write]
    assert written == ["y", "z", "w"]
    assert [a.name for a in in_place.arguments if a.kwarg_only] == [
        *written, "scale", "must", "count", "exact",
    ]  # fmt: skip
    assert not in_place.returns


def test_the_generated_python_is_typed(workspace) -> None:
    """One optional output: the type of the result follows the flag."""
    workspace.run("regenerate")
    text = (workspace.out / "python/demo.py").read_text()
    assert "return_rows: Literal[False] = False" in text
    assert "return_rows: Literal[True]," in text
    assert "-> tuple[torch.Tensor, torch.Tensor]: ..." in text
    compile(text, "demo.py", "exec")
