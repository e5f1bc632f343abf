"""`codegen new`: a family that builds, dispatches and passes its own test with no other edit."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from codegen import scaffold
from tests.build.few_kernels import FAST, pack_alone

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    "cpu.h", "cpu.yaml", "family.yaml",
    "reference.py", "sm80.cuh", "sm80.yaml",
    "test_scale_add.py",
]  # fmt: skip


def test_scaffolds_a_cpu_and_an_sm80_target(workspace) -> None:
    result = workspace.run("new", "scale_add")
    assert result.status == 0
    folder = workspace.root / "kernel_specs/scale_add"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    listed = workspace.run("list", "--where", "family == scale_add").stdout.splitlines()
    assert [key for key in listed if ".cpu." in key]
    assert [key for key in listed if ".sm80." in key]
    assert workspace.run("regenerate").status == 0
    assert workspace.run("check").status == 0


def test_refuses_to_overwrite(workspace) -> None:
    before = (workspace.demo / "family.yaml").read_text()
    result = workspace.run("new", "demo")
    assert result.status == 2
    assert result.stderr == "error: kernel_specs/demo is already there\n"
    assert (workspace.demo / "family.yaml").read_text() == before


def test_two_projects_have_no_family_in_common(workspace) -> None:
    for name in ("first", "second"):
        assert workspace.run("init", name).status == 0
        (family,) = (workspace.root / name / "kernel_specs").iterdir()
        assert family.name == f"{name}_scale_add"


def test_a_bare_project_has_no_family_until_one_is_added(workspace) -> None:
    result = workspace.run("init", "bare", "--bare")
    assert result.status == 0, result.output
    project = workspace.root / "bare"
    assert [*(project / "kernel_specs").iterdir()] == []
    assert not (project / "generated").exists()
    printed = [line.strip() for line in result.stdout.partition("next:\n")[2].splitlines()]
    assert printed[:3] == ["cd bare", "kernelmint new bare_FAMILY", "kernelmint regenerate"]
    for path in project.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
    assert "scale_add" not in "".join(p.read_text() for p in project.rglob("*") if p.is_file())
    scaffold.create("bare_scan", project / "kernel_specs")
    done = workspace.run(
        "regenerate", "--specs", str(project / "kernel_specs"), "--out", str(project / "generated")
    )
    assert done.status == 0, done.output


WHEEL = "kernelmint-0.3.0-cp312-abi3-linux_x86_64.whl"
NOT_ISOLATED = [
    "pip install scikit-build-core",
    "python -m kernelmint.backend | xargs -r pip install",
    "pip install --no-build-isolation -e '.[test]'",
]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, ["pip install -e '.[test]'"]),  # an index has it
        (
            {"url": "file://{site}/a%20wheel/" + WHEEL, "archive_info": {}},
            ["export PIP_FIND_LINKS='{site}/a wheel'", "pip install -e '.[test]'"],
        ),
        ({"url": f"file:///gone/{WHEEL}", "archive_info": {}}, NOT_ISOLATED),
        ({"url": "file:///a/clone", "dir_info": {"editable": True}}, NOT_ISOLATED),
        ({"url": "https://host/clone", "vcs_info": {"vcs": "git"}}, NOT_ISOLATED),
    ],
)
def test_init_prints_what_installs_it_with_this_kernelmint(
    workspace, monkeypatch, tmp_path_factory, record, expected
) -> None:
    """By what PEP 610 has pip write down."""
    site = tmp_path_factory.mktemp("site")
    (site / "a wheel").mkdir()
    (site / "a wheel" / WHEEL).write_text("")
    info = site / "kernelmint-0.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelmint\nVersion: 0.3.0\n")
    if record is not None:
        (info / "direct_url.json").write_text(json.dumps(record).replace("{site}", str(site)))
    monkeypatch.setattr("sys.path", [str(site)])
    printed = workspace.run("init", "my_kernels").stdout.partition("next:\n")[2]
    expected = [line.replace("{site}", str(site)) for line in expected]
    assert [line.strip() for line in printed.splitlines()] == ["cd my_kernels", *expected, "pytest"]
    assert '"kernelmint>=0.3"' in (workspace.root / "my_kernels/pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["numpy"], "'numpy' is a module that is installed here, or that Kernelmint needs"),
        (["rich"], "'rich' is a module that is installed here, or that Kernelmint needs"),
        (["json"], "'json' is a module of Python's standard library"),
        (["codegen"], "'codegen' is a module that is installed here"),
        (["test"], "'test' is a module of Python's standard library"),
        (["tests"], "'tests' is a folder of the project beside its package"),
        (["generated"], "'generated' is a folder of the project"),
        (["x", "--family", "class"], "'class' is a C++ keyword"),
        (["x", "--family", "Scale"], "lower-case letters and digits"),
        (["x", "--family", "x"], "cannot name both the package and its family"),
        (["x", "--bare", "--family", "y"], "--bare makes no family: leave out --family y"),
        (["x", "--folder", "a\nb"], "cannot be written into a file"),
    ],
)
def test_init_refuses_names_that_cannot_be_and_writes_nothing(workspace, arguments, reason) -> None:
    before = sorted(workspace.root.rglob("*"))
    result = workspace.run("init", *arguments)
    assert result.status == 2
    assert reason in result.stderr
    assert sorted(workspace.root.rglob("*")) == before


def test_a_project_that_cannot_be_written_leaves_nothing(workspace, monkeypatch) -> None:
    written = Path.write_text

    def full(path: Path, *arguments: str, **options: str) -> int:
        if path.name == "README.md":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    result = workspace.run("init", "x")
    assert result.status == 2
    assert result.stderr == "error: cannot write x: No space left on device\n"
    assert not (workspace.root / "x").exists()


def test_init_without_an_installed_kernelmint_says_what_to_install(workspace, monkeypatch) -> None:
    monkeypatch.setattr("sys.path", [])
    result = workspace.run("init", "my_kernels")
    assert result.status == 2
    assert f"run pip install {ROOT}\n" in result.stderr
    assert not (workspace.root / "my_kernels").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Scale", "lower-case letters and digits"),
        ("../x", "lower-case letters and digits"),
        ("a__b", "lower-case letters and digits"),
        ("class", "is a C++ keyword"),
        ("lambda", "is a Python keyword"),
        ("runtime", "is reserved in generated code"),
    ],
)
def test_refuses_names_that_cannot_be(workspace, name, reason) -> None:
    result = workspace.run("new", name)
    assert result.status == 2
    assert reason in result.stderr


def test_a_folder_that_cannot_be_written(workspace) -> None:
    (workspace.root / "file").write_text("")
    result = workspace.run("new", "scale_add", "--specs", "file")
    assert result.status == 2
    assert "cannot write file/scale_add: Not a directory" in result.stderr


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.build
def test_builds_dispatches_and_passes_its_own_test_with_no_other_edit(tmp_path) -> None:
    specs, out, site = tmp_path / "specs", tmp_path / "generated", tmp_path / "site"
    codegen = (sys.executable, "-m", "codegen")
    run(*codegen, "new", "scale_add", "--specs", specs, cwd=ROOT)
    run(*codegen, "regenerate", "--specs", specs, "--out", out, cwd=ROOT)
    log = run(
        *(sys.executable, "-m", "pip", "install", ".", "--target", site),
        *("--no-deps", "--no-build-isolation", "--verbose"),
        *(*pack_alone(tmp_path / "build"), *FAST),
        *("-C", f"cmake.define.KERNELMINT_GENERATED_DIR={out}"),
        *(() if torch.cuda.is_available() else ("-C", "cmake.define.CMAKE_CUDA_ARCHITECTURES=80")),
        cwd=ROOT,
    )
    assert "Kernelmint: building pack kernelmint: 3 scale_add.cpu, 3 scale_add.sm80" in log
    # -S: an editable install of the checkout must not stand in for what was just built.
    packages = sysconfig.get_path("purelib")
    paths = (site, packages, os.environ.get("PYTHONPATH", ""))
    installed = {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}
    report = run(
        *(sys.executable, "-S", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"),
        *("--rootdir", tmp_path, "--import-mode=importlib", specs / "scale_add"),
        cwd=tmp_path,
        **installed,
    )
    has_gpu = torch.cuda.is_available()
    assert ("26 passed" if has_gpu else "13 passed, 12 skipped") in report
    if not has_gpu:
        assert "no CUDA device" in report
    # The installed codegen has its templates with it.
    run(sys.executable, "-S", "-m", "codegen", "new", "another", cwd=tmp_path, **installed)
    run(sys.executable, "-S", "-m", "codegen", "regenerate", cwd=tmp_path, **installed)
