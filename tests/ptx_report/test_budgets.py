"""Budgets by architecture and of sizes, and baselines that let a project start with what it has."""

import pytest
from click.testing import CliRunner

from codegen.core import manifest as form
from codegen.core.ptxas_rows import Row, csv_text, read_csv
from tests.ptx_report.project import KEYS, Project, record, symbol
from tools.ptx_report.__main__ import main
from tools.ptx_report.gate import baseline_paths


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def project(tmp_path):
    """Kernels built for 8.0, of which none spills, and for 9.0, of which one does."""
    project = Project(tmp_path, {"spill_bytes": 0})
    for index, key in enumerate(KEYS):
        own = record(symbol(key)) + record(symbol(key), arch="sm_90", spills=8 * index)
        project.log(index, own)
    return project


def check(project, *arguments, baselines=None):
    given = ("--manifest", project.manifest, "--baselines", baselines or project.specs)
    return run(project.logs, *given, "--check", *arguments)


def write_budgets(project, *budgets):
    """The manifest with budgets of architectures."""
    manifest = form.read(project.manifest)
    (family,) = manifest.families
    cpu, sm80 = family.targets
    own = (form.ArchitectureBudget(architecture=name, limits=limits) for name, limits in budgets)
    sm80 = form.Target(**{**vars(sm80), "architecture_budgets": tuple(own)})
    family = form.Family(**{**vars(family), "targets": (cpu, sm80)})
    project.manifest.write_text(
        form.text(form.Manifest(**{**vars(manifest), "families": (family,)}))
    )


def test_a_budget_may_be_of_one_architecture(project):
    result = check(project)
    assert result.exit_code == 1
    assert f"{KEYS[1]} [flash_forward_sm80, sm_90]: 16 spill bytes, the budget" in result.output
    write_budgets(project, ("sm90", {"spill_bytes": 16}))
    assert check(project).exit_code == 0
    project.log(0, record(symbol(KEYS[0]), spills=8) + record(symbol(KEYS[0]), arch="sm_90"))
    result = check(project)  # 8.0's is still 0
    assert (result.exit_code, "[flash_forward_sm80, sm_80]: 16 spill" in result.output) == (1, True)
    write_budgets(project, ("sm90", {"spill_bytes": 15, "registers": 20}))
    assert "100 registers, the budget of flash_forward.sm80 is 20" in check(project).output


def test_figures_over_a_budget_that_a_baseline_has_pass_until_they_get_worse(project):
    """The ratchet: what is, is written; more than that fails, and less may be written again."""
    baseline = project.root / "accepted.csv"
    assert check(project, "--update-baseline", baselines=baseline).exit_code == 1
    assert len(read_csv(baseline)) == 4
    result = check(project, baselines=baseline)
    assert result.exit_code == 0
    assert "1 figure over a budget, as in the baseline, and no worse" in result.output
    project.log(1, record(symbol(KEYS[1])) + record(symbol(KEYS[1]), arch="sm_90", spills=12))
    result = check(project, baselines=baseline)
    assert result.exit_code == 1
    assert "24 spill bytes, the budget of flash_forward.sm80 is 0" in result.output
    assert "24 spill bytes (was 16)" in result.output
    project.log(1, record(symbol(KEYS[1])) + record(symbol(KEYS[1]), arch="sm_90", spills=4))
    result = check(project, baselines=baseline)
    assert result.exit_code == 0
    assert "1 kernel better than the baseline (--update-baseline keeps them so)" in result.output
    assert check(project, "--update-baseline", baselines=baseline).exit_code == 0
    project.log(1, record(symbol(KEYS[1])) + record(symbol(KEYS[1]), arch="sm_90", spills=8))
    assert check(project, baselines=baseline).exit_code == 1


def test_a_folder_that_a_move_left_behind_is_not_the_familys(project):
    moved = project.specs / "attention/flash_forward"
    moved.mkdir(parents=True)
    (moved / "family.yaml").write_text("family: flash_forward\n")
    rows = [Row(symbol(KEYS[0]))]
    assert list(baseline_paths(rows, [project.specs])) == [moved / "sm80.ptxas.csv"]


# Of any project


@pytest.fixture
def log(tmp_path):
    """The log of a project without specs: of two kernels, one spills."""
    path = tmp_path / "build.log"
    path.write_text(record("_Z4slowv", registers=255, spills=100) + record("_Z4fastv"))
    return path


