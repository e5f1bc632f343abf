"""Code compiled for one instruction set is never linked in place of another's.

A CPU shard is compiled once for each instruction set. Whatever such an object defines weakly
(inline functions, template instances) is merged by name at link time, so every such name must say
which instruction set it was compiled for: else a machine without AVX-512 may run into an AVX-512
copy.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
SHARD = next(iter(sorted((ROOT / "generated" / "flash_forward").glob("cpu_[0-9]*.cpp"))), None)
COMPILER = os.environ.get("CXX") or shutil.which("c++")
FLAGS = json.loads((ROOT / "kernelmint/cmake/flags.json").read_text())["isas"]
NO_CODE = {"DW.ref.__gxx_personality_v0"}  # a pointer to libstdc++'s exception handling


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one instruction set only")
@pytest.mark.skipif(COMPILER is None or SHARD is None, reason="needs a compiler and generated/")
@pytest.mark.parametrize("optimisation", slow_after(1, ["-O0", "-O3"]))
@pytest.mark.parametrize("isa", FLAGS)
def test_weak_symbols_name_their_instruction_set(
    isa: str, optimisation: str, tmp_path: Path
) -> None:
    """At -O0 too, where the compiler inlines nothing that it may leave alone."""
    assert COMPILER is not None
    object_file = tmp_path / "shard.o"
    includes = [f"-I{ROOT / folder}" for folder in ("runtime/include", "kernel_specs", "generated")]
    options = ["-std=c++20", optimisation, *FLAGS[isa], "-Wno-psabi", f"-DKERNELMINT_ISA={isa}"]
    subprocess.run(
        [COMPILER, *options, *includes, "-c", str(SHARD), "-o", str(object_file)], check=True
    )
    listing = subprocess.run(
        ["nm", "--defined-only", "--format=posix", str(object_file)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    symbols = [line.split()[:2] for line in listing.splitlines()]
    weak = {name for name, kind in symbols if kind in "WwVvu"} - NO_CODE
    mangled = f"{len(isa)}{isa}"  # a name is preceded by its length
    assert any("launch" in name for name in weak)
    assert not [name for name in sorted(weak) if mangled not in name]
