"""What some architectures of a target cannot launch is compiled for the others alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import runtime
from tools.ptx_report.fingerprints import Manifest
from tools.ptx_report.records import read_csv

from .pack_project import PackProject

pytestmark = pytest.mark.build

SMALL, LARGE = (f"light.sm80.f32-t256-n1024-k{kib}" for kib in (4, 100))


def project_in(root: Path, family: str = "light") -> PackProject:
    """One kernel with 4 KiB of shared memory, and one with 100, which 8.6 does not have."""
    project = PackProject(root, f"{family}_pack")
    done = project.run(sys.executable, "-m", "codegen", "new", family)
    assert done.returncode == 0, done.stdout
    spec = root / "kernel_specs" / family / "sm80.yaml"
    text = spec.read_text()
    for old, new in (
        ("constraints:", "  kib: {type: int, token: k}\nconstraints:"),
        ("block: threads}", "block: threads, shared_memory: 1024 * kib}"),
        ("tile: [1024]", "tile: [1024], kib: [4, 100]"),
    ):
        assert old in text
        text = text.replace(old, new)
    spec.write_text(text)
    return project


ONLY = ("--where", "target == 'sm80' and dtype == 'f32'")


def test_an_architecture_leaves_out_what_it_cannot_launch(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    project.build("-DCMAKE_CUDA_ARCHITECTURES=80;86", regenerate=ONLY)
    rows = read_csv(project.pack / "ptxas.csv")
    assert sorted((row.key, row.arch) for row in rows) == [
        (LARGE, "sm_80"), (SMALL, "sm_80"), (SMALL, "sm_86")
    ]  # fmt: skip
    assert Manifest(project.pack / "manifest.json").absent(rows, ["80", "86"]) == []
    pack = runtime.load_pack(project.pack)
    assert pack.architectures == ("80", "86")
    assert [info.built for info in runtime.kernels("light")] == [True, True]


def test_where_no_architecture_can_launch_it_the_pack_has_no_code_for_it(tmp_path: Path) -> None:
    """It is listed with the reason, an error where it is asked for, and the others are there."""
    project = project_in(tmp_path, "narrow")
    printed = project.build("-DCMAKE_CUDA_ARCHITECTURES=86", regenerate=ONLY)
    assert (
        "narrow.sm80: kernels with more than 99 KiB of shared memory are left out: no architecture "
        "asked for can launch them" in printed
    )
    rows = read_csv(project.pack / "ptxas.csv")
    small, large = SMALL.replace("light", "narrow"), LARGE.replace("light", "narrow")
    assert [(row.key, row.arch) for row in rows] == [(small, "sm_86")]
    runtime.load_pack(project.pack)
    built = {info.key: (info.built, info.reason) for info in runtime.kernels("narrow")}
    reason = (
        "takes 102,400 bytes of shared memory a thread block, and no architecture that pack "
        "narrow_pack "
        "was built for (8.6) has that much"
    )
    assert built[large] == (False, reason)
    assert built[small][0]
    with pytest.raises(runtime.TargetUnavailable, match=re.escape(reason)):
        runtime.kernel(large)