def test_a_project_full_of_spills_starts_with_what_it_has(log, tmp_path):
    baseline, budgets = tmp_path / "accepted.csv", tmp_path / "budgets.yaml"
    budgets.write_text("- {spill_bytes: 0}\n")
    given = (log, "--baselines", baseline, "--budgets", budgets)
    result = run(*given, "--check")
    assert (result.exit_code, "--update-baseline writes it" in result.output) == (2, True)
    assert f"written: {baseline}" in run(*given, "--update-baseline").output
    assert run(*given, "--check").exit_code == 0
    log.write_text(log.read_text() + record("_Z3newv", spills=4))  # the budget is for what is new
    result = run(*given, "--check")
    assert result.exit_code == 1
    assert "new() [sm_80]: 8 spill bytes, the budget of" in result.output
    assert "slow()" not in result.output
    log.write_text(record("_Z4slowv", registers=255, spills=101) + record("_Z4fastv"))
    result = run(*given, "--check")
    assert (result.exit_code, "202 spill bytes (was 200)" in result.output) == (1, True)


def test_a_baseline_keeps_the_rows_of_other_architectures(log, tmp_path):
    baseline = tmp_path / "accepted.csv"
    for arch in ("sm_80", "sm_90"):
        log.write_text(record("_Z4fastv", arch=arch))
        assert run(log, "--baselines", baseline, "--update-baseline").exit_code == 0
    assert [row.arch for row in read_csv(baseline)] == ["sm_80", "sm_90"]
    log.write_text(record("_Z4fastv", arch="sm_90", registers=101))
    result = run(log, "--baselines", baseline, "--check")
    assert (result.exit_code, "fast() [sm_90]: 101 registers" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("budgets", "offences"),
    [
        ("- {registers: 254}", ["slow() [sm_80]: 255 registers"]),
        ("- {where: \"arch == 'sm_90'\", registers: 1}", []),
        ("- {where: regs < 200, spill_bytes: 0}", []),
        ("- {code_bytes: 1k}", ["slow() [sm_80]: 1500 code bytes"]),
        ("- {total_bytes: 2k}\n- {total_bytes: 1999}", ["slow() [sm_80]: 2,000 bytes of machine"]),
        ("- {where: \"kernel == 'fast()'\", total_bytes: 499}", ["fast() [sm_80]: 500 bytes of"]),
    ],
)
def test_budgets_by_any_condition_and_of_sizes(tmp_path, budgets, offences):
    table, file = tmp_path / "r.csv", tmp_path / "budgets.yaml"
    slow = Row("_Z4slowv", name="slow()", arch="sm_80", used_registers=255, code_bytes=1500)
    fast = Row("_Z4fastv", name="fast()", arch="sm_80", used_registers=100, code_bytes=500)
    table.write_text(csv_text([slow, fast]), newline="")
    file.write_text(budgets)
    result = run(table, "--budgets", file, "--check")
    assert result.exit_code == (1 if offences else 0), result.output
    assert result.output.count("[sm_80]") == len(offences)
    assert all(offence in result.output for offence in offences)


def test_what_a_budget_cannot_be_held_to_is_said(log, tmp_path):
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text("- {total_bytes: 1M, code_bytes: 1M}\n- {where: regs > 255, registers: 1}\n")
    output = run(log, "--budgets", budgets, "--check").output
    assert "budget 1: total_bytes is not checked for 2 kernels" in output
    assert "budget 1: code_bytes is not checked for 2 kernels" in output
    assert "budget 2: no kernel matches" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list of budgets"),
        ("registers: 3", "expected a list of budgets"),
        (
            "- {register: 3}",
            "budget 1: got {'register': 3}, expected a mapping of where, registers",
        ),
        ("- {where: spilled}", "budget 1: got"),
        (
            "- {registers: many}",
            "budget 1: registers: got 'many', expected a size such as 500M or 2G",
        ),
        ("- {registers: true}", "budget 1: registers: got True"),
        ("- {where: 3, registers: 1}", "budget 1: where: got 3"),
        ("- {where: regz > 3, registers: 1}", "did you mean 'regs'"),
        ("- {", "not YAML"),
    ],
)
def test_a_bad_file_of_budgets(log, tmp_path, text, message):
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text(text)
    result = run(log, "--budgets", budgets, "--check")
    assert (result.exit_code, message in result.output) == (2, True), result.output
