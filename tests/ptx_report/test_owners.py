"""Kernels whose symbols name no configuration: told by the object that holds them, and gated."""

import json

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import csv_text, read_csv
from codegen.ptxas import collect
from codegen.ptxas.fingerprints import Manifest
from tests.ptx_report.project import KEYS, Project, record, symbol
from tests.ptx_report.samples import DATA
from tools.ptx_report.__main__ import main

PLAIN = (DATA / "library/nvcc13.0_plain.log").read_text()  # two kernels, no spills
SPILLS = (DATA / "library/nvcc13.0_spills.log").read_text()  # one, 1,780 bytes


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path, {"spill_bytes": 0})


def in_one_shard(project):
    """Both configurations in shard 0."""
    manifest = json.loads(project.manifest.read_text())
    kernels = manifest["families"][0]["targets"][1]["kernels"]
    kernels[1]["file"] = kernels[0]["file"]
    project.manifest.write_text(json.dumps(manifest))


def with_source(project):
    """As if `build:` of the target named flash_forward/plain.cu."""
    manifest = json.loads(project.manifest.read_text())
    source = {"specs": "kernel_specs", "path": "flash_forward/plain.cu"}
    manifest["families"][0]["targets"][1]["build"] = {
        "flags": [], "definitions": [], "include": [], "libraries": [], "sources": [source],
    }  # fmt: skip
    project.manifest.write_text(json.dumps(manifest))


def source_log(project, text):
    path = project.logs / "flash_forward/plain.cu.sm80.ptxas.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def check(project, *arguments):
    given = ("--manifest", project.manifest, "--baselines", project.specs, "--check")
    result = CliRunner().invoke(main, [str(a) for a in (project.logs, *given, *arguments)])
    return result.exit_code, result.output


def collected(project):
    """The rows of the CSV that the build's collector writes."""
    path = project.root / "ptxas.csv"
    arguments = [project.logs, "--manifest", project.manifest, "--csv", path]
    assert collect.main([*map(str, arguments), "--nvcc-version", "13.0.88"]) == 0
    return read_csv(path)


def test_an_object_of_one_configuration_gives_its_kernels_the_key_a_row_each(project):
    project.log(0, PLAIN)
    project.log(1, SPILLS)
    rows = collected(project)
    assert sorted((row.key, row.kernel, row.used_registers) for row in rows) == [
        (KEYS[0], "multiply", 40), (KEYS[0], "reduce", 8), (KEYS[1], "multiply", 40)
    ]  # fmt: skip
    (spilled,) = (row for row in rows if row.spilled)
    assert spilled.spill_stores + spilled.spill_loads == 1780
    assert all(row.symbol.startswith("_ZN7library") for row in rows)
    assert all(row.code for row in rows)


def test_the_csv_comes_back(project):
    project.log(0, PLAIN)
    project.log(1, SPILLS)
    rows = collected(project)
    path = project.root / "again.csv"
    path.write_text(csv_text(rows))
    assert read_csv(path) == rows


@pytest.mark.parametrize("together", [False, True])
def test_their_spills_fail_the_budget_of_their_target(project, together):
    if together:
        in_one_shard(project)
        project.log(0, PLAIN + SPILLS)
    else:
        project.log(0, PLAIN)
        project.log(1, SPILLS)
    status, said = check(project)
    assert status == 1
    assert "1780 spill bytes, the budget of flash_forward.sm80 is 0" in said
    assert "no row" not in said


@pytest.mark.parametrize("together", [False, True])
def test_without_spills_they_pass_and_none_is_missed(project, together):
    if together:
        in_one_shard(project)
    project.log(0, PLAIN)
    project.log(1, PLAIN)
    status, said = check(project)
    assert status == 0, said


def test_an_object_of_several_configurations_does_not_guess(project):
    in_one_shard(project)
    project.log(0, PLAIN)
    assert [row.key for row in collected(project)] == [None, None]


def test_a_lost_log_is_missed(project):
    project.log(0, PLAIN)
    status, said = check(project)
    assert status == 1
    assert f"{KEYS[1]} [sm_80]: in the manifest, and no row" in said
    assert KEYS[0] not in said.split("ptx-report: ", 1)[1]


def test_a_key_that_is_missing_beside_named_kernels_is_missed(project):
    """If one kernel of an object names its configuration, the other must do so, too."""
    in_one_shard(project)
    project.log(0, record(symbol(KEYS[0])))
    status, said = check(project)
    assert status == 1
    assert f"{KEYS[1]} [sm_80]: in the manifest, and no row" in said


def test_kernels_of_a_source_stand_for_configurations_without_device_code(project):
    with_source(project)
    for index in range(2):
        project.log(index, "ptxas info    : 0 bytes gmem\n")
    source_log(project, PLAIN)
    assert check(project)[0] == 0
    source_log(project, SPILLS)
    status, said = check(project)
    assert status == 1
    assert "1780 spill bytes, the budget of flash_forward.sm80 is 0" in said


def test_a_target_whose_shards_have_no_device_code_builds(project):
    for index in range(2):
        project.log(index, "ptxas info    : 0 bytes gmem\n")
    assert collected(project) == []


def test_an_architecture_of_a_pack_without_any_row_is_missed(project):
    project.clean()
    rows = collected(project)
    manifest = Manifest(project.manifest)
    assert manifest.absent(rows, ["80"]) == []
    assert manifest.absent(rows, ["80", "90a"]) == [(key, "sm_90") for key in KEYS]
