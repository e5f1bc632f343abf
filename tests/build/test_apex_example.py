"""examples/apex: lists of tensors, by functors and a struct taken out of upstream's files."""

from __future__ import annotations

import shutil

import pytest
import yaml

from codegen.core.ptxas_rows import read_csv
from codegen.sources import archives

from .pack_project import ROOT, PackProject

EXAMPLE = ROOT / "examples/apex"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    root = tmp_path_factory.mktemp("apex")
    shutil.copytree(EXAMPLE / "kernel_specs", root / "kernel_specs")
    return PackProject(root, "apex_pack")


def test_the_specs_have_upstreams_lists(project) -> None:
    assert "12 kernels" in project.regenerate()
    args = (project.root / "generated/apex_adam_master/args.h").read_text()
    assert "TensorList<1> p_master;  // L of [N] f32, changed" in args
    assert "float betas[2];" in args


@pytest.mark.build
def test_upstreams_functor_is_compiled_under_the_key(project) -> None:
    spec = yaml.safe_load((EXAMPLE / "kernel_specs/apex/sm80.yaml").read_text())
    pin = spec["build"]["archives"]["upstream"]
    try:
        archives.folder(pin["url"], pin["sha256"])
    except archives.ArchiveError as error:
        pytest.skip(str(error))
    chosen = "family == 'apex_adam' and dtype == 'f32'"
    project.build("-DCMAKE_CUDA_ARCHITECTURES=90", regenerate=("--where", chosen))
    rows = read_csv(project.pack / "ptxas.csv")
    assert {row.kernel_config for row in rows} == {"apex_adam.sm80.f32"}
    assert not any(row.spilled for row in rows)
