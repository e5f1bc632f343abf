"""`kernelmint demo`: every kernel that can run here is called, and what is said of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import runtime
from runtime import KernelInfo, manifest, packs
from tools import demo, problem

CPU = torch.device("cpu")
CELLS = ["0"] * 6


def first(family: str) -> KernelInfo:
    return next(info for info in runtime.kernels(family, "cpu") if info.available)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Only one kernel of each family is really called; the keys of those that are called."""
    called: list[str] = []
    for name in ("beside_pytorch", "beside_reference"):
        real = getattr(demo, name)

        def check(info: KernelInfo, device: torch.device, real=real) -> demo.Checked:
            is_first = not any(key.startswith(f"{info.family}.") for key in called)
            called.append(info.key)
            return real(info, device) if is_first else demo.Checked(0.5, (info.key, CELLS))

        monkeypatch.setattr(demo, name, check)
    return called


def test_kernels_of_every_family_that_can_run_here_are_called(few, capsys) -> None:
    assert demo.demonstrate(everything=True) == 0
    checkable = {name for name in packs.families() if manifest.family(name).reference is not None}
    available = [info for info in runtime.kernels() if info.available]
    assert sorted(few) == sorted(info.key for info in available if info.family in checkable)
    families = {key.partition(".")[0] for key in few}
    assert {"flash_forward", "flash_prefill", "flash_decode", "block_sparse"} <= families
    printed = capsys.readouterr().out
    assert all(key in printed for key in few)
    assert "every kernel is right" in printed
    *_, took, then, _, _ = printed.splitlines()
    assert re.fullmatch(r"called and checked in \d+ s", took)
    assert then.startswith("next: ")


def test_a_wrong_kernel_is_named_and_counts(monkeypatch, capsys) -> None:
    def half(info: KernelInfo, device: torch.device) -> demo.Checked:
        return demo.Checked(float("inf") if "bf16" in info.key else 0.0, (info.key, CELLS))

    monkeypatch.setattr(demo, "beside_pytorch", half)
    monkeypatch.setattr(demo, "beside_reference", half)
    assert demo.demonstrate(everything=False) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^WRONG: flash_forward\.cpu\.bf16-", printed, re.MULTILINE)
    assert "every kernel is right" not in printed


def test_a_kernel_whose_results_are_beyond_rounding_is_wrong(monkeypatch) -> None:
    info = first("flash_prefill")
    right = demo.beside_reference(info, CPU)
    assert right.badness == 0
    assert right.row[1][2].startswith("0 of ")
    monkeypatch.setattr(problem, "UNITS", dict.fromkeys(problem.UNITS, 0.0))
    assert demo.beside_reference(info, CPU).badness > 1


def test_in_a_file_the_tables_of_make_demo_fit_a_page() -> None:
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    page = dict(re.findall(r"^demo: export (\w+) := (\S+)$", makefile, re.MULTILINE))
    assert {*page} == {"TERM", "TTY_COMPATIBLE"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.ptx_report", "--installed"],
        env={**os.environ, **page}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) < 70
    assert max(map(len, lines)) <= 90
    assert "\x1b" not in done.stdout
