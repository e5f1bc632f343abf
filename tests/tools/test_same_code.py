"""Machine code of a family's kernels beside that of a foreign file, as packs of foreign kernels
compare them (docs/moved.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codegen.core import home
from tools import same_code

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")

SPECS = Path(__file__).parents[1] / "families"
FLAGS = ("-O3", "-std=c++20", "--expt-relaxed-constexpr", "-DNDEBUG")


def test_kernels_are_the_same_code_if_they_are_compiled_alike(tmp_path) -> None:
    ours = same_code.of_family(SPECS, "laplacian", "80", tmp_path, "default")
    file = tmp_path / "laplacian.cu"  # what it was compiled as
    folders = (home.INCLUDE, SPECS, tmp_path / "generated")
    alike = same_code.of_file(file, "80", tmp_path, FLAGS, folders)
    other = same_code.of_file(file, "80", tmp_path, ("-Xptxas=-O1", *FLAGS), folders)
    kernels = ours.named("laplacian_sm80")
    assert kernels.total() == 2
    assert ours.seconds > 0
    assert alike.named("laplacian_sm80") == kernels != other.named("laplacian_sm80")
    assert not ours.named("another")


def test_what_does_not_compile_is_shown(tmp_path) -> None:
    file = tmp_path / "kernels.cu"
    file.write_text("__global__ void kernel() { missing(); }")
    with pytest.raises(SystemExit, match='identifier "missing" is undefined'):
        same_code.of_file(file, "80", tmp_path, FLAGS)
