"""Specs that are symbolic links, as Bazel, Nix, uv and `cp -rs` lay them out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen import pipeline, scaffold
from codegen.build.compile_logged import log_path
from codegen.core import home, staleness
from codegen.core.manifest import Selection
from codegen.tree import writer


def files(project: Path, specs: Path) -> dict[str, str]:
    """The tree of specs, written; it is not stale."""
    tree = pipeline.generate([specs], project / "generated", Selection("default", None))
    writer.write(project / "generated", tree.files)
    assert staleness.stale(project / "generated")[0] == []
    return tree.files


@pytest.mark.parametrize("linked", ["files", "relative files", "families", "specs", "all"])
def test_the_tree_is_that_of_the_files(workspace, tmp_path, linked) -> None:
    """With the same names in it, wherever what is linked lies."""
    workspace.write("extra.cpp", "")
    path = workspace.demo / "family.yaml"
    path.write_text(f"{path.read_text()}build: {{sources: [extra.cpp]}}\n")
    specs = workspace.demo.parent
    expected = files(specs.parent, specs)
    project, store = tmp_path / "project", tmp_path / "store/a1b2c3-specs"
    shutil.copytree(specs, store)
    project.mkdir()
    copy = project / specs.name
    if linked in ("files", "relative files", "all"):
        for path in [path for path in store.rglob("*") if path.is_file()]:
            link = copy / path.relative_to(store)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path if linked == "files" else os.path.relpath(path, link.parent))
    if linked == "families":
        copy.mkdir()
        for path in store.iterdir():
            (copy / path.name).symlink_to(path)
    if linked == "specs":
        copy.symlink_to(store)
    if linked == "all":
        (tmp_path / "other").symlink_to(project)
        project, copy = tmp_path / "other", tmp_path / "other" / specs.name
    assert files(project, copy) == expected


def test_a_log_is_named_by_the_link(tmp_path) -> None:
    store = tmp_path / "store/1234"
    store.parent.mkdir()
    store.touch()
    (tmp_path / "specs/demo").mkdir(parents=True)
    (tmp_path / "specs/demo/a.cu").symlink_to(store)
    command = ["nvcc", "-c", str(tmp_path / "specs/demo/a.cu")]
    log = log_path(tmp_path, [tmp_path / "nowhere", tmp_path / "specs"], "sm80", command)
    assert log == tmp_path / "demo/a.cu.sm80.ptxas.log"


CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(links LANGUAGES NONE)
include("{sources}")
set(KERNELMINT_SPEC_DIRS "{specs}")
function(kernelmint_named what places)
endfunction()
kernelmint_install_specs(links pack OFF)
"""


@pytest.mark.parametrize("linked", ["files", "relative files", "family", "specs"])
def test_a_wheel_has_the_files_that_links_lead_to(tmp_path, linked) -> None:
    """So the pack's kernels can be built on demand where they were not."""
    store, specs = tmp_path / "store/a1b2c3", tmp_path / "project/kernel_specs"
    scaffold.create("demo", store)
    (store / "notes.txt").touch()
    specs.parent.mkdir()
    if linked == "specs":
        specs.symlink_to(store)
    elif linked == "family":
        specs.mkdir()
        (specs / "demo").symlink_to(store / "demo")
    else:
        (specs / "demo").mkdir(parents=True)
        for path in (store / "demo").iterdir():
            place = path if linked == "files" else os.path.relpath(path, specs / "demo")
            (specs / "demo" / path.name).symlink_to(place)
    text = CMAKE.format(sources=home.CMAKE / "sources.cmake", specs=specs)
    (specs.parent / "CMakeLists.txt").write_text(text)
    for command in (["-B", "build"], ["--install", "build", "--prefix", str(tmp_path / "wheel")]):
        done = subprocess.run(
            [Path(sys.executable).with_name("cmake"), *command],
            cwd=specs.parent,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    installed = {p.name: p for p in (tmp_path / "wheel/pack/kernel_specs/demo").iterdir()}
    written = {p.name: p for p in (store / "demo").iterdir() if p.name != "test_demo.py"}
    assert installed.keys() == written.keys()
    for name, path in installed.items():
        assert not path.is_symlink()
        assert path.read_text() == written[name].read_text()
