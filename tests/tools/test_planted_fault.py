"""A fault planted in a real kernel is named by tools.debug: its block and its tensor.

The fault lives in a copy of the specs alone: a template parameter `fault`, with which the CPU
kernel takes a scale that is 1 % too large at one block of keys.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.build

ROOT = Path(__file__).resolve().parents[2]
KEY = "flash_forward.cpu.f32-d64-r64-c128-trace"
DEBUG = """
import runpy, sys
# Not the checkout's editable install, whose finder comes before every path.
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
sys.argv = ["tools.debug", *sys.argv[1:]]
runpy.run_module("tools.debug", run_name="__main__")
"""


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def run(*command: str | Path, cwd: Path = ROOT, **environment: str):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


@pytest.fixture(scope="module")
def debug(tmp_path_factory):
    """tools.debug over a build of a kernel and of its faulty sibling."""
    folder = tmp_path_factory.mktemp("planted")
    specs = folder / "specs/flash_forward"
    shutil.copytree(ROOT / "kernel_specs/flash_forward", specs)
    (specs / "sm80.yaml").unlink()
    replace(
        specs / "family.yaml",
        "  trace:  {",
        "  fault:  {type: bool, default: false}\n  trace:  {",
    )
    twin = "    - {dtype: f32, d_head: 64, causal: false, B_r: 64, B_c: 128, trace: true}\n"
    replace(specs / "cpu.yaml", twin, twin + twin.replace("trace", "fault: true, trace"))
    softmax = "first, strip, used, scale_log2_,"
    faulty = "(Config::fault && block == 1 ? 1.01f : 1.0f) * scale_log2_,"
    replace(specs / "cpu.h", softmax, softmax.replace("scale_log2_,", faulty))
    done = run(
        *(sys.executable, "-m", "codegen", "regenerate", "--specs", folder / "specs"),
        *("--out", folder / "generated"),
        *("--where", "trace and dtype == f32"),
    )
    assert "2 kernels" in done.stdout, done.stdout
    done = run(
        *(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder / "dist", "-C", f"build-dir={folder / 'build'}"),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={folder / 'generated'}"),
        *("-C", "cmake.define.KERNELMINT_CUDA=OFF"),
    )
    assert done.returncode == 0, done.stdout[-4000:]
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")

    def call(*arguments):
        return run(
            *(sys.executable, "-c", DEBUG, *map(str, arguments)),
            cwd=folder,
            PYTHONPATH=str(folder / "site"),
        )

    return call


@pytest.mark.parametrize("options", [(), ("--range",), ("--head", 1)])
def test_the_right_block_and_tensor_are_named(debug, options) -> None:
    """M is the first tensor that the scale enters, in rows whose maximum lies in that block.

    Block 2 comes first, and is right.
    """
    done = debug(KEY.replace("-trace", "-fault-trace"), 6, *options)
    assert done.returncode == 1, done.stdout
    last = done.stdout.splitlines()[-1]
    assert "the kernel parts from its simulation first at head" in last
    assert re.search(r", query block 0: block 1, M, row=\d+: .* of 64 elements differ$", last), last


def test_its_sibling_without_the_fault_is_right(debug) -> None:
    done = debug(KEY, 6)
    assert done.returncode == 0, done.stdout
    assert "the kernel does as its simulation" in done.stdout
