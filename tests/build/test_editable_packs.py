"""An editable install of a pack and its wheel: for whom they are compiled, and what is once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from codegen import scaffold
from runtime import _native

from .pack_project import ROOT, PackProject

pytestmark = pytest.mark.build

CUDA = shutil.which("nvcc") is not None
HOOK = "import json, sys; from kernelmint import backend; hook, settings = sys.argv[1:]; "
HOOK += "getattr(backend, hook)('dist', json.loads(settings))"


def hook(project: Path, name: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """What pip calls, in this environment."""
    settings = {"cmake.define.KERNELMINT_CUDA": "ON" if CUDA else "OFF", **settings}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", HOOK, name, json.dumps(settings)],
        cwd=project, env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def build(project: Path, name: str, **settings: str) -> None:
    done = hook(project, name, **settings)
    assert done.returncode == 0, done.stdout[-4000:]


def isas(project: Path) -> list[str]:
    """The instruction sets of the last build."""
    (record,) = project.glob("build/cmake/packs/*/pack.json")
    return json.loads(record.read_text())["isas"]


def kernels(project: Path) -> dict[Path, int]:
    """The objects of kernels, and when each was compiled."""
    objects = project.glob("build/cmake/CMakeFiles/own_own_scale_add_*.dir/**/*.o")
    return {path: path.stat().st_mtime_ns for path in objects}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "own"
    scaffold.create_project("own", made)
    PackProject(made).regenerate()
    (made / "dist").mkdir()
    return made


def test_it_is_compiled_for_this_processor_and_the_wheel_compiles_the_rest(project: Path) -> None:
    native = _native.supported_cpu_isas()[-1]
    build(project, "build_editable")
    assert isas(project) == [native]
    first = kernels(project)
    assert len({path.suffixes[0] for path in first}) == 1 + CUDA

    build(project, "build_wheel")
    assert {"baseline", native} <= {*isas(project)}
    assert first.items() <= kernels(project).items()  # none of them again
    (wheel,) = project.glob("dist/*.whl")
    assert "own/_pack/kernel_specs/own_scale_add/cpu.h" in zipfile.ZipFile(wheel).namelist()

    both = kernels(project)
    build(project, "build_editable")
    assert isas(project) == [native]
    assert kernels(project) == both


def test_what_an_editable_install_was_told_is_not_told_to_the_wheel(project: Path) -> None:
    define = {"cmake.define.KERNELMINT_ISAS": "baseline", "cmake.define.KERNELMINT_CUDA": "OFF"}
    build(project, "build_editable", **define)
    build(project, "build_wheel", **{"cmake.define.KERNELMINT_CUDA": "OFF"})
    assert _native.supported_cpu_isas()[-1] in isas(project)


def test_a_folder_that_is_built_at_every_import_is_left_to_it(project: Path) -> None:
    rebuilt = {"editable.rebuild": "true", "cmake.define.KERNELMINT_CUDA": "OFF"}
    build(project, "build_editable", **rebuilt)
    done = hook(project, "build_wheel")
    assert done.returncode == 1
    assert "build/cmake belongs to an editable install that is built again" in done.stdout
    assert "Traceback" not in done.stdout
    build(project, "build_wheel", **{"build-dir": "build/wheel", **rebuilt})
