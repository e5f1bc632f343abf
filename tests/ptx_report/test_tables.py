"""What a build wrote beside its logs and its libraries."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import Row, csv_text, read_csv
from codegen.ptxas import collect
from tests.ptx_report import cubins
from tests.ptx_report.project import KEYS, Project, record, symbol
from tools.ptx_report.__main__ import main

ROOT = Path(__file__).parents[2]
STACKS = {KEYS[0]: 104, KEYS[1]: 0}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def library(tmp_path):
    """A library of two kernels, one with a stack."""
    rows = [
        Row(symbol(key), used_registers=128, stack_frame=stack) for key, stack in STACKS.items()
    ]
    path = tmp_path / "pack/flash_forward.so"
    path.parent.mkdir()
    path.write_bytes(cubins.library(cubins.fatbin((2, 80, cubins.cubin(rows)))))
    return path


def write_table(library, registers=128):
    """The table of a pack beside its library: the kernel with a stack spills half of it."""
    rows = [
        Row(
            symbol(key), arch="sm_80", used_registers=registers, stack_frame=stack,
            spill_stores=stack // 2, spill_loads=stack // 2, toolchain="nvcc 13.0.88", code="1",
        )
        for key, stack in STACKS.items()
    ]  # fmt: skip
    (library.parent / "pack.json").write_text("{}")
    (library.parent / "ptxas.csv").write_text(csv_text(rows))


def rows_of(path):
    out = path.with_name("rows.csv")
    assert run(path, "--csv", out).exit_code == 0
    return {row.key: row for row in read_csv(out)}


def test_a_binary_does_not_say_whether_its_kernels_spill(library):
    assert [row.spilled for row in rows_of(library).values()] == [None, None]
    output = run(library).output
    assert output.splitlines()[-1] == "2 kernels, 2 whose spills are unknown (1 with a stack)"
    first, second = (line.split() for line in output.splitlines()[1:3])
    assert (first[0], first[2:6]) == (KEYS[0], ["object", "128", "?", "104"])
    assert (second[0], second[2:6]) == (KEYS[1], ["object", "128", "?", "0"])


def test_a_packs_library_has_the_spills_of_the_packs_table(library):
    write_table(library)
    rows = rows_of(library)
    assert {key: row.spill_stores for key, row in rows.items()} == {KEYS[0]: 52, KEYS[1]: 0}
    assert {row.toolchain for row in rows.values()} == {"nvcc 13.0.88"}
    assert run(library).output.splitlines()[-1] == "2 kernels, 1 with spills"


def test_so_have_the_libraries_of_a_folder(library):
    write_table(library)
    for folder in (library.parent, library.parents[1]):
        assert run(folder).output.splitlines()[-1] == "2 kernels, 1 with spills"
    assert "is an input" in run(library.parents[1], "--csv", library.with_name("ptxas.csv")).output


def test_a_table_of_another_build_says_nothing_of_a_library(library):
    write_table(library, registers=96)
    assert [row.spilled for row in rows_of(library).values()] == [None, None]


# A build's folder: its logs, and the table that it wrote last


def build_of(project, version="13.0.88", flags=""):
    """Ends a build: its ptxas.csv is beside the folder of its logs."""
    collect.write_csv(
        project.logs, project.manifest, project.logs.with_name("ptxas.csv"), version, flags
    )


def check(project, *arguments):
    given = ("--manifest", project.manifest, "--baselines", project.specs)
    return run(project.root / "build", *given, "--check", *arguments)


@pytest.fixture
def project(tmp_path):
    """A project that was built, and whose baseline is that build's."""
    project = Project(tmp_path, {"spill_bytes": 0}).clean()
    build_of(project)
    assert check(project, "--write-baseline").exit_code == 0
    return project


def test_a_builds_folder_is_held_against_the_baseline_of_its_compiler(project):
    assert check(project).exit_code == 0
    project.log(0, record(symbol(KEYS[0]), registers=120))
    build_of(project)
    result = check(project)
    assert result.exit_code == 1
    assert f"{KEYS[0]} [flash_forward_sm80, sm_80]: 120 registers (was 100)" in result.output
    build_of(project, version="13.5.37")
    assert "is of nvcc 13.0.88, this build of nvcc 13.5.37" in check(project).output


def test_logs_whose_build_did_not_end_fail_the_check(project):
    project.log(0, record(symbol(KEYS[0]), registers=120))
    result = check(project)
    assert result.exit_code == 1
    assert f"{KEYS[0]} [flash_forward_sm80, sm_80]: its compiler is unknown" in result.output
    assert "end the build, which writes ptxas.csv" in result.output
    project.logs.with_name("ptxas.csv").unlink()
    assert "compilers of 2 kernels are unknown" in check(project).output


def test_a_log_of_a_source_that_is_gone_is_skipped(project):
    project.log(77, record(symbol(KEYS[0]), registers=255))
    build_of(project)
    result = check(project)
    assert (result.exit_code, "check passed: 2 rows" in result.output) == (0, True)


def test_a_diff_of_a_builds_folder_names_the_cause(project, tmp_path):
    """The recipe for pull requests."""
    main_csv, comment = tmp_path / "main.csv", tmp_path / "comment.md"
    assert run(project.root / "build", "--csv", main_csv).exit_code == 0
    project.log(0, record(symbol(KEYS[0]), registers=120))
    build_of(project, flags="-O2")
    result = check(project, "--diff", main_csv, "--markdown", comment)
    assert result.exit_code == 1
    assert "the code changed" in comment.read_text()
    assert "fingerprints" not in comment.read_text()


