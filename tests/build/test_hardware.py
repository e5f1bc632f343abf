"""A kernel that some architectures of its target cannot launch, since it takes too much memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import runtime
from codegen.core.ptxas_rows import read_csv
from codegen.ptxas.fingerprints import Manifest
from runtime import manifest

from .pack_project import PackProject

pytestmark = pytest.mark.build

SMALL, LARGE = (f"light.sm80.f32-t256-n1024-k{kib}" for kib in (4, 100))


def project_in(root: Path) -> PackProject:
    """One kernel with 4 KiB of shared memory, and one with 100, which 8.6 does not have."""
    project = PackProject(root, "light_pack")
    done = project.run(sys.executable, "-m", "codegen", "new", "light")
    assert done.returncode == 0, done.stdout
    spec = root / "kernel_specs" / "light/sm80.yaml"
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


def test_it_is_compiled_for_each_and_the_pack_says_what_it_takes(tmp_path: Path) -> None:
    """By which the runtime knows, before a call, which device it fits."""
    project = project_in(tmp_path)
    project.build("-DCMAKE_CUDA_ARCHITECTURES=80;86", regenerate=ONLY)
    rows = read_csv(project.pack / "ptxas.csv")
    assert sorted((row.key, row.arch) for row in rows) == [
        (key, arch) for key in (LARGE, SMALL) for arch in ("sm_80", "sm_86")
    ]
    assert Manifest(project.pack / "manifest.json").absent(rows, ["80", "86"]) == []
    pack = runtime.load_pack(project.pack)
    assert [info.built for info in runtime.kernels("light")] == [True, True]
    (target,) = manifest.of_pack(pack, "light").targets
    memory = {kernel.key: kernel.shared_memory for kernel in target.kernels}
    assert memory == {SMALL: 4096, LARGE: 102_400}
