"""A build of a few kernels, for what is told of a whole wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from runtime import _native

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    "family == 'flash_forward' and target == 'cpu' and dtype == 'f32' and d_head == 64"
    " and not trace"
)

# pip's: the extension as fast as the compiler can; kernels, which have flags of their own, for this
# processor.
FAST = (
    *("-C", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0"),
    *("-C", "cmake.define.KERNELMINT_ISAS=native"),
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in {"CMAKE_ARGS", "PYTHONPATH"}}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=kept, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def settings(folder: Path) -> list[str]:
    """pip's: a few kernels, generated and built in this folder."""
    run(
        *(sys.executable, "-m", "codegen", "regenerate", "--out", folder / "generated"),
        *("--where", WHERE),
    )
    return [
        *("-C", f"build-dir={folder / 'build'}", "-C", "cmake.define.KERNELMINT_CUDA=OFF"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={folder / 'generated'}"),
        *FAST,
    ]


def environment(folder: Path, python: str = sys.executable) -> list[str | Path]:
    """A virtual environment, and what begins a command of this one's pip for it: to install a pip
    takes five seconds."""
    run(python, "-m", "venv", "--without-pip", folder)
    return [sys.executable, "-m", "pip", "--python", folder / "bin/python"]


def pack_alone(build: Path) -> list[str]:
    """pip's: the pack is built, and the extension is the checkout's, which compiles for long."""
    build.mkdir()
    shutil.copy(_native.__file__, build)
    return ["-C", f"build-dir={build}", "-C", "build.targets=kernelmint_report"]


def interpreters() -> dict[int, str]:
    """The Pythons 3.x from 3.10 on that are on PATH or beside this one, by x."""
    found = {}
    for minor in range(10, 20):
        name = f"python3.{minor}"
        beside = Path(sys.base_prefix).parent.glob(f"*/bin/{name}")
        for program in filter(None, [shutil.which(name), *map(str, beside)]):
            if subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0:
                found[minor] = program
    return found


PYTHONS = interpreters()
