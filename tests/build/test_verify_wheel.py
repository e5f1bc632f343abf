"""`kernelmint verify WHEEL`: a wheel beside what its sources give, kernel by kernel, and why."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from codegen import scaffold
from codegen.build import dist_info
from codegen.core.elf import Elf
from kernelmint.__main__ import main as kernelmint

from .pack_project import PackProject
from .test_editable_packs import build

pytestmark = pytest.mark.build

SETTINGS = {"cmake.define.KERNELMINT_CUDA": "OFF", "cmake.define.KERNELMINT_ISAS": "baseline"}
FOR = ("-gencode=arch=compute_80,code=sm_80", "-Xcompiler=-fPIC")
LIBRARY = "own/_pack/own_scale_add.so"
KERNEL = """\
namespace kernelmint::configs::own::sm80 { struct t64 {}; struct t128 {}; }
using namespace kernelmint::configs::own::sm80;
__constant__ float scale = SCALE;
template <class Config> __global__ void scaled(float* x) { x[0] *= scale; }
template <class Config> __global__ void added(float* x) { x[0] += ADDED; }
template __global__ void scaled<t64>(float*);
template __global__ void added<t128>(float*);
"""


def git(project: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout of a project, with its wheel."""
    folder = tmp_path_factory.mktemp("verify") / "own"
    scaffold.create_project("own", folder)
    PackProject(folder).regenerate()
    (folder / "dist").mkdir()
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        build(folder, "build_wheel", **SETTINGS)
    return folder


@pytest.fixture
def wheel(project: Path) -> Path:
    (path,) = project.glob("dist/*.whl")
    return path


def verify(*words: str | Path) -> Result:
    return CliRunner().invoke(kernelmint, ["verify", *map(str, words)])


def altered(wheel: Path, folder: Path, changes: Mapping[str, Callable[[bytes], bytes]]) -> Path:
    """A copy of a wheel in which files were changed."""
    path = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name, bytes)(old.read(name)))
    return path


def in_text(library: bytes) -> bytes:
    """A library with another instruction."""
    file = Elf(library)
    (text,) = (section for section in file.sections if section.name == ".text")
    place = file.bounds(text)[0] + 64
    return library[:place] + bytes([library[place] ^ 1]) + library[place + 1 :]


def of_compiler(pack: bytes) -> bytes:
    described = json.loads(pack)
    described["settings"]["c++"] = "Clang 19.1.0"
    return json.dumps(described).encode()


def test_it_builds_the_recorded_revision_again_and_finds_the_same_bytes(
    project: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the checkout holds by then, and the environment says."""
    header = project / "kernel_specs/own_scale_add/cpu.h"
    text = header.read_text()
    monkeypatch.chdir(project)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    header.write_text(f"{text}// another line\n")
    try:
        result = verify(wheel)
    finally:
        header.write_text(text)
    assert result.exit_code == 0, result.output
    assert "the same bytes as the build of . at " in result.output


def test_code_that_nothing_explains_is_called_so(wheel: Path, tmp_path: Path) -> None:
    result = verify(altered(wheel, tmp_path, {LIBRARY: in_text}), "--against", wheel)
    assert result.exit_code == 1
    assert f"{LIBRARY}: .text (holds the kernels of own_scale_add.cpu)" in result.output
    assert "the wheel is not what its records say" in result.output


def test_another_compiler_explains_other_code(wheel: Path, tmp_path: Path) -> None:
    changes = {LIBRARY: in_text, "own/_pack/pack.json": of_compiler}
    result = verify(altered(wheel, tmp_path, changes), "--against", wheel)
    assert result.exit_code == 1
    assert "c++: Clang 19.1.0 -> GNU" in result.output
    assert "(decides host code)" in result.output
    assert "not what its records say" not in result.output


def test_files_and_records_that_differ_are_named(wheel: Path, tmp_path: Path) -> None:
    pack = altered(wheel, tmp_path, {"own/_pack/pack.json": of_compiler})
    result = verify(pack, "--against", wheel)
    assert result.exit_code == 0, result.output  # the code is the same
    assert "records of the build that differ: own/_pack/pack.json" in result.output
    (tmp_path / "other").mkdir()
    text = altered(wheel, tmp_path / "other", {"own/__init__.py": lambda text: text + b"#"})
    result = verify(text, "--against", wheel, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["files"] == {"own/__init__.py": "other content"}


def test_a_wheel_without_sources_or_that_is_damaged_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(wheel, tmp_path)
    result = verify(wheel.name)
    assert result.exit_code == 1
    assert "no sources of own 0.1.0: there is no pyproject.toml" in result.output
    metadata = "own-0.1.0.dist-info/METADATA"
    other = altered(wheel, tmp_path, {metadata: lambda text: text.replace(b"0.1.0", b"0.2.0")})
    assert (
        "is own 0.1.0: name its sources with --source" in verify(other, "--against", wheel).output
    )
    damaged = altered(wheel, tmp_path, {LIBRARY: lambda library: library[:5000]})
    assert f"{LIBRARY}: " in verify(damaged, "--against", wheel).output
    (tmp_path / "cut.whl").write_bytes(wheel.read_bytes()[:1000])
    assert "cut.whl: not a whole wheel" in verify("cut.whl").output
    bill = f"own-0.1.0.dist-info/{dist_info.BILL}"
    wrong = altered(wheel, tmp_path, {bill: lambda text: b'{"metadata": []}'})
    assert "not a whole wheel" in verify(wrong, "--against", wheel).output


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_kernels_of_gpus_are_compared_one_by_one(tmp_path: Path) -> None:
    wheels = []
    (tmp_path / "kernel.cu").write_text(KERNEL)
    for scale, added in (1, 1), (2, 1), (1, "x[1]"):
        folder = tmp_path / f"{scale} {added}"
        folder.mkdir()
        options = (f"-DSCALE={scale}", f"-DADDED={added}", "-shared", "-cudart=none", *FOR)
        command = ["nvcc", *options, "-o", folder / "own.so", "kernel.cu"]
        subprocess.run(command, cwd=tmp_path, check=True)
        wheels.append(folder / "own-1-py3-none-any.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.write(folder / "own.so", "own/_pack/own.so")
            archive.writestr("own-1.dist-info/METADATA", "Name: own\nVersion: 1\n")
    first, other_constant, other_code = wheels
    result = verify(other_code, "--against", first)
    assert result.exit_code == 1
    assert "device code: 1 of 2 kernels differ" in result.output
    assert "own.sm80.t128 (added) [sm_80]: other instructions" in result.output
    assert "device code differs, but no recorded source" in result.output
    result = verify(other_constant, "--against", first)
    assert "own.sm80.t64 [sm_80]: other constants" in result.output


def test_compilers_that_libraries_name_are_shown(wheel: Path, tmp_path: Path) -> None:
    def of_compiler(library: bytes) -> bytes:
        return in_text(library).replace(b"GCC: (", b"GCC, (").replace(b"clang", b"Clang")

    output = verify(altered(wheel, tmp_path, {LIBRARY: of_compiler}), "--against", wheel).output
    assert re.search(r"    compiled by (GCC, .* -> GCC: |.*Clang.* -> .*clang)", output), output
