"""`ptx-report diff`: what it takes, in which forms it says what changed, and when it fails."""

import json
import subprocess

import jsonschema
import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import Row, csv_text
from tests.ptx_report.project import KEYS, Project, record, symbol
from tests.ptx_report.samples import DATA
from tools.ptx_report import report as reports
from tools.ptx_report.__main__ import main


def run(*arguments):
    return CliRunner().invoke(main, ["diff", *map(str, arguments)])


def write(path, *rows):
    path.write_text(csv_text(rows), newline="")
    return path


def kernel(name="_Z1kv", **figures):
    known = {"spill_stores": 0, "spill_loads": 0, "stack_frame": 0, "used_registers": 100}
    return Row(name, arch="sm_80", **{**known, **figures})


@pytest.fixture
def two(tmp_path):
    """Two reports, of which the second has a kernel that spills, one that went, and one more."""
    same = kernel("_Z4samev")
    base = write(tmp_path / "base.csv", kernel(), same, kernel("_Z4gonev"))
    head = write(
        tmp_path / "head.csv", kernel(used_registers=90, spill_stores=8), same, kernel("_Z3newv")
    )
    return base, head


def test_each_change_has_its_verdict_and_why(two):
    result = run(*two)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert [(line[0], line[2]) for line in lines[1:4]] == [
        ("k()", "worse"), ("gone()", "removed"), ("new()", "added"),
    ]  # fmt: skip
    assert "0 → 8 (+8)" in result.output
    assert "by spill bytes, though fewer registers" in result.output
    assert "1 worse, 1 removed, 1 added, 1 same; 1 cause unknown" in result.output


def test_markdown_and_json(two, tmp_path):
    markdown, out = tmp_path / "c.md", tmp_path / "c.json"
    assert run(*two, "--markdown", markdown, "--json", out, "--fail-on", "spills").exit_code == 1
    assert "| `k()` | sm_80 | worse | 0 → 8 (+8) | 100 → 90 (-10) |" in markdown.read_text()
    data = json.loads(out.read_text())
    (change,) = (c for c in data["changes"] if c["verdict"] == "worse")
    assert change["deltas"] == {"spill_bytes": [0, 8], "used_registers": [100, 90]}
    assert data["failures"] == ["k() [sm_80]: 8 spill bytes (was 0) (--fail-on spills)"]
    assert len(data["changes"]) == 4
    assert run(*two, "--markdown", "-").stdout == markdown.read_text()


def test_a_long_comment_is_folded_and_fits(tmp_path):
    rows = [kernel(f"kernel_number_{n}_with_a_long_name") for n in range(2000)]
    base = write(tmp_path / "base.csv", *rows)
    head = write(tmp_path / "head.csv", *(row._replace(used_registers=101) for row in rows))
    text = run(base, head, "--markdown", "-").stdout
    assert len(text.encode()) < 1 << 16
    assert text.index("<details>") < 3000
    assert "… and" in text


@pytest.mark.parametrize(
    ("conditions", "offences"),
    [
        ("spills", 1),
        ("spills+7", 1),
        ("spills+8", 0),
        ("registers", 1),
        ("registers+8", 1),
        ("registers+20", 0),
        ("registers+19%", 1),
        ("registers+20%", 0),
        ("bytes+50", 1),
        ("size+4%", 1),
        ("size+5%", 0),
        ("C75", 1),
        ("worse", 2),
        ("added,removed", 2),
        ("barriers", 0),
        ("seconds", 0),
        ("spills, registers+8", 2),
    ],
)
def test_it_fails_on_what_exceeds_a_condition(tmp_path, conditions, offences):
    """Of a kernel that got worse, one whose code grew, one that is new with a spill in it."""

    def rows(more):
        figures = {"compile_time_ms": 1.0, "barriers": 1}
        one = kernel(code_bytes=1000, used_registers=100 + 20 * more, **figures)
        notes = ("C7510",) * more
        other = kernel("_Z1lv", code_bytes=1000 + 100 * more, c75=notes, **figures)
        last = kernel(f"_Z3{'new' if more else 'old'}v", code_bytes=400, **figures)
        return one, other, last._replace(spill_stores=8 * more)

    base, head = write(tmp_path / "base.csv", *rows(0)), write(tmp_path / "head.csv", *rows(1))
    result = run(base, head, "--fail-on", conditions)
    assert result.exit_code == (1 if offences else 0), result.output
    assert (f"diff failed: {offences} offence" in result.output) == bool(offences)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ("spils", "got 'spils', expected spills, registers"),
        ("registers8", "got 'registers8'"),
        ("worse+1", "got 'worse+1'"),
        ("registers-8", "occupancy falls (occupancy-10), all others grow"),
        ("size", "--fail-on size: no kernel of both reports has this figure"),
        ("occupancy-1", "--fail-on occupancy-1: no kernel of both reports has this figure"),
        ("", "got '', expected spills, registers"),
        (" , ", "got '', expected spills, registers"),
    ],
)
def test_a_condition_that_holds_nothing_is_refused(two, conditions, message):
    result = run(*two, "--fail-on", conditions)
    assert (result.exit_code, message in result.output) == (2, True)


