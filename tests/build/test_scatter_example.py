"""examples/torch_scatter: kernels taken out of files with host code beside them, as a pack."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch

import runtime
from codegen.core.ptxas_rows import read_csv
from codegen.sources import archives
from tests.emulated.kernels import Kernel
from tools import problem

from .pack_project import ROOT, PackProject

pytestmark = [pytest.mark.build, pytest.mark.xdist_group("scatter")]  # which is built once

EXAMPLE = ROOT / "examples/torch_scatter"
BESIDE_TORCH = """
import runtime, pytest, sys
runtime.load_pack(PACK)
sys.path.insert(0, EXAMPLE)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "graph and cpu or outside or gathered"
    " and cpu", EXAMPLE + "/tests"]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    root = tmp_path_factory.mktemp("scatter")
    shutil.copytree(EXAMPLE / "kernel_specs", root / "kernel_specs")
    made = PackProject(root, "scatter_pack")
    made.regenerate()
    specs = json.loads((root / "generated/manifest.json").read_text())["families"]
    (source,) = {
        (entry["archive"], entry["sha256"])
        for family in specs
        for target in family["targets"]
        for entry in target["build"]["include"]
        if "archive" in entry
    }
    try:
        archives.folder(*source)
    except archives.ArchiveError as error:
        pytest.skip(str(error))
    wanted = (
        "target == 'cpu' and dtype in ['f32', 'f64'] or "
        "family == 'torch_scatter_segment_csr' and target == 'sm80' and dtype == 'fp16' "
        "and reduce == 'max'"
    )
    made.build("-DCMAKE_CUDA_ARCHITECTURES=80", regenerate=("--where", wanted))
    return made


def test_upstreams_kernels_have_rows_under_the_keys_of_configurations(project) -> None:
    rows = read_csv(project.pack / "ptxas.csv")
    key = "torch_scatter_segment_csr.sm80.fp16-max"
    assert {(row.key, row.kernel) for row in rows} == {
        (key, "segment_csr_sm80"),
        (key, "segment_csr_broadcast_sm80"),
    }
    assert not any(row.spilled for row in rows)


def test_the_functions_of_the_cpu_and_their_gradients(project) -> None:
    code = BESIDE_TORCH.replace("PACK", repr(str(project.pack)), 1)
    code = code.replace("EXAMPLE", repr(str(EXAMPLE)))
    done = project.run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stdout


def test_a_kernel_for_gpus_in_the_emulator(project) -> None:
    runtime.load_pack(project.pack)
    key = "torch_scatter_segment_csr.sm80.fp16-max"
    kernel = Kernel(key, project=project.root)
    for case in problem.cases_of(kernel.info):
        for difference in problem.of_case(kernel.info, case, torch.device("cpu")).check(kernel):
            assert difference.passed, difference


def test_nothing_of_upstream_is_in_the_pack(project) -> None:
    shipped = {path.name for path in project.pack.rglob("*") if path.is_file()}
    assert {"sm80_launch.cuh", "cpu_rows.h"} <= shipped
    assert not shipped & {"atomics.cuh", "scatter_csr.cuh", "reducer.h", "scatter_reducer.h"}
