"""Specs that are symbolic links, as Bazel, Nix, uv and `cp -rs` lay them out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from codegen import pipeline, staleness
from codegen.build.compile_logged import log_path
from codegen.manifest import Selection
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