@pytest.mark.parametrize("condition", ["spills", "registers", "C75", "size", "worse", "removed"])
def test_a_filter_that_leaves_no_kernel_leaves_nothing_to_hold(two, condition):
    result = run(*two, "--where", "arch == 'sm90'", "--fail-on", f"{condition}")
    message = f"--fail-on {condition}: nothing to hold to it: no kernel is in "
    assert (result.exit_code, message in result.output) == (2, True)


def test_architectures_that_only_one_report_has_leave_nothing_to_hold(tmp_path):
    """But a kernel that was added may fail on its spills."""
    old = kernel(code_bytes=100)
    base = write(tmp_path / "base.csv", old)
    head = write(tmp_path / "head.csv", old._replace(arch="sm_90", spill_stores=8))
    for condition, message in (
        ("registers", "--fail-on registers: nothing to hold to it: no kernel is in both reports"),
        ("worse", "--fail-on worse: nothing to hold to it"),
        ("size", "--fail-on size: no architecture of both reports has the whole sum"),
    ):
        result = run(base, head, "--fail-on", condition)
        assert (result.exit_code, message in result.output) == (2, True)
    assert "1 offence" in run(base, head, "--fail-on", "spills").output
    assert "2 offences" in run(base, head, "--fail-on", "added,removed").output


def test_what_a_condition_cannot_hold_is_said(tmp_path):
    known, unknown = kernel(), kernel("_Z1lv", spill_loads=None, spill_stores=None)
    base = write(tmp_path / "base.csv", known, unknown)
    result = run(base, base, "--fail-on", "spills")
    assert "--fail-on spills: spill bytes of 1 of 2 kernels are unknown" in result.output


# Where reviewers see it


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository whose revision `base` has a baseline; its build is worse."""
    project = Project(tmp_path, {}).clean()
    (project.specs / "flash_forward/sm80.yaml").write_text("target: sm80\nsets:\n  default:\n")
    rows = [
        Row(symbol(key), arch="sm_80", used_registers=100 + n, toolchain=compiler, code="1")
        for compiler in ("nvcc 13.0.88", "nvcc 13.5.37")
        for n, key in enumerate(KEYS)
    ]
    elsewhere = Row(symbol(KEYS[0]), arch="sm_90", used_registers=10, toolchain="nvcc 13.0.88")
    write(project.baseline, *rows, elsewhere)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path]
    for command in ("init -q", "add .", "commit -q -m one", "tag base"):
        subprocess.run([*git, *command.split()], check=True)
    project.log(0, record(symbol(KEYS[0]), registers=120, spills=8))
    monkeypatch.chdir(project.specs)
    return project


def test_a_revision_stands_for_its_baselines(project):
    """Of the head's compiler, or the newest; for what the head has."""
    result = run("base", project.logs)
    assert "100 → 120 (+20)" in result.output
    assert "1 worse, 1 same" in result.output
    assert (
        run("base:kernel_specs/flash_forward/sm80.ptxas.csv", project.logs).output == result.output
    )
    project.baseline.unlink()
    assert "5 same" in run("base", "HEAD").output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "none: no such file or folder, and no revision of git here"),
        ("--output=x", "no such"),
        ("base:none.csv", "base:none.csv: the revision has no such file"),
        ("base:kernel_specs/flash_forward/sm80.yaml", "not a CSV report"),
    ],
)
def test_what_is_neither_a_file_nor_a_revision(project, name, message):
    result = run("--", name, project.logs)
    assert (result.exit_code, message.lower() in result.output.lower()) == (2, True), result.output


def test_a_revision_without_a_baseline_is_said_and_fails_nothing(project):
    (project.root / "empty").mkdir()
    subprocess.run(["git", "rm", "-q", "--cached", "-r", "."], check=True, cwd=project.root)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "-m", "two"], check=True, cwd=project.root)
    result = run("HEAD", project.logs, "--fail-on", "worse")
    assert result.exit_code == 0
    assert "HEAD: no kernel in it" in result.output
    assert "2 added" in result.output


