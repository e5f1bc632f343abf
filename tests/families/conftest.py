"""The example families of this folder, built for real into one pack.

CPU kernels for this processor's instruction set; CUDA kernels if there is an nvcc, for the GPUs
that are present, else for 9.0a. The build is kept in build/families, so a second run takes
seconds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import runtime
from codegen.core.packs import Pack

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = Path(__file__).parent
PROJECT = f"""\
cmake_minimum_required(VERSION 3.26...4.4)
project(example_families LANGUAGES CXX)
set(Kernelmint_DIR "{ROOT}/kernelmint/cmake")
find_package(Kernelmint REQUIRED)
kernelmint_add_pack(example_families GENERATED generated DESTINATION _pack)
"""


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def _write(path: Path, text: str) -> None:
    """Leaves an unchanged file alone, so that nothing is built for it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


# On what the tests of a family with both targets run.
TARGETS = ["cpu", pytest.param("sm80", marks=pytest.mark.gpu)]


def kernel(family: str, target: str, **parameters: object) -> runtime.handle.Kernel:
    """The kernel of that family that has these parameters."""
    return runtime.kernel({"family": family, "target": target, **parameters})


def device(target: str) -> str:
    """Where a target's tensors are."""
    return "cpu" if target == "cpu" else "cuda"


@pytest.fixture(scope="session")
def families() -> Pack:
    """The pack, loaded into this process."""
    project = ROOT / "build/families"
    project.mkdir(parents=True, exist_ok=True)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake, ninja = (shutil.which(tool, path=places) or tool for tool in ("cmake", "ninja"))
    has_nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc")) is not None
    architectures = "native" if torch.cuda.is_available() else "90a"
    with (project / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be building it
        _write(project / "CMakeLists.txt", PROJECT)
        specs = ("--specs", FAMILIES, "--out", project / "generated")
        _run(sys.executable, "-m", "codegen", "regenerate", *specs)
        _run(
            *(cmake, "-S", project, "-B", project / "build", "-G", "Ninja"),
            *(f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DPython_EXECUTABLE={sys.executable}"),
            *("-DKERNELMINT_ISAS=native", f"-DKERNELMINT_CUDA={'ON' if has_nvcc else 'OFF'}"),
            f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
        )
        _run(cmake, "--build", project / "build")
        _run(cmake, "--install", project / "build", "--prefix", project / "installed")
    return runtime.load_pack(project / "installed/_pack")
