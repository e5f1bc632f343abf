"""`list` and `explain` if there are no specs: by the installed packs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

KEY = "demo.cpu.bf16-t64"


@pytest.fixture
def site(workspace, tmp_path_factory, monkeypatch) -> Path:
    """A folder of installed distributions; the one pack in it was generated from the workspace's
    specs, which are no longer there."""
    site = tmp_path_factory.mktemp("site")
    workspace.edit(
        "sm80.yaml",
        "budget:",
        "short: {values: [dtype, tile, warps, mode], features: {causal: causal}}\nbudget:",
    )
    assert workspace.run("regenerate", "--where", "dtype == bf16").status == 0
    install(site, "my_kernels", workspace)
    shutil.rmtree(workspace.root / "kernel_specs")
    shutil.rmtree(workspace.out)
    # Only the packs of this folder are found: the distributions beside Kernelmint are not asked.
    monkeypatch.setattr("sys.path", [str(site)])
    return site


def install(site: Path, name: str, workspace, **changes: object) -> Path:
    """The workspace's families as the pack `name`, as pip would have installed it."""
    folder = site / name / "_pack"
    folder.mkdir(parents=True)
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    shutil.copy(workspace.out / "manifest.json", folder)
    shutil.copytree(workspace.root / "kernel_specs", folder / "kernel_specs")
    record = {
        "format": 1,
        "name": name,
        "fingerprint": "f",
        "abi": 1,
        "generated": {f["name"]: f["fingerprint"] for f in manifest["families"]},
        "targets": ["demo.cpu"],
        "architectures": [],
        "isas": ["baseline"],
        "settings": {},
        "sources": {},
        "operators": {f["name"]: f["operators"] for f in manifest["families"]},
        "on_host": [],
        "fronts": [],
        "specs": {"kernel_specs": "kernel_specs"},
        **changes,
    }
    (folder / "pack.json").write_text(json.dumps(record))
    info = site / f"{name}-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[kernelmint.packs]\n{name} = {name}._pack\n")
    return folder


def manifest_keys(site: Path) -> list[str]:
    manifest = json.loads((site / "my_kernels/_pack/manifest.json").read_text())
    targets = [target for family in manifest["families"] for target in family["targets"]]
    return [kernel["key"] for target in targets for kernel in target["kernels"]]


def test_list_prints_what_the_packs_hold_in_their_order(site, workspace) -> None:
    result = workspace.run("list")
    assert result.status == 0, result.output
    assert result.stdout.split() == manifest_keys(site)
    assert KEY in result.stdout
    assert not any("f32" in key for key in result.stdout.split())  # the pack was made without


def test_list_filters_and_writes_json_and_short_forms(site, workspace) -> None:
    result = workspace.run("list", "--where", "target == sm80 and threads > 64", "--json")
    entries = json.loads(result.stdout)
    assert entries
    assert {entry["target"] for entry in entries} == {"sm80"}
    assert all(entry["derived"]["threads"] > 64 for entry in entries)
    assert [entry["key"] for entry in entries] == [
        entry["key"]
        for entry in json.loads(workspace.run("list", "--json").stdout)
        if entry["derived"].get("threads", 0) > 64
    ]
    shown = workspace.run("list", "--short", "--where", "target == sm80").stdout.splitlines()
    assert entries[0]["short"] in shown
    assert KEY in workspace.run("list", "--short").stdout  # has no short form


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("tile > 1000", 'no kernel of the installed packs matches --where "tile > 1000"'),
        ("tyle > 1", '--where "tyle > 1": '),
        ("tile % (tile - 64) == 0", "has no value for demo."),
    ],
)
def test_a_wrong_filter_is_an_error(site, workspace, where, message) -> None:
    result = workspace.run("list", "--where", where)
    assert result.status == 2
    assert message in result.stderr


def test_a_set_is_a_matter_of_specs(site, workspace) -> None:
    result = workspace.run("list", "--set", "small")
    assert result.status == 2
    assert "--specs DIR" in result.stderr


def test_explain_names_the_pack(site, workspace) -> None:
    result = workspace.run("explain", KEY)
    assert result.status == 0
    folder = site / "my_kernels/_pack"
    assert f"{KEY} is built: in pack my_kernels (my_kernels 0.3, {folder}), in set" in result.stdout
    assert "tile = 64" in result.stdout
    cuda = next(key for key in manifest_keys(site) if ".sm80." in key)
    assert (
        "was generated, but not compiled into pack my_kernels"
        in workspace.run("explain", cuda).stdout
    )
    short = json.loads(workspace.run("list", "--json", "--where", "target == sm80").stdout)[0][
        "short"
    ]
    assert "compiled into pack my_kernels" in workspace.run("explain", short).stdout


