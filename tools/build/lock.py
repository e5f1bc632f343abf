"""`make lock`: writes constraints.txt, a version and hashes of each package that `make` installs.

    python tools/build/lock.py [PACKAGE ...]

Needs `uv` on PATH. The pins of constraints.txt stay, except those of the packages that are named
here, which get their newest releases. One file serves each Python from 3.10 on, on Linux, x86-64
and aarch64: pip takes a hash of each package that it installs from there (--require-hashes).
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment  # beside this script
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

CONSTRAINTS = environment.ROOT / "constraints.txt"
HEADER = """\
# What `make` installs: `make lock` writes it of requirements-dev.txt and of pyproject.toml, whose
# ranges are the published package's. Each version has the hashes of its files for Linux on x86-64
# and aarch64, but PyTorch's: the index that pip is set to says whether it is built for CUDA.
"""
UNHASHED = {"torch"}
# Only the headers of CUTLASS's package are used; its Python would draw SciPy and cuda-python.
NO_DEPENDENCIES_OF_CUTLASS = ("cuda-python", "pydot", "scipy", "treelib")


def resolve(folder: Path, renewed: list[str]) -> list[dict[str, Any]]:
    """Returns the packages of uv's lock file."""
    requirements, kept, excluded = (folder / name for name in ("in.txt", "kept.txt", "no.txt"))
    requirements.write_text("\n".join([
        *environment.requirements(), *environment.tools(), *environment.CUTLASS, "pip>=26.3",
        runpy.run_path("codegen/build/nvcc.py")["REQUIREMENT"],
    ]))  # fmt: skip
    lines = CONSTRAINTS.read_text().splitlines()
    pins = [line.rstrip("\\") for line in lines if line[:1].isalnum()]
    kept.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] not in renewed))
    excluded.write_text("\n".join(NO_DEPENDENCIES_OF_CUTLASS))
    subprocess.run([
        *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10"),
        *("--no-python-downloads", "--generate-hashes", "--format", "pylock.toml"),
        *("--excludes", excluded, "--constraints", kept, requirements, "pyproject.toml"),
        *("--all-extras", "--output-file", folder / "pylock.toml"),
    ], cwd=environment.ROOT, check=True)  # fmt: skip
    packages: list[dict[str, Any]] = environment.read_toml(folder / "pylock.toml")["packages"]
    return packages


def is_for_linux(marker: str | None) -> bool:
    """Returns whether some Linux with some Python installs a requirement with this marker."""
    versions = (f"3.{minor}" for minor in range(10, 20))
    return marker is None or any(
        Marker(marker).evaluate({
            "python_version": version, "python_full_version": f"{version}.0",
            "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine,
        })
        for version in versions
        for machine in ("x86_64", "aarch64")
    )  # fmt: skip


def fits(name: str) -> bool:
    """Returns whether a wheel of that name is for CPython from 3.10 on, on a Linux with glibc."""
    return any(
        (tag.platform == "any" or tag.platform.startswith(("manylinux", "linux")))
        and tag.platform.endswith(("any", "x86_64", "aarch64"))
        and (tag.abi == "abi3" or not tag.interpreter.startswith(("pp", "gp", "cp38", "cp39")))
        for tag in parse_wheel_filename(name)[3]
    )


def hashes(package: dict[str, Any]) -> Iterator[str]:
    """Returns the hashes of a release's wheels, or of its source distribution without wheels."""
    if package["name"] in UNHASHED:
        return
    wheels = [wheel for wheel in package.get("wheels", ()) if fits(wheel["url"].rpartition("/")[2])]
    for file in wheels or [package["sdist"]]:
        yield f"sha256:{file['hashes']['sha256']}"


def main(renewed: list[str]) -> None:
    """Resolves and writes."""
    with tempfile.TemporaryDirectory() as folder:
        packages = resolve(Path(folder), renewed)
    text = HEADER
    for package in packages:
        marker = package.get("marker")
        if is_for_linux(marker):
            pin = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
            lines = [pin, *(f"--hash={value}" for value in hashes(package))]
            text += " \\\n    ".join(lines) + "\n"
    CONSTRAINTS.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
