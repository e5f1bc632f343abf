"""`make wheel`, on a few kernels: its tag, its checks, and the wheel in a fresh environment."""

from __future__ import annotations

import calendar
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from . import few_kernels
from .few_kernels import PYTHONS, ROOT, run

pytestmark = [pytest.mark.build, pytest.mark.xdist_group("wheel")]

OTHER = os.environ.get("KERNELMINT_OTHER_PYTHON")

ATTEND = """
import kernelmint, torch
q, k, v = torch.randn(3, 2, 47, 4, 64)
o = kernelmint.attention(q, k, v)
double = [t.double().transpose(1, 2) for t in (q, k, v)]
want = torch.nn.functional.scaled_dot_product_attention(*double).transpose(1, 2)
error = (o.double() - want).abs().max().item()
assert error < 1e-5, error  # fp32 sums of 47 products of standard normals
print(kernelmint.__version__, kernelmint.__file__)
"""


# Every symbol that the extension asks this Python for is there; importing it takes PyTorch.
LOAD = """
import ctypes, importlib.util, os, pathlib
(folder,) = importlib.util.find_spec("runtime").submodule_search_locations
(extension,) = pathlib.Path(folder).glob("_native*.so")
ctypes.PyDLL(str(extension), mode=os.RTLD_NOW).PyInit__native
print(extension)
"""


# Each command's modules are imported when it is looked up.
ALL_COMMANDS = """
import click
from kernelmint.__main__ import main
context = click.Context(main)
assert all(main.get_command(context, name) for name in main.list_commands(context))
"""


@pytest.mark.parametrize("minor", PYTHONS)
def test_a_wheel_installs_and_loads_in_every_python_that_is_there(minor, wheels, tmp_path) -> None:
    pip = few_kernels.environment(tmp_path / "environment", PYTHONS[minor])
    python = tmp_path / "environment/bin/python"
    run(*pip, "install", "--quiet", wheels(minor))
    stem = "_native.abi3.so" if minor >= 12 else f"_native.cpython-3{minor}"
    assert stem in run(python, "-c", LOAD, cwd=tmp_path)
    kernelmint = tmp_path / "environment/bin/kernelmint"
    run(kernelmint, "new", "scale_add", cwd=tmp_path)
    assert "scale_add.cpu." in run(kernelmint, "list", cwd=tmp_path)


def test_it_has_a_manylinux_tag_and_serves_later_pythons_from_3_12_on(made) -> None:
    wheel, _ = made
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    interpreter = "cp312-abi3" if sys.version_info >= (3, 12) else f"cp{version}-cp{version}"
    assert re.fullmatch(
        rf"kernelmint-[\d.]+-{interpreter}-manylinux_2_\d+_\w+(\.manylinux\w+)*\.whl", wheel.name
    )


@pytest.mark.skipif(OTHER is None, reason="KERNELMINT_OTHER_PYTHON names no Python")
def test_it_serves_the_pytorch_of_another_python(made, tmp_path) -> None:
    """One that has what Kernelmint requires, and another PyTorch; its version suits the wheel."""
    wheel, _ = made
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    shutil.copy(Path(__file__).parent / "other_pytorch.py", tmp_path)
    run(OTHER, tmp_path / "other_pytorch.py", cwd=tmp_path)


def test_its_files_are_of_the_time_of_the_last_commit(made) -> None:
    """Not of the build's: a wheel of one tree is the same wheel."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct")
    of_commit = time.gmtime(int(epoch))
    with zipfile.ZipFile(made[0]) as archive:
        for info in archive.infolist():
            seconds = calendar.timegm((*info.date_time, 0, 0, 0)) - calendar.timegm(of_commit)
            assert -2 < seconds <= 0, info


def test_it_was_checked_and_its_sizes_are_shown(made) -> None:
    wheel, printed = made
    assert "PASSED" in printed  # twine's word
    assert re.search(rf"{wheel.name}: [\d.]+ MB, unpacked [\d.]+$", printed, re.MULTILINE)
    assert re.search(r"^ +[\d.]+ MB  \S+\.so$", printed, re.MULTILINE)


def test_it_holds_what_an_install_uses_and_its_description_needs_no_neighbours(made) -> None:
    with zipfile.ZipFile(made[0]) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        description = archive.read(metadata).decode()
    unused = r"tools/(build/|bench_)|/test_\w+\.py$|^(docs|examples|tests|generated|runtime/src)/"
    assert not [name for name in names if re.search(unused, name)]
    assert {"kernelmint/tools/bench/__main__.py", "kernelmint/include/launch.h"} <= {*names}
    assert "kernelmint init my_kernels" in description
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", description)


@pytest.fixture(scope="module")
def environment(made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with the wheel and what it asks for: no PyTorch."""
    folder = tmp_path_factory.mktemp("environment")
    run(*few_kernels.environment(folder), "install", "--quiet", made[0])
    return folder / "bin"


def test_without_pytorch_it_builds_and_says_what_calls_take(
    environment, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    run(environment / "kernelmint", "new", "scale_add", cwd=tmp_path)
    run(environment / "kernelmint", "regenerate", cwd=tmp_path)
    assert "is up to date" in run(environment / "kernelmint", "check", cwd=tmp_path)
    key = "scale_add.cpu.f32-n8192"
    assert key in run(environment / "kernelmint", "build", "scale_add", "--key", key, cwd=tmp_path)
    assert key in run(environment / "kernelmint", "cache", cwd=tmp_path)
    shown = run(environment / "kernelmint", "info", cwd=tmp_path)
    assert "PyTorch     not installed" in shown
    assert "flash_forward     cpu " in shown
    done = subprocess.run(
        [environment / "python", "-c", "import kernelmint; kernelmint.attention"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'run `pip install "kernelmint[torch]"`' in done.stderr
    log = ROOT / "tests/ptx_report/data/nvcc13.5_4arch_warnings.log"
    assert run(environment / "ptx-report", log, cwd=tmp_path)


def test_with_pytorch_it_attends_from_any_folder(environment, tmp_path) -> None:
    (site,) = environment.parent.glob("lib/python*/site-packages")
    parent = next(p for p in map(Path, sys.path) if p.name == "site-packages" and p.is_dir())
    (site / "parent.pth").write_text(f"{parent}\n")  # this test's environment has PyTorch
    run(environment / "python", "-c", ALL_COMMANDS, cwd=tmp_path)
    for folder in (tmp_path, Path("/")):
        assert str(site) in run(environment / "python", "-c", ATTEND, cwd=folder)
        assert "right" in run(environment / "kernelmint", "sanity-check", cwd=folder)

    # Rows in the installed pack would decide nothing.
    done = subprocess.run(
        [environment / "kernelmint", "tune", "flash_forward", "--target", "cpu"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cpu.tuned.yaml belongs to the installed pack kernelmint" in done.stderr
    assert "--out" in done.stderr
