"""CUDA toolkits: each compiles a few kernels of CUDA in an empty folder, whose registers, spills
and machine code are then read. None of them runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from codegen.build import toolkits

from .results import Outcome
from .work import ROOT, AbsentError, Work

_ARCHITECTURES = "80;90a"
# Products by mma.sync and copies by cp.async; wgmma and TMA; a sequence's keys split over blocks.
_KERNELS = " or ".join(
    f"(dtype == 'fp16' and {condition})"
    for condition in (
        "target == 'sm80' and d_head == 64 and B_r == 64 and B_c == 64 and not causal",
        "target == 'sm90a' and d_head == 64 and B_r == 192 and not causal",
        "target == 'sm80' and d_head == 256 and stages == 2 and n_warps == 4 and not paged",
    )
)


def check_nvcc(version: str, work: Work) -> Outcome:
    """Checks a version of nvcc such as 13.1: the machine's, or else the index's."""
    toolkit = _toolkit(version, work)
    generated = work.folder / "generated"
    work.run(sys.executable, "-m", "codegen", "regenerate", "--out", generated, "--where", _KERNELS)
    settings = {
        "CMAKE_CUDA_COMPILER": toolkit.command[-1],
        "CMAKE_CUDA_ARCHITECTURES": _ARCHITECTURES,
        "KERNELMINT_GENERATED_DIR": generated,
    }
    pack = work.cmake(ROOT, settings, "kernelmint_report") / "packs/kernelmint"
    file = work.folder / "report.json"
    shown = work.run(
        *(sys.executable, "-m", "tools.ptx_report", "--sass", "--json", file, "--manifest"),
        generated / "manifest.json",
        *pack.glob("*.so"),
    )
    is_wrong = any(
        row["unwritten"] or row["in_flight"] for row in json.loads(file.read_text())["rows"]
    )
    return Outcome(
        "failed" if is_wrong else "compiled",
        f"nvcc {toolkit.version}, for {_ARCHITECTURES.replace(';', ' and ')}; compiled only: "
        f"{shown.splitlines()[-1]}",
    )


def _toolkit(version: str, work: Work) -> toolkits.Toolkit:
    """Returns the machine's toolkit, or the index's, which is put where the work is cleaned."""
    try:
        return toolkits.find(version)
    except toolkits.ToolkitError:
        folder = work.folder / "environment"
        shutil.rmtree(folder, ignore_errors=True)
    requirement = f"cuda-toolkit[nvcc,cccl]=={version}.*"
    quiet = ("--quiet", "--no-cache-dir")
    work.pip(Path(sys.executable), "install", *quiet, "--target", folder, requirement)
    try:
        return toolkits.find(str(folder))
    except toolkits.ToolkitError:
        raise AbsentError(
            f"no nvcc {version} is named by CUDACXX, on PATH or in /usr/local/cuda*, nor in the "
            f"index's {requirement}"
        ) from None
