"""A kernel that writes into an input does not compile: PyTorch would not see the change."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[2] / "runtime/include"
COMPILER = os.environ.get("CXX") or shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("view", "element", "compiles"),
    [
        ("ConstTensorView", "const float", True),
        ("ConstTensorView", "float", False),
        ("TensorView", "float", True),
        ("TensorView", "const float", True),
    ],
)
def test_inputs_are_read_alone(view: str, element: str, compiles: bool, tmp_path: Path) -> None:
    assert COMPILER is not None
    source = tmp_path / "kernel.cpp"
    source.write_text(
        '#include "tensor_view.h"\n'
        f"{element}* first(const kernelmint::{view}<2>& x) {{ return x.at<{element}>(1); }}\n"
    )
    done = subprocess.run(
        [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE}", source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is compiles, done.stderr
    assert compiles or "one that the kernel changes is declared `mutated: true`" in done.stderr
