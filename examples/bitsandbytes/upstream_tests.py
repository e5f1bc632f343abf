"""Upstream's own tests of its quantisers, on this pack: those of the pinned archive, unmodified,
with bitsandbytes' operators replaced by the pack's (bnb_pack/drop_in.py). None is kept here.

    python upstream_tests.py [pytest's options]

It needs bitsandbytes, which has the functions around the operators.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from codegen.sources import archives

SPECS = Path(__file__).resolve().parent / "kernel_specs"
# The tests that call quantisers; others are of matrix products and optimisers.
CHOSEN = "blockwise or 4bit or few_bit or fp8"
LEFT_OUT = "(bench or gemv or gemm or matmul)"


def upstream() -> Path:
    """Returns upstream's sources, unpacked."""
    pin = yaml.safe_load((SPECS / "bitsandbytes/sm80.yaml").read_text())
    archive = pin["build"]["archives"]["upstream"]
    return archives.folder(archive["url"], archive["sha256"])


def main(arguments: list[str]) -> int:
    """Runs them; returns pytest's exit status."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(upstream() / "tests", f"{work}/tests")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "bnb_pack.drop_in", "-k", f"({CHOSEN}) and not {LEFT_OUT}", *arguments]
        files = ["tests/test_ops.py", "tests/test_functional.py"]
        return subprocess.run([*command, *files], cwd=work, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
