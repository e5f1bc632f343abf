"""Names of CUDA architectures from the spec to the compiler's log, by a real build."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from codegen.core.ptxas_rows import read_csv
from codegen.ptxas.fingerprints import Manifest
from tools.ptx_report.occupancy import capability

from .pack_project import PackProject

FAMILY = """\
family: doubled
summary: y = 2 * x.
arguments:
  x: {tensor: [N], dtype: f32, doc: what is doubled}
  y: {output: [N], dtype: f32, doc: the double}
"""
TARGET = """\
target: sm100f
kernel: sm100f.cuh:doubled
launch: {grid: ["ceil_div(N, 128)"], block: 128}
sets: {default: [{}]}
"""
KERNEL = """\
#pragma once
#include "doubled/args.h"
namespace kernelmint::doubled {
template <class Config>
__global__ void doubled(const typename Config::Args args) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#error compiled for no family of architectures
#endif
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.N) *args.y.template at<float>(i) = 2 * *args.x.template at<const float>(i);
}
}  // namespace kernelmint::doubled
"""


@pytest.mark.build
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_a_family_of_architectures_is_spelt_in_specs_and_builds(tmp_path: Path) -> None:
    """sm100f is compiled for each architecture of 10.x that is asked for, and for no other."""
    project = PackProject(tmp_path)
    for name, text in (("family.yaml", FAMILY), ("sm100f.yaml", TARGET), ("sm100f.cuh", KERNEL)):
        path = tmp_path / "kernel_specs/doubled" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project.build("-DCMAKE_CUDA_ARCHITECTURES=90;100f;103-real;120a")
    commands = project.ninja("-t", "commands").stdout
    assert set(re.findall(r"code=\[([^]]*)\]", commands)) == {"sm_100f", "sm_103f"}
    built = json.loads((project.pack / "pack.json").read_text())["architectures"]
    assert built == ["90", "100f", "103", "120a"]
    rows = read_csv(project.pack / "ptxas.csv")
    assert [(row.key, row.arch) for row in rows] == [
        ("doubled.sm100f.default", "sm_100f"), ("doubled.sm100f.default", "sm_103f")
    ]  # fmt: skip
    assert [capability(row.arch) for row in rows] == [100, 103]
    manifest = Manifest(project.root / "generated/manifest.json")
    assert manifest.absent(rows, built) == []
    assert manifest.absent(rows[:1], built) == [("doubled.sm100f.default", "sm_103f")]
    done = project.configure("-DCMAKE_CUDA_ARCHITECTURES=100f;gfx103")
    assert done.returncode != 0
    assert "CUDA architecture 'gfx103': expected names such as" in " ".join(done.stdout.split())
