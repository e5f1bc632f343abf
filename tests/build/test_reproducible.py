"""Two builds of one tree, in two folders and at two times: the same bytes, CUDA's included."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from codegen import scaffold

from .pack_project import PackProject
from .test_editable_packs import build

pytestmark = pytest.mark.build

# A source of nvcc's beside the generated ones, with what is internal to a file.
SOURCE = """\
namespace {
__device__ int times = 2;
__global__ void twice(int* x) { *x *= times; }
}  // namespace
void run(int* x) { twice<<<1, 1>>>(x); }
"""


def wheel(folder: Path) -> bytes:
    scaffold.create_project("own", folder)
    family = folder / "kernel_specs/own_scale_add"
    (family / "twice.cu").write_text(SOURCE)
    target = family / "sm80.yaml"
    target.write_text(f"{target.read_text()}build: {{sources: [twice.cu]}}\n")
    PackProject(folder).regenerate()
    (folder / "dist").mkdir()
    settings = {"cmake.define.CMAKE_CUDA_ARCHITECTURES": "80"}
    build(folder, "build_wheel", **settings, **{"cmake.define.KERNELMINT_ISAS": "native"})
    (made,) = folder.glob("dist/*.whl")
    return made.read_bytes()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_wheels_of_one_tree_in_two_folders_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first = wheel(tmp_path / "one")
    time.sleep(2)  # a zip file's times are of two seconds
    assert wheel(tmp_path / "another/and longer") == first
