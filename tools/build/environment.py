"""Fills the virtual environment that runs this script with all that `make` needs.

    python tools/build/environment.py [--tools]

It installs the requirements of building and calling kernels; with --tools also
requirements-dev.txt. The package's own requirements and its build requirements are read from
pyproject.toml and from the build backend, so there is no second list; constraints.txt has their
versions and hashes. Standard library only.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
CUTLASS = ("nvidia-cutlass==4.2.*",)  # the headers of examples/cutlass_gemm
_NEWS = ("Downloading", "Using cached", "Installing", "Successfully")  # the rest is for debugging


def pip_install(*arguments: str) -> None:
    """Runs `pip install`; ends the script if it fails, after pip's message.

    pip's progress is printed as it comes, since a new PyTorch takes minutes.
    """
    command = [sys.executable, "-m", "pip", "install", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.lstrip().startswith(_NEWS):
                print(f"  {line.strip()[:120]}", flush=True)
    if pip.returncode:
        sys.exit("kernelmint: installing the requirements failed (see pip's message above)")


def install_pip() -> None:
    """Installs the pip that constraints.txt pins: older ones take no hashes from constraints."""
    pinned = re.search(r"^pip==.*(\n +--hash.*)+", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned, CONSTRAINTS
    with tempfile.TemporaryDirectory() as folder:
        requirement = Path(folder, "pip.txt")
        requirement.write_text(pinned[0])
        pip_install("--require-hashes", "-r", str(requirement))


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with path.open("rb") as file:
        return dict(tomllib.load(file))


def requirements() -> list[str]:
    """Returns the requirements of building, calling and reporting, with nvcc if the machine has
    none."""
    sys.path.insert(0, str(ROOT))
    from kernelmint import backend

    project = read_toml(ROOT / "pyproject.toml")
    extras = project["project"]["optional-dependencies"]
    return [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *extras["torch"],
        *extras["demangle"],
        *backend.get_requires_for_build_editable(),
    ]


def tools() -> list[str]:
    """Returns the requirements that requirements-dev.txt lists."""
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def main(arguments: list[str]) -> None:
    """Installs the requirements of the project, and with --tools those of its developers."""
    print("kernelmint: installing requirements; PyTorch may take a few minutes", flush=True)
    # The pins agree; only CUTLASS's package lacks requirements, which pip would report each time.
    pinned = ("--no-warn-conflicts", "-c", str(CONSTRAINTS))
    held = (*pinned, "--require-hashes")
    install_pip()
    pip_install(*held, "scikit-build-core")  # the backend imports it; it brings a TOML reader
    needed = requirements()
    torch = [requirement for requirement in needed if re.match(r"torch\b", requirement)]
    pip_install(*held, *(r for r in needed if r not in torch))
    # PyTorch's files have no hashes: see constraints.txt. Those of its requirements do.
    pip_install(*pinned, "--no-require-hashes", *torch)
    if "--tools" in arguments:
        pip_install(*held, *tools())
        pip_install(*held, "--no-deps", *CUTLASS)


if __name__ == "__main__":
    main(sys.argv[1:])
