"""What compiling took is measured by the build, and the next generation and build read it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.costs import Cost, Measured, fitted, main, write

from .pack_project import ROOT, PackProject

CUDA = "-DCMAKE_CUDA_ARCHITECTURES=80"


@pytest.mark.build
def test_a_build_measures_and_the_next_one_is_cut_by_it(tmp_path: Path, monkeypatch) -> None:
    project = PackProject(tmp_path)
    done = project.run(sys.executable, "-m", "codegen", "new", "light")
    assert done.returncode == 0, done.stdout
    with (tmp_path / "kernel_specs/light/sm80.cuh").open("a") as header:
        header.write(f"struct Unknown{uuid.uuid4().hex} {{}};\n")  # to any ccache
    spec = tmp_path / "kernel_specs/light/sm80.yaml"
    spec.write_text(spec.read_text().replace("tile: [1024]", "tile: [512, 1024]"))
    only = ("--where", "target == 'sm80' and dtype == 'f32'")
    project.build(CUDA, regenerate=only)
    costs = list((project.build_folder / "packs/own/ptxas").rglob("*.cost.json"))
    assert len(costs) == 2  # two kernels, whose first parameters differ
    for path in costs:
        cost = json.loads(path.read_text())
        assert cost["seconds"] > 0
        assert cost["mib"] > 50
        assert path.with_name(path.name.replace(".cost.json", ".ptxas.log")).is_file()

    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(main, ["--write"])
    assert shown.exit_code == 0, shown.output
    assert "light.sm80: {file_seconds: " in shown.output
    assert (tmp_path / "kernel_specs/light/costs.yaml").is_file()
    # As if the kernels had taken nothing beside their headers, and these 4 TB.
    write(tmp_path / "kernel_specs/light/costs.yaml", {"sm80": Cost(2.5, 0.05, 4_000_000)})
    project.regenerate(*only)
    assert "; 1 compilers at a time" in project.configure(CUDA).stdout
    (shard,) = (tmp_path / "generated/light").glob("sm80_*.cu")
    assert shard.name == "sm80_0.cu"


@pytest.mark.skipif(
    shutil.which("ccache") is None or shutil.which("nvcc") is None, reason="needs ccache and nvcc"
)
def test_what_ccache_replays_measures_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    monkeypatch.delenv("CCACHE_DISABLE", raising=False)
    (tmp_path / "x.cu").write_text("__global__ void x() {}\n")
    command = [sys.executable, ROOT / "tools/build/compile_logged.py", "--log-dir", "logs"]
    command += ["--root", ".", "--target", "sm80", "--", "ccache", "nvcc", "-Xptxas=-v"]
    command += ["-gencode", "arch=compute_80,code=sm_80", "-c", "x.cu", "-o", "x.o"]
    cost, log = tmp_path / "logs/x.cu.sm80.cost.json", tmp_path / "logs/x.cu.sm80.ptxas.log"
    subprocess.run(command, cwd=tmp_path, check=True)
    assert json.loads(cost.read_text())["seconds"] > 0
    lines = log.read_text()
    cost.write_text("as it was")
    log.unlink()
    subprocess.run(command, cwd=tmp_path, check=True)
    assert log.read_text() == lines
    assert cost.read_text() == "as it was"
    assert not list((tmp_path / "logs").glob("*.ccache"))


def test_the_line_through_seconds_over_kernels() -> None:
    objects = [Measured(n, 2.5 + 0.25 * n, 300 + n) for n in (1, 4, 9, 30)]
    assert fitted(objects) == Cost(2.5, 0.25, 330)
    assert fitted([Measured(1, 60, 900), Measured(1, 50, 3400)]) == Cost(0, 55, 3400)
    assert fitted([Measured(4, 8, 1), Measured(4, 12, 1)]) == Cost(0, 2.5, 1)
    # More kernels took less: the machine was busy.
    assert fitted([Measured(1, 9, 1), Measured(3, 3, 1)]) == Cost(0, 3, 1)


def test_other_targets_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    write(path, {"sm80": Cost(2.5, 0.05, 300), "sm90a": Cost(30, 2, 3400)})
    write(path, {"sm80": Cost(2.0, 0.1, 310)})
    assert path.read_text() == (
        "# What compiling was measured to take: kernelmint costs --write\n"
        "costs:\n"
        "  sm80: {file_seconds: 2.0, kernel_seconds: 0.1, mib: 310}\n"
        "  sm90a: {file_seconds: 30, kernel_seconds: 2, mib: 3400}\n"
    )


def test_nothing_measured_is_a_sentence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    assert "manifest.json is absent" in CliRunner().invoke(main, []).output
