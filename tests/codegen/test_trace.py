"""`trace:` in a family's spec: what it may say, and the record that is made of it in C++."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = """\
  traced: {type: bool, default: false}
  lines: {type: int, token: l}
  wide: {type: int, token: wide}
"""
TRACE = """\
trace:
  parameter: traced
  grid: [M, "ceil_div(N, lines)"]
  record:
    before: {shape: [lines, wide], doc: what came in}
    sum: {shape: [lines]}
    after: {shape: [lines, 2 * wide, 3 if causal else 1]}
"""
SET = "{dtype: f32, causal: true, lines: 4, wide: 5, tile: 1, traced: %s}"


@pytest.fixture
def traced(workspace):
    """The demo family on the CPU, with a trace: one kernel that is traced, and one that is not."""
    (workspace.demo / "sm80.yaml").unlink()
    workspace.edit(
        "family.yaml", "  causal: {type: bool}\n", f"  causal: {{type: bool}}\n{PARAMETERS}"
    )
    workspace.edit("family.yaml", "requires:", f"{TRACE}requires:")
    workspace.edit("cpu.yaml", "{tile: 64}", f"{SET % 'true'}\n    - {SET % 'false'}")
    return workspace


PROBE = """
#include <cstddef>
#include <cstdio>
#include "demo/args.h"
#include "demo/trace.h"

struct Config {
  static constexpr bool causal = true, traced = true;
  static constexpr int lines = 4, wide = 5;
};
struct Plain : Config {
  static constexpr bool traced = false;
};
using namespace kernelmint::demo;
using Record = TraceRecord<Config>;

static_assert(Traced<Config> && !Traced<Plain>);
static_assert(sizeof(Record::after) == 4 * 4 * 10 * 3);
static_assert(std::is_same_v<decltype(TracedArgs<Args>::trace), kernelmint::TensorView<2>>);

int main() {
  std::printf("[%zu, %zu, %zu, %zu]", offsetof(Record, before), offsetof(Record, sum),
              offsetof(Record, after), sizeof(Record));
}
"""


def test_the_record_lies_in_memory_as_the_spec_lists_it(traced) -> None:
    """The compiler says where each tensor is: behind the one before, in f32."""
    assert traced.run("regenerate").status == 0
    (traced.root / "probe.cpp").write_text(PROBE)
    include = [f"-I{ROOT / 'runtime/include'}", f"-I{traced.out}"]
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", *include, "probe.cpp", "-o"]
    subprocess.run([*command, traced.root / "probe"], cwd=traced.root, check=True)
    said = subprocess.run([traced.root / "probe"], capture_output=True, text=True, check=True)
    before, total, after = 4 * 5, 4, 4 * 10 * 3
    sizes = [0, before, before + total, before + total + after]
    assert json.loads(said.stdout) == [4 * size for size in sizes]


def test_the_manifest_has_the_record(traced) -> None:
    assert traced.run("regenerate").status == 0
    (family,) = json.loads((traced.out / "manifest.json").read_text())["families"]
    trace = family["trace"]
    assert trace["parameter"] == "traced"
    assert trace["grid"] == ["M", "ceil_div(N, lines)"]
    assert [(t["name"], t["shape"]) for t in trace["record"]] == [
        ("before", ["lines", "wide"]),
        ("sum", ["lines"]),
        ("after", ["lines", "2 * wide", "3 if causal else 1"]),
    ]


def test_scalars_may_say_how_many_records_there_are(traced) -> None:
    traced.edit("family.yaml", "  alpha:", "  repeats: {scalar: i32}\n  alpha:")
    traced.edit("family.yaml", "grid: [M, ", "grid: [repeats, M, ")
    result = traced.run("regenerate")
    assert result.status == 0, result.output
    table = (traced.out / "demo/family.cpp").read_text().partition("kTrace = {")[2]
    assert "return (scope.scalars[0].integer);" in table.partition('.text = "repeats"')[0]


def test_only_a_traced_configuration_is_given_the_trace(traced) -> None:
    """The arguments of the others are what they are without `trace:`."""
    assert traced.run("regenerate").status == 0
    types = {}
    for path in traced.out.glob("demo/cpu*.cpp"):
        text = path.read_text()
        for piece in text.split("struct ")[1:]:
            if "using Args = " in piece:
                name, _, rest = piece.partition(" {")
                types[name] = rest.partition("using Args = kernelmint::")[2].partition(";")[0]
    assert types == {
        "f32_causal_traced_l4_wide5_t1": "demo::TracedArgs<kernelmint::demo::Args>",
        "f32_causal_l4_wide5_t1": "demo::Args",
    }
    assert "trace" not in (traced.out / "demo/args.h").read_text()


def test_a_family_without_trace_has_none_of_it(workspace) -> None:
    assert workspace.run("regenerate").status == 0
    assert not (workspace.out / "demo/trace.h").exists()
    assert "def trace(" not in (workspace.out / "python/demo.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("parameter: traced", "parameter: trace", "family:15:14", "no parameter 'trace'"),
        ("parameter: traced", "parameter: causal", "family:15:14", "a bool whose default is false"),
        ("parameter: traced", "parameter: lines", "family:15:14", "a bool whose default is false"),
        ("grid: [M, ", "grid: [K, ", "family:16:10", "unknown name 'K'"),
        ("shape: [lines]", "shape: [M]", "family:19:19", "unknown name 'M'"),
        ("shape: [lines]", "shape: []", "family:19:18", "must not be empty"),
        ("sum:", "lines:", "family:19:5", "'lines' is also a parameter's name"),
        ("sum:", "double:", "family:19:5", "'double' is a C++ keyword"),
        ("sum:", "TraceRecord:", "family:19:5", "is reserved in generated code"),
        ("[lines]}", "[lines], dtype: bf16}", "family:19:27", "unknown key 'dtype'"),
        ("grid: [M, ", "grid: [1, 1, 1, 1, 1, 1, M, ", "family:16:9", "8 extents; at most 7"),
        ("shape: [lines]", "shape: [lines - 4]", "cpu:7:7", "at least one element"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_located(traced, old, new, place, message) -> None:
    traced.edit("family.yaml", old, new)
    result = traced.run("regenerate")
    assert result.status == 2
    (line,) = [line for line in result.output.splitlines() if message in line]
    file, _, where = place.partition(":")
    assert line.startswith(f"kernel_specs/demo/{file}.yaml:{where}: ")


def test_no_argument_is_called_trace(traced) -> None:
    traced.edit("family.yaml", "  rows: {output", "  trace: {output")
    result = traced.run("regenerate")
    assert "no argument and no symbol may be 'trace'" in result.output
