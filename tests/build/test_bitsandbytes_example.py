"""examples/bitsandbytes: two codes a byte, results of a dtype that callers choose, and the CPU's
loops with intrinsics, taken out of upstream's files."""

from __future__ import annotations

import shutil
import sys

import pytest
import yaml

import runtime
from codegen.sources import archives

from .pack_project import ROOT, PackProject

EXAMPLE = ROOT / "examples/bitsandbytes"
OWN_TESTS = """
import runtime, pytest, sys
runtime.load_pack(PACK)
sys.path.insert(0, EXAMPLE)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", EXAMPLE + "/tests"]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    root = tmp_path_factory.mktemp("bitsandbytes")
    shutil.copytree(EXAMPLE / "kernel_specs", root / "kernel_specs")
    return PackProject(root, "bnb_pack")


def test_the_specs_count_codes_and_memory_bytes(project) -> None:
    printed = project.regenerate()
    assert "96 kernels" in printed
    args = (project.root / "generated/bnb_quantize_4bit/args.h").read_text()
    assert "codes;  // [ceil_div(N, 2)] u8, output, 2 elements in each" in args
    args = (project.root / "generated/bnb_dequantize_4bit/args.h").read_text()
    assert "codes;  // [P] u8, 2 elements in each" in args


@pytest.mark.build
def test_upstreams_loops_for_this_processor(project) -> None:
    """The functions of the package, by the CPU's kernels."""
    specs = yaml.safe_load((EXAMPLE / "kernel_specs/bitsandbytes/cpu.yaml").read_text())
    pin = specs["build"]["archives"]["upstream"]
    try:
        archives.folder(pin["url"], pin["sha256"])
    except archives.ArchiveError as error:
        pytest.skip(str(error))
    project.build("-DKERNELMINT_CUDA=OFF", regenerate=("--where", "target == 'cpu'"))
    code = OWN_TESTS.replace("PACK", repr(str(project.pack)))
    done = project.run(sys.executable, "-c", code.replace("EXAMPLE", repr(str(EXAMPLE))))
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    runtime.load_pack(project.pack)
    assert {info.target for info in runtime.kernels("bnb_dequantize_4bit")} == {"cpu"}