def test_sarif_is_of_its_schema_and_names_the_line_of_the_spec(project, tmp_path):
    schema = json.loads((DATA / "sarif-schema-2.1.0.json").read_text())
    out = tmp_path / "r.sarif"
    assert run("base", project.logs, "--sarif", out).exit_code == 0
    log = json.loads(out.read_text())
    jsonschema.validate(log, schema, jsonschema.Draft4Validator)
    (result,) = log["runs"][0]["results"]
    assert (result["level"], result["ruleId"]) == ("warning", "used_registers")
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "kernel_specs/flash_forward/sm80.yaml"},
        "region": {"startLine": 3},
    }
    assert location["logicalLocations"][0]["fullyQualifiedName"] == KEYS[0]
    conditions = ("--fail-on", "registers+8,worse")
    assert run("base", project.logs, "--sarif", out, *conditions).exit_code == 1
    log = json.loads(out.read_text())
    jsonschema.validate(log, schema, jsonschema.Draft4Validator)
    assert [r["level"] for r in log["runs"][0]["results"]] == ["error", "error"]
    assert [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]] == [
        "registers", "worse",
    ]  # fmt: skip


def test_sarif_of_nothing_and_of_any_name(tmp_path):
    schema = json.loads((DATA / "sarif-schema-2.1.0.json").read_text())
    names = ["k\n%s", "ü ≤", "a,b:c"]
    base = write(tmp_path / "base.csv", *(kernel(name) for name in names))
    head = write(tmp_path / "head.csv", *(kernel(name, used_registers=101) for name in names))
    for other, count in ((base, 0), (head, 3)):
        log = json.loads(run(base, other, "--sarif", "-").stdout)
        jsonschema.validate(log, schema, jsonschema.Draft4Validator)
        assert len(log["runs"][0]["results"]) == count


def test_annotations_of_github(project, tmp_path):
    (line,) = (
        line
        for line in run("base", project.logs, "--github").output.splitlines()
        if "::" in line[:2]
    )
    place = "file=kernel_specs/flash_forward/sm80.yaml,line=3,title=ptx-report"
    assert line.startswith(f"::warning {place}::{KEYS[0]} [sm_80]: 120 registers (was 100)")
    assert run("base", project.logs, "--github", "--fail-on", "worse").output.startswith("::error ")
    rows = [kernel(f"k{n}\n%") for n in range(30)]
    base = write(tmp_path / "base.csv", *rows)
    head = write(tmp_path / "head.csv", *(row._replace(used_registers=101) for row in rows))
    lines = [line for line in run(base, head, "--github").output.splitlines() if line[:2] == "::"]
    assert len(lines) == 11
    assert "k0%0A%25 [sm_80]" in lines[0]
    assert lines[-1] == "::notice title=ptx-report::20 more warnings of kernels"


# What it reads


def test_a_json_report_is_read_as_its_csv_is(tmp_path):
    for log in ("nvcc13.5_4arch_warnings.log", "nvcc13.0_wgmma_serialised.log"):
        text, table = tmp_path / "r.json", tmp_path / "r.csv"
        done = CliRunner().invoke(main, [str(DATA / log), "--json", str(text), "--csv", str(table)])
        assert done.exit_code == 0
        again = tmp_path / "again.csv"
        assert CliRunner().invoke(main, [str(text), "--csv", str(again)]).exit_code == 0
        assert again.read_text() == table.read_text()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": [3]}', '{"rows": [{"kind": 1}]}', "[" * 9999]
)
def test_a_json_that_is_no_report(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    result = run(path, path)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert f"{path}:" in result.output


def test_a_filter_holds_for_both(two):
    result = run(*two, "--where", "regs >= 100")
    assert "2 removed, 1 added, 1 same" in result.output


def test_no_input_is_written_over(two):
    result = run(*two, "--json", two[0])
    assert (result.exit_code, "is an input" in result.output) == (2, True)


def test_a_file_that_is_named_diff_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diff").write_text(record("_Z1kv"))
    assert "1 kernel, 0 with spills" in CliRunner().invoke(main, ["./diff"]).output


def test_the_installed_packs_within_a_project_are_its_own_families(project, monkeypatch):
    """Not Kernelmint's own kernels, which every project has installed."""
    own = [Row(symbol(key), arch="sm_80", used_registers=100) for key in KEYS]
    others = [Row("other.sm80.bf16", arch="sm_80"), Row("_Z1kv", arch="sm_80")]
    monkeypatch.setattr(reports, "installed", lambda: reports.Report([*own, *others]))
    assert "1 better, 1 same" in run("base").output
    helper = symbol(KEYS[0]).replace("18flash_forward_sm80", "6helper")
    functions = [Row(helper, "function", used_registers=10), Row("_Z1gv", "function")]
    rows = reports.named([*own, *functions])
    monkeypatch.setattr(reports, "installed", lambda: reports.Report(rows))
    csv = write(project.root / "own.csv", *own, functions[0])
    assert "3 same" in run(csv).output
    monkeypatch.setattr(reports, "installed", lambda: reports.Report(others))
    result = run("base", "--markdown", "-")
    assert (result.exit_code, result.stdout) == (0, "**ptx-report: no kernels**\n")
