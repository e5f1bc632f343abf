"""The thread pool under the compiler's sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CXX", "c++")


@pytest.mark.parametrize("sanitizer", slow_after(1, ["thread", "address,undefined"]))
def test_the_pool_is_free_of_races_and_stray_accesses(sanitizer: str, tmp_path: Path) -> None:
    empty, program = tmp_path / "empty.cpp", tmp_path / "pool_probe"
    empty.write_text("int main() {}\n")
    options = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread"]
    if subprocess.run([COMPILER, *options, empty, "-o", program], capture_output=True).returncode:
        pytest.skip(f"this compiler links no -fsanitize={sanitizer}")
    sources = [
        ROOT / "tests/runtime/pool_probe.cpp",
        *(ROOT / "runtime" / name for name in ("pack/library.cpp", "src/thread_pool.cpp")),
    ]
    includes = [f"-I{ROOT / 'runtime' / name}" for name in ("include", "pack", "src")]
    subprocess.run([COMPILER, *options, *includes, *sources, "-o", program], check=True)
    # A forked child starts threads of its own, which ThreadSanitizer refuses unless told otherwise.
    environment = os.environ | {
        "TSAN_OPTIONS": "die_after_fork=0:exitcode=66",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    result = subprocess.run(
        [program, "50"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING: ThreadSanitizer" not in result.stderr, result.stderr
