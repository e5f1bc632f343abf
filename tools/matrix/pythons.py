"""Pythons and PyTorchs: a wheel is built and installed, and must do what
tests/build/other_pytorch.py asks."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path

from .results import Outcome
from .work import ROOT, Work, interpreter

FOR_PYTORCH = "3.12"  # the Python of the rows of PyTorch
_CHECK = ROOT / "tests/build/other_pytorch.py"
_KERNELS = "target == 'cpu' and dtype == 'f32'"
_VERSIONS = "import sys, torch; print(sys.version.split()[0], torch.__version__)"


def check_python(version: str, work: Work) -> Outcome:
    """Checks a Python with the newest PyTorch that the index has for it."""
    return _check(version, "torch", work)


def check_torch(version: str, work: Work) -> Outcome:
    """Checks the newest PyTorch of a version such as 2.4."""
    return _check(FOR_PYTORCH, f"torch=={version}.*", work)


def _check(version: str, torch: str, work: Work) -> Outcome:
    python = work.environment(interpreter(version))
    wheel = built(_builder(version))
    work.pip(python, "install", "--quiet", "--no-cache-dir", torch, "numpy")
    work.pip(python, "install", "--quiet", wheel)
    copy = shutil.copy(_CHECK, work.folder)  # elsewhere than a checkout, whose modules come first
    printed = work.run(python, copy, cwd=work.folder)
    python_version, torch_version = work.run(python, "-c", _VERSIONS).split()[-2:]
    return Outcome(
        "run",
        f"Python {python_version}, PyTorch {torch_version}; {wheel.name}; "
        f"{len(printed.splitlines())} checks of {_CHECK.relative_to(ROOT)}",
    )


def _builder(version: str) -> str:
    """Returns the Python that builds the wheel for a Python: from 3.12 on, one serves all with the
    GIL."""
    number = int(version.rstrip("t").partition(".")[2])
    return version if version.endswith("t") or number < 12 else "3.12"


@functools.cache
def built(version: str) -> Path:
    """Builds a wheel of the CPU kernels of f32 by a Python of that version, once in this process.
    The build's folder stays, so that another run compiles only what changed."""
    work = Work(f"wheel:{version}")
    generated, wheels = work.folder / "generated", work.folder / "wheels"
    work.run(sys.executable, "-m", "codegen", "regenerate", "--out", generated, "--where", _KERNELS)
    shutil.rmtree(wheels, ignore_errors=True)
    python = work.environment(interpreter(version))
    work.pip(
        *(python, "wheel", ".", "--no-deps", "--wheel-dir", wheels),
        *("--build-constraint", ROOT / "constraints.txt"),
        *("-C", f"build-dir={work.folder / 'build'}", "-C", "cmake.define.KERNELMINT_CUDA=OFF"),
        *("-C", "cmake.define.KERNELMINT_ISAS=native"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={generated}"),
    )
    work.clean()
    (wheel,) = wheels.iterdir()
    return wheel
