"""Generated files are compiled together if their headers cost more than their kernels do."""

from __future__ import annotations

import shutil

import pytest

from codegen.build.units import in_units, number_of_units
from codegen.core.ptxas_rows import read_csv

from .pack_project import PackProject

FAMILY = """\
family: copied
summary: y = x.
arguments:
  x: {tensor: [N], dtype: f32}
  y: {output: [N], dtype: f32}
reference: reference.py:copied
"""
TARGET = """\
target: sm80
kernel: sm80.cuh:copied_sm80
parameters: {n: {type: int}}
launch: {grid: ["ceil_div(N, n)"], block: n}
sets: {default: [{product: {n: [NUMBERS]}}]}
"""
TEMPLATE = """\
#pragma once
#include "foreign.h"
namespace kernelmint::copied {
template <class Config>
__global__ void copied_sm80(const typename Config::Args args) {
  const std::int64_t at = std::int64_t{blockIdx.x} * Config::n + threadIdx.x;
  if (at < args.N) args.y.template at<float>()[at] = args.x.template at<const float>()[at];
}
}  // namespace kernelmint::copied
"""
CUDA = "-DCMAKE_CUDA_ARCHITECTURES=80"


def write(project: PackProject, kernels: int, macros: int) -> None:
    """A family of light kernels whose header is as heavy as `macros`."""
    folder = project.root / "kernel_specs/copied"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = ", ".join(str(32 * (i + 1)) for i in range(kernels))
    for name, text in {
        "family.yaml": FAMILY,
        "sm80.yaml": TARGET.replace("NUMBERS", numbers),
        "sm80.cuh": TEMPLATE,
        "foreign.h": "#include <cstdint>\n" + "".join(f"#define M{i} {i}\n" for i in range(macros)),
        "reference.py": "def copied(x):\n    return x.clone()\n",
    }.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    project.regenerate()


def compiled(project: PackProject, *ninja: str) -> list[str]:
    """What nvcc compiles: of all (-t commands), or now (-v)."""
    done = project.ninja(*ninja)
    assert done.returncode == 0, done.stdout
    words = [line.split() for line in done.stdout.splitlines() if "compile_logged.py" in line]
    return [w[w.index("-c") + 1].removeprefix(f"{project.root}/") for w in words]


@pytest.mark.build
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_light_kernels_behind_a_heavy_header_are_compiled_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "2")
    project = PackProject(tmp_path, "own")
    write(project, kernels=6, macros=600_000)
    printed = project.build(CUDA)
    assert "copied.sm80: headers take " in printed
    assert " so 6 files are compiled as 1 (`files: 1` in its spec" in printed
    unit = "build/packs/own/units/copied/sm80/0.cu"
    assert compiled(project, "-t", "commands") == [unit]
    rows = read_csv(project.pack / "ptxas.csv")
    assert len({row.key for row in rows}) == len(rows) == 6
    assert {row.key for row in rows if row.code} == {row.key for row in rows}

    # One kernel more is one compilation.
    write(project, kernels=7, macros=600_000)
    assert project.configure(CUDA).returncode == 0
    assert compiled(project, "-v") == [unit]

    # Files that are compiled all at once are compiled by themselves.
    monkeypatch.setenv("MAX_JOBS", "7")
    assert project.configure(CUDA).returncode == 0
    assert len(compiled(project, "-t", "commands")) == 7
    monkeypatch.setenv("MAX_JOBS", "2")

    # Once headers are light, each file is compiled by itself, and no log counts twice.
    write(project, kernels=7, macros=0)
    assert "compiled as" not in project.build(CUDA)
    assert len(compiled(project, "-t", "commands")) == 7
    assert len(read_csv(project.pack / "ptxas.csv")) == 7


@pytest.mark.parametrize(
    ("files", "headers", "file", "units"),
    [
        (23, 17.0, 18.0, 1),  # light kernels behind CuTe and CUB
        (23, 17.0, 34.0, 23),  # a file's kernels cost as much as the headers
        (23, 17.0, 22.0, 4),
        (16, 10.0, 9.5, 1),  # measuring has its noise
        (17, 2.0, 20.0, 17),
    ],
)
def test_a_unit_holds_kernels_that_cost_as_much_as_the_headers(files, headers, file, units) -> None:
    assert number_of_units(files, [headers, file]) == units


def test_a_file_that_is_split_stays_in_its_unit_and_no_other_changes() -> None:
    before = in_units(["f/sm80_00.cu", "f/sm80_1.cu", "f/sm80_02.cu", "f/sm80_14.cu"], 4)
    assert before == {
        0: ["f/sm80_00.cu"],
        1: ["f/sm80_1.cu"],
        2: ["f/sm80_02.cu", "f/sm80_14.cu"],
    }
    split = ["f/sm80_00.cu", "f/sm80_1.cu", "f/sm80_02.cu", "f/sm80_06.cu", "f/sm80_14.cu"]
    assert in_units(split, 4) == {**before, 2: split[2:]}
