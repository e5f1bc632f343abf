"""`kernelmint bench` of a project's own family: the example of docs/own_kernels.md, and contenders
that are absent, fail, refuse, or are wrong."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from codegen import scaffold
from tests import warm_python

ROOT = Path(__file__).resolve().parents[2]
OTHERS = """
contenders |= {
    "absent": Contender(liger, distribution="liger-kernel", module="liger_kernel"),
    "refuses": Contender(liger),
    "fails": Contender(lambda problem, inputs: lambda: inputs["z"]),
    "wrong": Contender(lambda problem, inputs: lambda: inputs["x"] + inputs["y"]),
    "front": Contender(
        lambda problem, inputs: lambda: kernelmint.my_kernels_scale_add(**inputs),
        kernel=lambda problem, inputs: "front",
    ),
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The family of the docs, for f32 on the CPU, with the docs' tools.py."""
    folder = tmp_path_factory.mktemp("project")
    scaffold.create("my_kernels_scale_add", folder / "kernel_specs")
    spec = folder / "kernel_specs/my_kernels_scale_add"
    (spec / "sm80.yaml").unlink()
    text = (spec / "cpu.yaml").read_text()
    assert "[bf16, fp16, f32]" in text
    (spec / "cpu.yaml").write_text(text.replace("[bf16, fp16, f32]", "[f32]"))
    page = (ROOT / "docs/own_kernels.md").read_text()
    example = re.search(
        r"```python\n# kernel_specs/my_kernels_scale_add/tools.py\n(.*?)```", page, re.S
    )
    (spec / "tools.py").write_text(f"import kernelmint\n{example[1]}{OTHERS}")
    return folder


def bench(folder, *options):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    command = ("bench", "my_kernels_scale_add", "--seconds", "0", *options)
    return warm_python.run_module("kernelmint", *command, folder=folder, environment=environment)


def test_each_contender_is_measured_or_says_why_not(folder) -> None:
    done = bench(folder, "--case", "rows=3,rows=5,columns=96", "--csv", "figures.csv")
    assert done.returncode == 1, done.stderr  # one is wrong
    assert "f32, 96 columns: GB/s" in done.stdout
    for name in ("PyTorch", "front", r"my_kernels_scale_add\.cpu\.\S+"):
        assert re.search(rf"│ {name} +│ +\d+ ±\d+ .* │ +\d+ ±\d+ ", done.stdout), done.stdout
    assert re.search(r"│ wrong +│ +WRONG │ +WRONG │", done.stdout)
    assert "absent: not installed: pip install liger-kernel\n" in done.stdout
    assert "refuses: its rows have multiples of 128 columns (3 rows, 5 rows)\n" in done.stdout
    assert "fails: KeyError: 'z' (3 rows, 5 rows)\n" in done.stdout
    assert re.search(r"wrong: WRONG: result 0: worst: .* \(3 rows\)", done.stdout)
    lines = list(csv.DictReader((folder / "figures.csv").read_text().splitlines()))
    timed = {line["contender"] for line in lines if line["median_ms"]}
    left_out = {line["contender"]: line["remark"] for line in lines if not line["median_ms"]}
    assert {"PyTorch", "front"} < timed
    assert left_out.keys() == {"refuses", "fails", "wrong"}
    assert {line["rows"] for line in lines} == {"3", "5"}
    assert all(float(line["ratio"]) > 0 for line in lines if line["kernel"])


@pytest.mark.slow
def test_cells_and_contenders_are_chosen_by_name(folder) -> None:
    done = bench(folder, "--case", "1024 rows", "--contender", "kernels", "--contender", "PyTorch")
    assert done.returncode == 0, done.stderr
    assert "1024 rows" in done.stdout
    assert "16 rows" not in done.stdout
    assert "front" not in done.stdout


def test_a_call_on_the_host_is_measured_in_microseconds(folder) -> None:
    done = bench(folder, "--host", "--case", "rows=1,columns=8", "--contender", "PyTorch")
    assert done.returncode == 0, done.stderr
    assert "f32, 8 columns: us (" in done.stdout


def test_without_problems_the_contenders_get_the_kernels_inputs(folder) -> None:
    tools = folder / "kernel_specs/my_kernels_scale_add/tools.py"
    before = tools.read_text()
    tools.write_text(before.replace("def problems(", "def unused("))
    try:
        done = bench(folder, "--case", "M=4,N=64", "--contender", "wrong", "--contender", "kernels")
    finally:
        tools.write_text(before)
    assert done.returncode == 0, done.stderr  # without alpha it is right
    assert re.search(r"│ wrong +│ +\d+ ±\d+ ", done.stdout), done.stdout
    assert "M 4, N 64" in done.stdout