def test_the_table_beside_the_logs_is_not_written_over(project):
    result = run(project.root / "build", "--csv", project.logs.with_name("ptxas.csv"))
    assert (result.exit_code, "is an input" in result.output) == (2, True)


def test_the_manifest_is_that_of_the_project_one_stands_in(project, monkeypatch):
    monkeypatch.chdir(project.specs / "flash_forward")
    result = run(project.root / "build", "--where", "causal", "--parameters")
    assert KEYS[0] in result.output
    assert KEYS[1] not in result.output
    project.log(0, record(symbol(KEYS[0]), registers=120))
    build_of(project)
    assert (
        "120 registers (was 100)" in run(project.root / "build", "--check").output
    )  # its baseline


def test_a_check_of_one_library_misses_what_the_library_is_to_hold_in_one_line(project, library):
    """Not the kernels of other families; and each target once."""
    data = json.loads(project.manifest.read_text())
    sm80 = data["families"][0]["targets"][1]
    for n in range(5):
        sm80["kernels"].append(sm80["kernels"][0] | {"key": f"flash_forward.sm80.bf16-d{n}"})
    other = [sm80["kernels"][0] | {"key": "other.sm80.bf16"}]
    data["families"].append(
        data["families"][0] | {"name": "other", "targets": [sm80 | {"kernels": other}]}
    )
    project.manifest.write_text(json.dumps(data))
    write_table(library)
    result = run(library, "--manifest", project.manifest, "--baselines", "/", "--check")
    lost = [line for line in result.output.splitlines() if "in the manifest" in line]
    (line,) = lost
    assert "flash_forward.sm80.bf16-d0 [sm_80]: in the manifest, and no row" in line
    assert "as have 4 others of flash_forward.sm80" in line
    assert KEYS[1] not in result.output  # nor is the table printed


def test_a_check_of_a_binary_says_that_it_does_not_know_its_spills(project, library):
    given = ("--manifest", project.manifest, "--baselines", project.specs, "--check")
    result = run(library, *given)
    assert "a binary does not say whether its kernels spill" in result.output
    assert "not checked for 2 kernels, 1 of them with a stack" in result.output
    write_table(library)
    result = run(library, *given)
    assert (result.exit_code, "104 spill bytes, the budget" in result.output) == (1, True)


def test_ptx_beside_a_librarys_code_is_held_against_no_baseline(project, library):
    code = cubins.cubin([Row(symbol(key), used_registers=100) for key in KEYS])
    ptx = "".join(f".entry {symbol(key)}\n" for key in KEYS).encode()
    library.write_bytes(cubins.library(cubins.fatbin((2, 80, code), (1, 80, ptx))))
    given = ("--manifest", project.manifest, "--baselines", project.specs, "--check")
    result = run(library, *given)
    assert "2 kernels in PTX" in result.output
    assert "flash_forward.sm80: compilers of 2 kernels are unknown" in result.output  # a remark
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("heading", "value"), [("regs", 101), ("stack", 0), ("spills", 0), ("bar", 1), ("ms", 1)]
)
def test_where_takes_what_a_column_is_headed(project, heading, value):
    output = run(project.root / "build").output
    assert heading in output.splitlines()[0].split()
    result = run(project.root / "build", "--where", f"{heading} >= {value}")
    assert (result.exit_code, KEYS[1] in result.output) == (0, True)


def test_occupancy_is_of_the_launch_if_no_derived_values_say_it(project):
    text = project.manifest.read_text()
    derived = '"derived": {"threads": 128, "smem_bytes": 24576}'
    assert text.count(derived) == 1
    project.manifest.write_text(
        text.replace(derived, '"derived": {}, "threads": 512, "shared_memory": 81920')
    )
    out = project.root / "r.json"
    given = ("--manifest", project.manifest)
    assert run(project.root / "build", *given, "--json", out).exit_code == 0
    occupancy = {
        row["kernel_config"]: row["occupancy"] for row in json.loads(out.read_text())["rows"]
    }
    assert occupancy[KEYS[1]]["limiters"] == ["registers"]
    assert occupancy[KEYS[1]]["warps"] == 16


def test_a_specs_block_is_of_the_kernel_that_is_named_after_its_target(project):
    """Another kernel of the configuration is launched by its header, as no spec says."""
    own = symbol(KEYS[0])
    other = own.replace("18flash_forward_sm80", "11merge_parts")
    project.log(0, record(own) + record(other, registers=48))
    given = (project.logs, "--manifest", project.manifest, "--json", project.root / "r.json")

    def occupancies(*arguments):
        assert run(*given, *arguments).exit_code == 0
        rows = json.loads((project.root / "r.json").read_text())["rows"]
        return {row["symbol"]: row["occupancy"] is not None for row in rows}

    assert occupancies() == {own: True, other: False, symbol(KEYS[1]): True}
    assert occupancies("--where", "function == 'merge_parts'") == {other: False}
    second = own.replace("18flash_forward_sm80", "9last_sm80")
    project.log(0, "".join(map(record, (own, other, second))))
    assert occupancies("--where", "d_head == 128") == dict.fromkeys((own, other, second), False)


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script (util-linux)")
def test_twenty_rows_of_a_narrow_terminal_are_two_lines_each():
    table = ROOT / "kernel_specs/attention/flash_decode/sm80.ptxas.csv"
    command = shlex.join([sys.executable, "-m", "tools.ptx_report", str(table)])
    done = subprocess.run(
        ["script", "-qec", f"stty cols 80; {command}", os.devnull],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "COLUMNS": "", "LINES": ""},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * 21 + 2
    assert "<true>" in done.stdout  # the column that tells kernels of a key apart is there
