"""What a command writes for its user is there whole, or what was there before stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
# A full disk: no file may have more than 40 bytes.
FULL = """
import os, resource, signal, sys
{prepare}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
main(sys.argv[1:])
"""
BENCH = "from tools.bench.__main__ import main"
BENCH_BUILD = """
from pathlib import Path
from tools import bench_build
bench_build.scaffold.create = lambda *_: None
bench_build._seconds = lambda *_: 0.5
main = bench_build.main
"""
COMPARE = """
sys.path.append(".")
from kernel_specs.hstu.tools.compare import main
"""
TUNE = "from tools.tune.__main__ import main"
SIZE = (
    "flash_forward --target cpu --case dtype=f32,d_head=64,causal=false,size=1x32 --seconds 0 "
    "--contender kernelmint"
)


COMMANDS = [
    (BENCH, f"{SIZE} --csv"),
    (TUNE, "flash_forward --target cpu --budget 0 --json"),
    (BENCH, f"{SIZE} --json"),
    (BENCH, f"{SIZE} --plot"),
    (BENCH_BUILD, "--runs 1 --device cpu --only cpu.f32-n4096 --json"),
    (COMPARE, "--mode fixed --cases small --json"),
]


@pytest.mark.parametrize(("prepare", "options"), slow_after(2, COMMANDS))
def test_on_a_full_disk_the_old_file_stays(prepare, options, tmp_path) -> None:
    file = tmp_path / "figures.svg"
    file.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(prepare=prepare), *options.split(), str(file)],
        cwd=ROOT, env={**os.environ, "KERNELMINT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{file}: cannot be written: File too large" in " ".join(done.stderr.split())
    assert file.read_text() == "old"
    assert [path for path in tmp_path.iterdir() if path.name != "cache"] == [file]
