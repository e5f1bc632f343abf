"""Pythons and PyTorchs: a wheel is built and installed, and must do what two scripts of tests/build
ask."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path

from .results import Outcome
from .work import ROOT, UNOPTIMIZED, Work, interpreter

FOR_PYTORCH = "3.12"  # the Python of the rows of PyTorch
_CHECKS = [ROOT / "tests/build" / name for name in ("other_pytorch.py", "many_threads.py")]
_BINARY = ("--quiet", "--no-cache-dir", "--only-binary", "torch,numpy,pydantic-core")
_KERNELS = "target == 'cpu' and dtype == 'f32' and (B_c == 64 or d_head == 64)"
_VERSIONS = """
import sys, torch, runtime
print(sys.version.split()[0], torch.__version__, getattr(sys, "_is_gil_enabled", lambda: True)())
"""


def check_python(version: str, work: Work) -> Outcome:
    """Checks a Python with the newest PyTorch that the index has for it."""
    return _check(version, "torch", work)


def check_torch(version: str, work: Work) -> Outcome:
    """Checks the newest PyTorch of a version such as 2.4."""
    return _check(FOR_PYTORCH, f"torch=={version}.*", work)


def _check(version: str, torch: str, work: Work) -> Outcome:
    python = work.environment(interpreter(version))
    wheel = built(_builder(version))
    work.pip(python, "install", *_BINARY, torch, "numpy")
    work.pip(python, "install", *_BINARY, wheel)
    for check in _CHECKS:  # outside of a checkout, whose modules would come first
        work.run(python, shutil.copy(check, work.folder), cwd=work.folder)
    versions = work.run(python, "-c", _VERSIONS, cwd=work.folder)
    python_version, torch_version, gil = versions.split()[-3:]
    without = " without the GIL" if gil == "False" else ""
    return Outcome(
        "run",
        f"Python {python_version}{without}, PyTorch {torch_version}; {wheel.name}",
    )


def _builder(version: str) -> str:
    """Returns the Python that builds the wheel for a Python: from 3.12 on, one serves all with the
    GIL."""
    number = int(version.rstrip("t").partition(".")[2])
    return version if version.endswith("t") or number < 12 else "3.12"


@functools.cache
def built(version: str) -> Path:
    """Builds a wheel by a Python of that version, once in this process. The build's folder stays,
    so that another run compiles only what changed."""
    return build(version, Work(f"wheel:{version}"))


def build(version: str, work: Work) -> Path:
    """Builds a wheel of a few CPU kernels by a Python of that version."""
    generated, wheels = work.folder / "generated", work.folder / "wheels"
    work.run(sys.executable, "-m", "codegen", "regenerate", "--out", generated, "--where", _KERNELS)
    shutil.rmtree(wheels, ignore_errors=True)
    python = work.environment(interpreter(version))
    work.pip(
        *(python, "wheel", ".", "--no-deps", "--wheel-dir", wheels),
        *("--build-constraint", ROOT / "constraints.txt"),
        *("-C", f"build-dir={work.folder / 'build'}", "-C", "cmake.define.KERNELMINT_CUDA=OFF"),
        *("-C", "cmake.define.KERNELMINT_ISAS=native"),
        *UNOPTIMIZED,
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={generated}"),
    )
    work.clean()
    (wheel,) = wheels.iterdir()
    return wheel
