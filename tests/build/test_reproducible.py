"""Two builds of one tree, in two folders, by two users and at two times: the same bytes, CUDA's
included."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from codegen import scaffold

from .pack_project import ROOT, PackProject
from .test_editable_packs import HOOK

pytestmark = pytest.mark.build

# Sources beside the generated ones, with what is internal to a file, and with its path.
CUDA = """\
#include <cstdio>
namespace {
__device__ int times = 2;
__global__ void twice(int* x) { *x *= times; if (*x < 0) printf(__FILE__); }
}  // namespace
void run(int* x) { twice<<<1, 1>>>(x); }
"""
CPP = """\
#include <stdexcept>
void refuse() { throw std::runtime_error(__FILE__); }
"""
# A command of another user on another host, as far as the command can see.
ELSEWHERE = (
    *("unshare", "--user", "--map-root-user", "--uts", "sh", "-c"),
    *('hostname elsewhere; exec unshare --user --map-user=1234 "$@"', "sh"),
)


def project(folder: Path) -> Path:
    scaffold.create_project("own", folder)
    family = folder / "kernel_specs/own_scale_add"
    for target, name, text in ("sm80", "twice.cu", CUDA), ("cpu", "refuse.cpp", CPP):
        (family / name).write_text(text)
        spec = family / f"{target}.yaml"
        spec.write_text(f"{spec.read_text()}build: {{sources: [{name}]}}\n")
    PackProject(folder).regenerate()
    (folder / "dist").mkdir()
    return folder


def wheel(folder: Path, home: Path, *before: str, **process: Any) -> bytes:
    settings = {
        "cmake.define.CMAKE_CUDA_ARCHITECTURES": "80",
        "cmake.define.KERNELMINT_ISAS": "native",
        "install.strip": "false",  # names in symbol tables are the same
    }
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        **process.pop("environment", {}),
    }
    done = subprocess.run(
        [*before, sys.executable, "-c", HOOK, "build_wheel", json.dumps(settings)],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, **process,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    (built,) = folder.glob("dist/*.whl")
    return built.read_bytes()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_wheels_of_one_tree_in_two_folders_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by two users, on hosts of two names, where the system lets a user seem another."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first = wheel(project(tmp_path / "one"), tmp_path)
    other, home = project(tmp_path / "another/and longer"), tmp_path / "home"
    home.mkdir()
    for path in other.rglob("*.py"):
        path.chmod(0o600)
    environment = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "MAX_JOBS": "1", "TMPDIR": str(home)}
    is_refused = subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode
    time.sleep(2)  # a zip file's times are of two seconds
    before = () if is_refused else ELSEWHERE
    second = wheel(other, home, *before, umask=0o077, environment=environment)
    assert second == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert not [
            name for name in archive.namelist() if str(tmp_path).encode() in archive.read(name)
        ]
