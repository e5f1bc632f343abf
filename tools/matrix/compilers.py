"""C++ compilers and nvcc: a wheel of the extension and of a new project's kernels is built by each,
and its CPU kernels are checked."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

from .results import Outcome
from .work import ROOT, UNOPTIMIZED, AbsentError, Work

_ARCHITECTURE = "90"


def check_gcc(version: str, work: Work) -> Outcome:
    """Checks a version of GCC as the compiler of host code, that of nvcc included."""
    return _check_host(f"g++-{version}", f"gcc-{version}", work)


def check_clang(version: str, work: Work) -> Outcome:
    """Checks a version of Clang as the compiler of host code, that of nvcc included."""
    return _check_host(f"clang++-{version}", f"clang-{version}", work)


def _check_host(name: str, c_name: str, work: Work) -> Outcome:
    program, c_program = shutil.which(name), shutil.which(c_name)
    if program is None or c_program is None:
        raise AbsentError(f"no {name} on PATH")
    version = work.run(program, "--version").splitlines()[0]
    wheel = _wheel(
        work,
        f"CMAKE_CXX_COMPILER={program}",
        f"CMAKE_CUDA_HOST_COMPILER={program}",
        f"CMAKE_CUDA_ARCHITECTURES={_ARCHITECTURE}",
    )
    nvcc = re.search(r"Kernelmint: nvcc (\S+)", work.log.read_text())
    assert nvcc, work.log
    right = _sanity_check(work, wheel)
    return Outcome("run", f"{version}; {right}; host code of nvcc {nvcc[1]} compiled")


def _wheel(work: Work, *settings: str) -> Path:
    """Builds a wheel whose pack has the kernels of a new project, by this environment's tools."""
    project, wheels = work.folder / "my_kernels", work.folder / "wheels"
    for folder in (project, wheels):
        shutil.rmtree(folder, ignore_errors=True)
    here = {"PYTHONPATH": str(ROOT)}
    work.run(
        sys.executable, "-m", "kernelmint", "init", project.name, cwd=work.folder, environment=here
    )
    work.run(sys.executable, "-m", "codegen", "regenerate", cwd=project, environment=here)
    shutil.rmtree(work.folder / "build", ignore_errors=True)  # CMake keeps a folder's compiler
    work.run(
        *(sys.executable, "-m", "pip", "wheel", ROOT, "--verbose", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", wheels, *UNOPTIMIZED),
        *("-C", f"build-dir={work.folder / 'build'}", "-C", "cmake.define.KERNELMINT_ISAS=native"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={project / 'generated'}"),
        *(part for setting in settings for part in ("-C", f"cmake.define.{setting}")),
    )
    (wheel,) = wheels.iterdir()
    return wheel


def _sanity_check(work: Work, wheel: Path) -> str:
    """Runs the wheel's CPU kernels beside this environment's PyTorch; returns the last line of what
    was printed."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise AbsentError(f"no PyTorch beside {sys.executable}")
    python = work.environment(Path(sys.executable))
    work.pip(python, "install", "--quiet", "--no-deps", wheel)
    (site,) = (work.folder / "environment/lib").glob("python*/site-packages")
    (site / "torch.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    return work.run(python, "-m", "kernelmint", "sanity-check", cwd=work.folder).splitlines()[-1]
