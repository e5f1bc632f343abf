"""A folder of specs to break and repair, and the commands over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.__main__ import main

ROOT = Path(__file__).resolve().parents[2]

FAMILY = """\
family: demo
summary: A family to test with.
arguments:
  x: {tensor: [M, N], dtype: dtype, doc: the input}
  y: {output: [M, "ceil_div(N, 2)"], dtype: dtype}
  rows: {output: [M], dtype: f32, optional: true}
  alpha: {scalar: f32, default: "N ** -0.5"}
parameters:
  dtype: {type: dtype, values: [bf16, fp16, f32]}
  causal: {type: bool}
requires:
  - {that: N % 2 == 0, because: pairs are combined}
reference: reference.py:demo
"""

SM80 = """\
target: sm80
kernel: sm80.cuh:demo_sm80
parameters:
  tile: {type: int, token: t}
  warps: {type: int, token: w}
  mode: {type: enum, values: [auto, split]}
constraints:
  - {that: dtype != f32, because: the matrix units take 16-bit numbers}
  - {that: tile % (8 * warps) == 0, because: every warp owns whole tiles}
derived:
  threads: 32 * warps
limits: {threads: 256}
launch: {grid: ["ceil_div(M, tile)", N], block: threads}
sets:
  default:
    - product: {tile: [32, 64, 128], warps: [1, 2, 4, 8, 16], mode: [auto]}
  small:
    - {dtype: bf16, causal: false, tile: 32, warps: 1, mode: split}
budget: {spill_bytes: 0}
"""

CPU = """\
target: cpu
kernel: cpu.h
parameters:
  tile: {type: int, token: t}
sets:
  default:
    - {tile: 64}
"""


@dataclass
class Result:
    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Workspace:
    """A folder with specs/ and generated/; commands run within it."""

    root: Path

    @property
    def demo(self) -> Path:
        return self.root / "kernel_specs/demo"

    @property
    def out(self) -> Path:
        return self.root / "generated"

    def write(self, name: str, text: str) -> None:
        (self.demo / name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.demo / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def run(self, *arguments: str) -> Result:
        """The command in this process; what it raises is raised here."""
        result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        return Result(result.exit_code, result.stdout, result.stderr)

    def python(self, *arguments: str, **environment: str) -> Result:
        """A Python process of its own."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def tree(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes()
            for path in sorted(self.out.rglob("*"))
            if path.is_file()
        }

    def times(self) -> dict[str, int]:
        return {name: (self.out / name).stat().st_mtime_ns for name in self.tree()}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.chdir(tmp_path)
    space = Workspace(tmp_path)
    space.demo.mkdir(parents=True)
    space.write("family.yaml", FAMILY)
    space.write("sm80.yaml", SM80)
    space.write("cpu.yaml", CPU)
    for name in ("sm80.cuh", "cpu.h"):
        space.write(name, "")
    space.write("reference.py", "def demo(x, alpha): ...\n")
    return space
