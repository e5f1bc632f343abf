"""Families that belong together share a folder: the same keys, the same C++, other includes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codegen.spec.load import load


@pytest.fixture
def grouped(workspace):
    """The family demo, one floor down in the folder of a group."""
    specs = workspace.root / "kernel_specs"
    (specs / "demo").rename(workspace.root / "demo")
    (specs / "some").mkdir()
    (workspace.root / "demo").rename(specs / "some/demo")
    (specs / "some/shared.h").write_text("")
    return workspace


def listed(workspace) -> list[str]:
    return workspace.run("list").stdout.splitlines()


def test_a_group_changes_nothing_but_where_headers_lie(workspace) -> None:
    keys = listed(workspace)
    assert workspace.run("regenerate").status == 0
    alone = workspace.tree()
    specs = workspace.root / "kernel_specs"
    (specs / "some").mkdir()
    workspace.demo.rename(specs / "some/demo")
    assert listed(workspace) == keys
    assert workspace.run("regenerate").status == 0
    tree = workspace.tree()
    assert tree.keys() == alone.keys()
    shard = next(text for name, text in sorted(tree.items()) if name.endswith(".cpp"))
    assert b"kernel_specs/some/demo/" in shard
    assert b'#include "some/demo/cpu.h"' in b"".join(tree.values())
    assert b'#include "some/demo/sm80.cuh"' in b"".join(tree.values())
    (family,) = json.loads(tree["manifest.json"])["families"]
    assert (family["name"], family["folder"]) == ("demo", "some/demo")


def test_a_stale_member_is_seen(grouped) -> None:
    assert grouped.run("regenerate").status == 0
    assert grouped.run("check").status == 0
    spec = grouped.root / "kernel_specs/some/demo/cpu.yaml"
    spec.write_text(spec.read_text().replace("tile: 64", "tile: 32"))
    result = grouped.run("check")
    assert result.status == 1
    staleness = Path(__file__).resolve().parents[2] / "codegen/core/staleness.py"
    result = grouped.python(str(staleness), str(grouped.out))
    assert "kernel_specs/some/demo/cpu.yaml has changed" in result.output


def test_yaml_below_a_family_is_none_of_its_specs(workspace) -> None:
    (workspace.demo / "data").mkdir()
    (workspace.demo / "data/cases.yaml").write_text("anything: goes\n")
    (family,) = load([workspace.root / "kernel_specs"])
    assert family.folder == "demo"


@pytest.mark.parametrize(
    "line",
    [
        "gradient: {function: ../shared.py:of_x, inputs: [x], outputs: [y]}",
        "front: ../shared.py:of_x",
        "reference: ../shared.py:of_x",
    ],
)
def test_a_function_may_be_the_groups(grouped, line) -> None:
    specs = grouped.root / "kernel_specs"
    (specs / "some/shared.py").write_text("def of_x(x, alpha): ...\n")
    file = specs / "some/demo/family.yaml"
    kept = [text for text in file.read_text().splitlines() if text[:9] != line[:9]]
    file.write_text("\n".join([*kept, line]))
    (family,) = load([specs])
    modules = [*(g.module for g in family.gradients), *(module for module, _ in family.fronts)]
    assert modules == ["kernel_specs.some.shared"] or family.reference == "../shared.py:of_x"
    (specs / "some/demo").rename(specs / "demo")
    (specs / "some/shared.py").rename(specs / "shared.py")
    (specs / "some/shared.h").unlink()
    result = grouped.run("list")
    assert "'../shared.py' must lie in the family's folder" in result.stderr


def test_a_groups_folder_has_a_name_that_cpp_can_quote(grouped) -> None:
    specs = grouped.root / "kernel_specs"
    (specs / "some").rename(specs / "so me")
    result = grouped.run("list")
    assert result.status == 2
    assert "family.yaml:1:9: the folder 'so me' of a group of families" in result.stderr


def test_a_family_is_in_one_folder_only(grouped) -> None:
    specs = grouped.root / "kernel_specs"
    (specs / "demo").mkdir()
    for path in (specs / "some/demo").iterdir():
        (specs / "demo" / path.name).write_bytes(path.read_bytes())
    result = grouped.run("list")
    assert "family 'demo' is also in kernel_specs/demo/family.yaml" in result.stderr


SHARED = """\
parameters:
  tile: {type: int, token: t}
constraints:
  - {that: tile != 48, because: 48 is odd}
limits: {tile: 128}
"""


def test_what_a_group_shares_goes_before_what_its_families_say(grouped) -> None:
    keys = listed(grouped)
    specs = grouped.root / "kernel_specs"
    (specs / "some/cpu.yaml").write_text(SHARED)
    own = specs / "some/demo/cpu.yaml"
    text = own.read_text()
    own.write_text(text.replace("parameters:\n  tile: {type: int, token: t}\n", ""))
    assert listed(grouped) == keys
    key = next(key for key in keys if key.startswith("demo.cpu."))
    result = grouped.run("explain", key.replace("-t64", "-t48"))
    assert "kernel_specs/some/cpu.yaml:4:5: tile != 48: 48 is odd" in result.output
    assert grouped.run("regenerate").status == 0
    (specs / "some/cpu.yaml").write_text(SHARED.replace("48 is odd", "it is"))
    staleness = Path(__file__).resolve().parents[2] / "codegen/core/staleness.py"
    result = grouped.python(str(staleness), str(grouped.out))
    assert "kernel_specs/some/cpu.yaml has changed" in result.output


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        ("limts: {tile: 128}\n", "some/cpu.yaml:1:1: unknown key 'limts' (did you mean 'limits'?)"),
        ("limits: {tiel: 128}\n", "some/cpu.yaml:1:10: unknown derived value 'tiel'"),
        (
            "parameters:\n  tile: {type: int}\n",
            "some/demo/cpu.yaml:4:10: duplicate key 'type' (first in kernel_specs/some/cpu.yaml on "
            "line 2)",
        ),
        ("kernel: cpu.h\n", "duplicate key 'kernel' (first in kernel_specs/some/cpu.yaml on line"),
        ("limits: [\n", "some/cpu.yaml:2:1: not YAML"),
        ("limits: 3\n", "some/cpu.yaml:1:9: must be a mapping, not 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_once_and_in_its_own_file(grouped, shared, problem) -> None:
    specs = grouped.root / "kernel_specs"
    (specs / "some/cpu.yaml").write_text(shared)
    (specs / "some/twin").mkdir()
    for path in (specs / "some/demo").iterdir():
        text = path.read_text().replace("family: demo", "family: twin")
        (specs / "some/twin" / path.name).write_text(text)
    result = grouped.run("list")
    assert result.status == 2
    assert problem in result.stderr
    own = [line for line in result.stderr.splitlines() if "kernel_specs/some/cpu.yaml:" in line]
    assert len(own) == len(set(own))


def test_a_shared_file_without_a_target_is_a_problem(grouped) -> None:
    (grouped.root / "kernel_specs/some/sm90.yaml").write_text("limits: {}\n")
    result = grouped.run("list")
    assert result.status == 2
    assert "some/sm90.yaml:1:1: no family of this group has a target of this name" in result.stderr
