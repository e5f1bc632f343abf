"""Fills the virtual environment that runs this script with all that `make` needs.

The package's own requirements and its build requirements are read from pyproject.toml and from the
build backend, so there is no second list. PIP_CONSTRAINT pins versions. Standard library only.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NEWS = ("Downloading", "Using cached", "Installing", "Successfully")  # the rest is for debugging


def pip_install(*arguments: str) -> None:
    """Run `pip install`; end the script if it fails, pip having said why.

    What it downloads and installs is said as it does, which takes minutes if PyTorch is new.
    """
    command = [sys.executable, "-m", "pip", "install", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.lstrip().startswith(_NEWS):
                print(f"  {line.strip()[:120]}", flush=True)
    if pip.returncode:
        sys.exit("kernelmint: installing the requirements failed (see pip's message above)")


def main() -> None:
    """Install what the project and its tools require, then nvcc if the machine has none."""
    print("kernelmint: installing requirements; PyTorch may take a few minutes", flush=True)
    pip_install("-r", "requirements-dev.txt")
    # The headers of examples/cutlass_gemm; the package's Python would draw SciPy and cuda-python.
    pip_install("--no-deps", "nvidia-cutlass")

    sys.path.insert(0, str(ROOT))
    from packaging.requirements import Requirement

    from kernelmint import backend

    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["torch"],
        *backend.get_requires_for_build_editable(),
    ]
    pip_install(*sorted({str(Requirement(text)) for text in wanted}))


if __name__ == "__main__":
    main()
