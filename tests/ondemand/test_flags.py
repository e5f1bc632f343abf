"""A kernel that is built on demand is compiled as CMake compiles it into a pack."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import packs
from runtime.ondemand import compilers

from .test_ondemand import NVCC

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ROOT / "build/editable/compile_commands.json"


def cmake_flags(file: str) -> set[str]:
    """The flags of the first source that matches, without files, folders and definitions of which
    targets there are."""
    if not COMMANDS.is_file():
        pytest.skip("no `make build` was made here")
    entry = next(e for e in json.loads(COMMANDS.read_text()) if re.search(file, e["command"]))
    words = shlex.split(entry["command"])
    words = [
        w for before, w in zip(["", *words], words, strict=False) if before not in ("-o", "-x")
    ]
    return flags_of(words)


def flags_of(words) -> set[str]:
    ignored = ("-I", "-isystem", "-DKERNELMINT_TARGET_", "-Dkernelmint_", "-forward-unknown", "-x")
    flags = {w for w in words if w.startswith("-") and not w.startswith(ignored)} - {"-c", "-o"}
    return {part for flag in flags for part in _split(flag)}


def _split(flag: str) -> list[str]:
    name, _, values = flag.partition("=")
    return [f"{name}={value}" for value in values.split(",")] if name == "-Xcompiler" else [flag]


def architectures(flags: set[str]) -> set[str]:
    return {flag for flag in flags if flag.startswith("--generate-code")}


def test_the_host_and_the_kernels_of_the_cpu() -> None:
    kernel = cmake_flags(r"kernelmint_flash_forward_cpu_\w+\.dir/Unity/")
    (isa,) = (f.partition("=")[2] for f in kernel if f.startswith("-DKERNELMINT_ISA="))
    recipe = compilers.cpu(isa)
    assert flags_of(recipe.device) == kernel
    host = {f for f in cmake_flags(r"flash_forward/family\.cpp") if "KERNELMINT_ISA_" not in f}
    assert flags_of(recipe.host) == host | {f"-DKERNELMINT_ISA_{isa}"}


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_cuda_kernels() -> None:
    if not packs.of("flash_forward").architectures:
        pytest.skip("built without CUDA")
    kernel = cmake_flags(r"flash_forward/sm80_.*\.cu")
    flags = flags_of(compilers.cuda(("80",)).device)
    assert flags - architectures(flags) == kernel - architectures(kernel)
    assert "--generate-code=arch=compute_80,code=[sm_80]" in flags


def test_the_one_search_for_nvcc(tmp_path) -> None:
    """CMake, building on demand and the backend ask it: the one named, on PATH, or PyPI's."""
    named, on_path, installed = (
        tmp_path / name for name in ("named", "bin/nvcc", "site/nvidia/cu13/bin/nvcc")
    )
    for file in (on_path, installed):
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-S", str(ROOT / "codegen/build/nvcc.py")]

    def found(**variables: str) -> str:
        done = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False
        )
        return done.stdout or done.stderr

    path = str(on_path.parent)
    assert found(PATH=path, CUDACXX=f"{named} -v") == f"named by CUDACXX;{named};-v"
    assert found(PATH=path, CUDACXX="") == f"on PATH;{on_path}"
    assert found(PATH="") == f"from PyPI;{installed}"
    assert "no nvcc is named by CUDACXX" in found(PATH="", PYTHONPATH="")