def test_explain_says_why_a_key_is_excluded(site, workspace) -> None:
    result = workspace.run("explain", "demo.sm80.f32-t64-w4-auto")
    assert result.status == 1
    assert "the matrix units take 16-bit numbers" in result.stdout
    assert "specs of pack my_kernels (my_kernels 0.3" in result.stdout


def test_what_adds_a_key_is_said_of_the_packs_project(site, workspace) -> None:
    """Nobody is told to edit an installed file."""
    in_set = workspace.run("explain", "demo.sm80.bf16-t32-w1-split").stdout
    assert (
        "in the project of that pack, run\n  kernelmint regenerate --set small && pip install ."
        in in_set
    )
    in_none = workspace.run("explain", "demo.cpu.bf16-t65").stdout
    assert "add to a set of kernel_specs/demo/cpu.yaml in the project of pack my_kernels" in in_none
    assert f"{site}/my_kernels/_pack/kernel_specs" not in in_set + in_none


def test_an_unknown_family_names_what_the_packs_have(site, workspace) -> None:
    result = workspace.run("explain", "dmo.cpu.bf16-t64")
    assert result.status == 2
    assert "there is no family 'dmo' (did you mean 'demo'?)" in result.stderr


def test_specs_that_are_named_or_here_come_before_packs(site, workspace) -> None:
    specs = site / "my_kernels/_pack/kernel_specs"
    assert "f32" in workspace.run("list", "--specs", str(specs)).stdout
    shutil.copytree(specs, workspace.root / "kernel_specs")
    assert "f32" in workspace.run("list").stdout
    assert "not in the generated tree" in workspace.run("explain", KEY).stdout


def test_packs_with_one_family_and_damaged_ones_are_named_and_the_others_listed(
    site, workspace
) -> None:
    shutil.copytree(site / "my_kernels", site / "third")
    clash = site / "third/_pack/pack.json"
    clash.write_text(clash.read_text().replace('"my_kernels"', '"third"'))
    info = site / "third-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kernelmint.packs]\nthird = third._pack\n")
    both = "the family demo is in pack my_kernels (my_kernels 0.3, "
    for result in (workspace.run("list"), workspace.run("explain", KEY)):
        assert result.status == 2
        assert both in result.stderr
        assert "and in pack third (third 1, " in result.stderr
    record = json.loads(clash.read_text())
    operators = {"other": [text.replace("demo", "other") for text in record["operators"]["demo"]]}
    clash.write_text(json.dumps({**record, "generated": {"other": "f"}, "operators": operators}))
    (site / "third/_pack/manifest.json").write_text("{")
    result = workspace.run("list")
    assert result.status == 2
    assert result.stdout.split() == manifest_keys(site)
    assert "not listed: pack third" in result.stderr
    assert re.search(r"manifest.json is absent or damaged \(.*\): reinstall it", result.stderr)
    assert workspace.run("explain", KEY).status == 0


def test_neither_specs_nor_packs_is_one_error_that_names_both(site, workspace) -> None:
    shutil.rmtree(site / "my_kernels-0.3.dist-info")
    for command in (["list"], ["explain", KEY]):
        result = workspace.run(*command)
        assert result.status == 2
        assert "there is no folder kernel_specs here" in result.stderr
        assert "--specs DIR" in result.stderr
        assert "install a pack" in result.stderr


def test_in_a_project_explain_knows_the_families_of_packs_too(site, workspace) -> None:
    assert workspace.run("new", "other").status == 0
    assert "is built: in pack my_kernels" in workspace.run("explain", KEY).stdout
    short = json.loads((site / "my_kernels/_pack/manifest.json").read_text())
    (sm80,) = (t for t in short["families"][0]["targets"] if t["name"] == "sm80")
    assert "pack my_kernels" in workspace.run("explain", sm80["kernels"][0]["short"]).stdout
    assert "not in the generated tree" in workspace.run("explain", "other.cpu.f32-n8192").stdout
    named = workspace.run("explain", KEY, "--specs", "kernel_specs")
    assert "there is no family 'demo'" in named.stderr


def test_explain_names_the_command_that_builds_a_kernel_on_demand(site, workspace) -> None:
    in_none = workspace.run("explain", "demo.cpu.bf16-t65").stdout
    assert "  kernelmint build demo --key demo.cpu.bf16-t65\n" in in_none
    assert workspace.run("new", "other").status == 0
    in_set = workspace.run("explain", "other.cpu.f32-n8192").stdout
    assert "  kernelmint build kernel_specs/other --key other.cpu.f32-n8192\n" in in_set
