"""A build of a few kernels, for what is told of a whole wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    "family == 'flash_forward' and target == 'cpu' and dtype == 'f32' and d_head == 64"
    " and not trace"
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
    ]
