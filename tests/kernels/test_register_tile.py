"""RegisterTile: the positions it names are those that the tensor cores use."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


def compile_probe(folder: Path) -> Path:
    program = folder / "probe"
    options = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Werror=all-warnings"]
    architecture = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
    source = ROOT / "tests/kernels/register_tile_probe.cu"
    subprocess.run(
        ["nvcc", *options, architecture, f"-I{ROOT / 'runtime/include'}", source, "-o", program],
        check=True,
    )
    return program


def test_the_lanes_make_up_the_tile(tmp_path: Path) -> None:
    """Every element is one lane's: a static_assert of the probe."""
    assert compile_probe(tmp_path).is_file()


@pytest.mark.gpu
def test_positions_are_those_of_the_tensor_cores(tmp_path: Path) -> None:
    """Of the results of mma.sync, and of what it takes as a left operand."""
    done = subprocess.run(
        [compile_probe(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
