"""`command | head`: every command line ends quietly when its reader is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "tests" / "ptx_report" / "data" / "nvcc13.5_4arch_warnings.log"
COMMANDS = [
    ["codegen", "list"],
    ["codegen", "list", "--json"],
    ["codegen", "schema"],
    ["runtime", "info"],
    ["runtime", "info", "--json"],
    ["tools.ptx_report", LOG],
    ["tools.ptx_report", LOG, "--verbose"],
]


@pytest.mark.parametrize(
    "command", slow_after(3, COMMANDS), ids=lambda command: " ".join(map(str, command))
)
def test_a_reader_that_went_away_is_no_traceback(command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.returncode == 1
    for words in ("Traceback", "BrokenPipe", "Exception ignored"):
        assert words not in done.stderr
