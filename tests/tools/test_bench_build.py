"""bench_build: figures as they come, slow contenders once, and who fails does not end the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tools import bench_build

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_kernel_is_measured_on_so_many_processors(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.bench_build", "--cores", "1", "--device", "cpu"),
            *("--runs", "1", "--only", "cpu.f32-n4096", "--json", str(figures)),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = min(os.sched_getaffinity(0))
    assert done.stdout.splitlines()[0].endswith(f", 1 processors (numbers {first})")
    (figure,) = json.loads(figures.read_text())
    assert figure["name"] == "cpu: Kernelmint, cpu.f32-n4096"
    (cold,), (warm,) = figure["cold"], figure["warm"]
    assert cold > warm > 0  # a compiler ran, then none
    assert f"{cold:.2f}     1{warm:8.3f}     1" in done.stdout


def test_who_is_slow_runs_once_and_who_fails_is_told_last(tmp_path, monkeypatch) -> None:
    caches = []

    def seconds(contender, specs: Path, cache: Path) -> float:
        caches.append(cache.exists())
        cache.mkdir(exist_ok=True)
        if "tvm-ffi" in contender.name:
            raise click.ClickException("no ninja")
        slow = 50.0 if "torch" in contender.name else 1.5
        return 0.25 if caches[-1] else slow

    monkeypatch.setattr(bench_build, "_seconds", seconds)
    monkeypatch.setattr(
        bench_build.importlib.util, "find_spec", lambda name: name != "cupy" or None
    )
    figures = tmp_path / "figures.json"
    options = ["--device", "cuda", "--runs", "2", "--seconds", "20", "--json", str(figures)]
    done = CliRunner().invoke(bench_build.main, options)
    assert done.exit_code == 1
    rows = {
        line.split("  ")[1].strip(): line.split()[-4:] for line in done.output.splitlines()[2:7]
    }
    assert rows["cuda: Kernelmint, sm80.f32-t128-n1024"] == ["1.50", "2", "0.250", "2"]
    assert rows["cuda: torch load_inline"] == ["50.00", "1", "0.250", "2"]
    assert rows["cuda: CuPy RawModule"][-3:] == ["(no", "cupy", "here)"]
    assert rows["cuda: tvm-ffi load_inline"][-1] == "failed"
    assert done.output.endswith("Error: cuda: tvm-ffi load_inline:\nno ninja\n")
    assert [figure["name"] for figure in json.loads(figures.read_text())] == [
        "cuda: Kernelmint, sm80.f32-t128-n1024",
        "cuda: Kernelmint, flash_forward.sm80.bf16-d128-r64-c32-w4-async-eager-swz-q0-k0-v0-opt",
        "cuda: torch load_inline",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cores", "100000"], "got 100000, there are "),
        (["--only", "Numba"], "no contender's name contains 'Numba'"),
    ],
)
def test_bad_input_is_an_error_in_a_sentence(options: list[str], said: str) -> None:
    done = CliRunner().invoke(bench_build.main, ["--device", "cpu", *options])
    assert done.exit_code == 2
    assert said in done.output
