"""C++ compilers: a wheel of the extension and of a new project's kernels is built by each,
and its CPU kernels are checked."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

from codegen.build import nvcc
from codegen.core.words import counted

from .results import Outcome
from .work import ROOT, UNOPTIMIZED, AbsentError, Work, tool

_ARCHITECTURE = "90"
_AARCH64 = "/usr/aarch64-linux-gnu"  # the system libraries of Debian's cross compiler


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
    found = re.search(r"Kernelmint: nvcc (\S+)", work.log.read_text())
    assert found, work.log
    right = sanity_check(work, wheel)
    return Outcome("run", f"{version}; {right}; host code of nvcc {found[1]} compiled")


def check_aarch64(compiler: str, work: Work) -> Outcome:
    """Checks a pack that is compiled for aarch64: a kernel of the CPU is called under qemu, CUDA's
    files are only compiled."""
    program, qemu = shutil.which(f"aarch64-linux-gnu-{compiler}"), shutil.which("qemu-aarch64")
    if program is None or qemu is None:
        raise AbsentError(f"no aarch64-linux-gnu-{compiler} or no qemu-aarch64 on PATH")
    project = _project(work)
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": program,
        "Kernelmint_DIR": ROOT / "kernelmint/cmake",
        "KERNELMINT_CUDA": "OFF",
    }
    build = work.cmake(project, settings)
    work.run(tool("cmake"), "--install", build, "--prefix", work.folder / "installed")
    (library,) = (work.folder / "installed").rglob("*.so")
    include, caller = ROOT / "runtime/include", work.folder / "call_pack"
    source = ROOT / "tests/build/call_pack.cpp"
    work.run(program, "-std=c++20", "-O1", f"-I{include}", source, "-ldl", "-o", caller)
    key = work.run(qemu, "-L", _AARCH64, caller, library).split()[-1]
    version = work.run(program, "--version").splitlines()[0]
    return Outcome(
        "run", f"{version}; {key} under qemu; {_cuda_for_aarch64(work, project, program)}"
    )


def _cuda_for_aarch64(work: Work, project: Path, program: str) -> str:
    """Compiles the project's CUDA files for hosts of aarch64; returns what became of it. The
    toolkit's headers are the same for all hosts."""
    kit = nvcc.find()
    found = re.search(r'INCLUDES="-I([^"]+)"', work.run(*kit.command, "--dryrun", "-c", "none.cu"))
    assert found, work.log
    include = Path(found[1]).resolve()
    files = sorted((project / "generated").rglob("*.cu"))
    for n, file in enumerate(files):
        work.run(
            *(*kit.command, "-ccbin", program, "-std=c++20", "--expt-relaxed-constexpr"),
            *(f"-arch=sm_{_ARCHITECTURE}", f"-I{include}", "-isystem", include / "cccl"),
            *(f"-I{ROOT / 'runtime/include'}", f"-I{project / 'kernel_specs'}"),
            *(f"-I{project / 'generated'}", "-c", file, "-o", work.folder / f"{n}.o"),
        )
    return f"{counted(len(files), 'file')} of CUDA compiled by nvcc ({kit.origin})"


def _project(work: Work) -> Path:
    """Makes a new project and its generated tree; returns its folder."""
    project = work.folder / "my_kernels"
    shutil.rmtree(project, ignore_errors=True)
    init = (sys.executable, "-m", "kernelmint", "init", project.name)
    here = {"PYTHONPATH": str(ROOT)}
    work.run(*init, cwd=work.folder, environment=here)
    work.run(sys.executable, "-m", "codegen", "regenerate", cwd=project, environment=here)
    return project


def _wheel(work: Work, *settings: str) -> Path:
    """Builds a wheel whose pack has the kernels of a new project, by this environment's tools."""
    project, wheels = _project(work), work.folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
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


def sanity_check(work: Work, wheel: Path) -> str:
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
