"""examples/cutlass_gemm: a foreign library's kernels as a pack, a configuration an architecture."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.core.ptxas_rows import read_csv
from codegen.ptxas.fingerprints import Manifest

from .pack_project import ROOT, PackProject

pytestmark = [
    pytest.mark.build,
    pytest.mark.xdist_group("cutlass"),  # which is built once
    pytest.mark.skipif(
        importlib.util.find_spec("cutlass_library") is None,
        reason="needs CUTLASS's headers: pip install --no-deps nvidia-cutlass",
    ),
]
BESIDE_TORCH = """
import torch, runtime
pack = runtime.load_pack(PACK)
infos = runtime.kernels("cutlass_gemm")
print(*(f"{info.key} {info.registers} {info.spills}" for info in infos), sep="\\n")
if torch.cuda.is_available():
    for info in infos:
        if info.available:
            a, b = torch.randn(2, 256, 256, device="cuda", dtype=torch.bfloat16)
            want = a.double() @ b.double().T + b[0].double()
            print((runtime.kernel(info.key)(a, b, b[0]).double() - want).abs().max())
else:
    try:
        runtime.kernel(infos[0].key)
    except runtime.TargetUnavailable as error:
        print(error)
print(runtime.cutlass_gemm.__name__, torch.ops.kernelmint.cutlass_gemm)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> PackProject:
    root = tmp_path_factory.mktemp("cutlass")
    shutil.copytree(ROOT / "examples/cutlass_gemm/kernel_specs", root / "kernel_specs")
    made = PackProject(root, "cutlass_pack")
    made.build("-DCMAKE_CUDA_ARCHITECTURES=80;90a", regenerate=("--set", "one"))
    return made


def test_the_library_exports_its_entry_and_needs_no_driver(project) -> None:
    library = project.pack / "cutlass_gemm.so"
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["kernelmint_library"]
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic.stdout)
    assert not [name for name in needed if "cuda" in name or "stdc++" in name]


def test_each_architecture_has_its_row_under_its_key(project) -> None:
    """CUTLASS's kernels do, since a wrapper names the configuration."""
    rows = read_csv(project.pack / "ptxas.csv")
    manifest = Manifest(project.pack / "manifest.json")
    assert {(row.key, row.arch) for row in rows} == {
        (key, f"sm_{key.split('.')[1].removeprefix('sm')}") for key in manifest.kernels
    } | {(key, "sm_90") for key in manifest.kernels if ".sm80." in key}
    assert not any(row.spilled or row.c75 for row in rows)
    assert manifest.absent(rows, ["80", "90a"]) == []


def test_it_loads_beside_torch(project) -> None:
    done = project.run(sys.executable, "-c", BESIDE_TORCH.replace("PACK", repr(str(project.pack))))
    assert done.returncode == 0, done.stdout
    assert "cutlass_gemm.sm80.bf16-bt-bias-m128-n128-k32-wm2-wn2-s4" in done.stdout
    assert "cutlass_gemm kernelmint.cutlass_gemm" in done.stdout


def test_no_header_of_cutlass_is_in_the_pack(project) -> None:
    shipped = [path for path in project.pack.rglob("*") if path.is_file()]
    assert {path.name for path in shipped} >= {"sm80.cuh", "sm90a.cuh", "elements.cuh"}
    assert not [path for path in shipped if "cutlass/" in str(path.relative_to(project.pack))]
    settings = json.loads((project.pack / "pack.json").read_text())["settings"]
    (name,) = [name for name in settings if name.startswith("headers of package:cutlass_library")]
    assert len(settings[name]) == 64


def test_the_example_is_a_whole_project() -> None:
    """What `kernelmint init` writes, with other kernels."""
    folder = ROOT / "examples/cutlass_gemm"
    assert (
        "kernelmint_add_pack(cutlass_pack GENERATED generated"
        in (folder / "CMakeLists.txt").read_text()
    )
    text = (folder / "pyproject.toml").read_text()
    assert 'cutlass_pack = "cutlass_pack._pack"' in text
    assert "nvidia-cutlass==4.2.*" in text
    assert Path(folder / "kernel_specs/cutlass_gemm/family.yaml").read_text().count("4.2.*") == 1
