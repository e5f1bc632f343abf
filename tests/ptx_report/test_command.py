"""The command line: what it writes, what it compares, what it refuses."""

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import COLUMNS, Row, csv_text, read_csv
from codegen.ptxas import collect
from tests.ptx_report.cubins import cubin, fatbin, library, resource_usage
from tests.ptx_report.project import KEYS, Project, record, symbol
from tests.ptx_report.samples import DATA
from tools.ptx_report.__main__ import main

ROOT = Path(__file__).parents[2]
CONTRACT = [
    "kernel_config", "spilled", "stack_frame", "spill_stores", "spill_loads", "used_registers",
    "arch", "barriers", "smem", "cmem0", "cumulative_stack", "compile_time_ms", "symbol", "source",
]  # fmt: skip


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path, {"spill_bytes": 0, "c75": 0}).clean()


def run(*arguments, **options):
    return CliRunner().invoke(main, [str(a) for a in arguments], **options)


def report(project, *arguments):
    """ptx-report over the project's logs, with its manifest and baselines."""
    given = ("--manifest", project.manifest, "--baselines", project.specs)
    return run(project.logs, *given, *arguments)


def built(project, version="13.0.88", out="ptxas.csv", flags=""):
    """The CSV that the build's collector writes."""
    path = project.root / out
    arguments = [project.logs, "--manifest", project.manifest, "--csv", path, f"--flags={flags}"]
    status = collect.main([*map(str, arguments), "--nvcc-version", version])
    assert status == 0
    return path


def check(project, path, *arguments):
    given = ("--manifest", project.manifest, "--baselines", project.specs)
    return run(path, *given, "--check", *arguments)


# What it writes


def test_csv(project):
    path = project.root / "out" / "r.csv"
    assert report(project, "--csv", path).exit_code == 0
    rows = list(csv.reader(path.open(newline="")))
    assert rows[0][: len(CONTRACT)] == CONTRACT
    assert tuple(rows[0]) == COLUMNS
    first = dict(zip(*rows[:2], strict=True))
    assert first["kernel_config"] == KEYS[0]
    assert first["spilled"] == "False"
    assert first["smem"] == first["cumulative_stack"] == ""  # the log does not say
    assert first["source"] == "flash_forward/sm80_00.cu"
    assert first["compile_time_ms"] == "1.0"


def test_csv_comes_back(project, tmp_path):
    for sample in sorted(DATA.glob("*.log")):
        one, two = tmp_path / "one.csv", tmp_path / "two.csv"
        assert run(sample, "--csv", one).exit_code == 0
        assert run(one, "--csv", two).exit_code == 0
        assert one.read_bytes() == two.read_bytes(), sample.name


def test_parameters_are_columns(project, tmp_path):
    path = tmp_path / "r.csv"
    result = report(project, "--parameters", "--csv", path)
    assert "d_head" in result.output
    rows = list(csv.DictReader(path.open(newline="")))
    assert [(row["dtype"], row["d_head"], row["causal"]) for row in rows] == [
        ("bf16", "128", "True"),
        ("bf16", "64", "False"),
    ]


def test_foreign_kernels_go_by_their_demangled_names(tmp_path):
    pytest.importorskip("pycxxfilt")
    path = tmp_path / "r.csv"
    run(DATA / "ptxas_11.8.89_sm_80.log", "--csv", path)
    names = [row["kernel_config"] for row in csv.DictReader(path.open(newline=""))]
    assert names[1].startswith("void attn::fwd<__half, 64, 32, true>(__half const*,")


def test_json(project, tmp_path):
    path = tmp_path / "r.json"
    report(project, "--json", path)
    data = json.loads(path.read_text())
    assert data["rows"][0]["kernel_config"] == KEYS[0]
    assert data["rows"][0]["smem"] is None
    assert data["rows"][0]["parameters"] == {"dtype": "bf16", "d_head": 128, "causal": True}
    assert data["rows"][0]["occupancy"]["limiters"] == ["shared memory"]
    assert data["rows"][0]["occupancy"]["blocks"] == 3
    assert data["statistics"]["entries"] == 2


def test_the_table_on_a_pipe_is_whole_and_plain(project):
    done = subprocess.run(
        [sys.executable, "-m", "tools.ptx_report", str(project.logs)],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "40", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "\x1b" not in done.stdout
    assert all(key in done.stdout for key in KEYS)
    assert "2 kernels, 0 with spills" in done.stdout


def test_the_summary_says_what_is_lost(project, tmp_path):
    """A log without its spill lines spills not `0`, but nobody knows what."""
    log = tmp_path / "b.log"
    lines = record("_Z4lostv").splitlines(keepends=True)
    lost = "".join(line for line in lines if "bytes stack frame" not in line)
    log.write_text(lost)
    result = run(log, "--markdown", tmp_path / "b.md")
    assert "1 kernel, 1 whose spills are unknown, 1 incomplete\n" in result.output
    assert "1 whose spills are unknown" in (tmp_path / "b.md").read_text()
    assert "with spills" not in result.output
    log.write_text(record("_Z5wholev") + lost)
    summary = run(log).output.splitlines()[-1]
    assert summary == "2 kernels, 1 whose spills are unknown, 1 incomplete"
    log.write_text("ptxas what is this\n" + record("_Z5wholev"))
    assert run(log).output.splitlines()[-1] == (
        "1 kernel, 0 with spills, 1 line not understood (--verbose)"
    )


def test_the_collector_says_what_is_lost(project, capsys):
    lines = record(symbol(KEYS[0])).splitlines(keepends=True)
    project.log(0, "".join(line for line in lines if "bytes stack frame" not in line))
    built(project)
    said = capsys.readouterr().out
    assert "kernels: 2, rows: 2, spills unknown: 1: " in said


def test_where(project):
    result = report(project, "--where", "d_head == 128 and causal")
    assert (KEYS[0] in result.output, KEYS[1] in result.output) == (True, False)
    result = report(project, "--where", "used_registers > 100 and target == 'sm80'")
    assert (KEYS[0] in result.output, KEYS[1] in result.output) == (False, True)
    result = report(project, "--where", "dtype == bf16 and threads == 128 and occupancy > 0.1")
    assert KEYS[0] in result.output


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("d_hed == 128", "did you mean 'd_head'"),
        ("d_head ==", "not an expression"),
        ("__import__('os')", "--where"),
        ("d_head", "must be true or false"),
    ],
)
def test_bad_where(project, where, message):
    result = report(project, "--where", where)
    assert result.exit_code == 2
    assert message in result.output


def test_where_that_selects_nothing_is_an_answer(project, tmp_path):
    out = tmp_path / "r.csv"
    result = report(project, "--where", "spilled", "--csv", out)
    assert result.exit_code == 0
    assert '--where "spilled": none of 2 rows matches' in result.output
    assert "0 kernels, 0 with spills" in result.output
    assert read_csv(out) == []
    result = report(project, "--where", "spilled", "--check")
    assert (result.exit_code, "none of 0 kernels is one of ours" in result.output) == (2, True)


def on_a_terminal(columns, *arguments):
    """Lines of ptx-report on a terminal so wide, without its colours."""
    command = shlex.join([sys.executable, "-m", "tools.ptx_report", *map(str, arguments)])
    done = subprocess.run(
        ["script", "-qec", f"stty cols {columns}; {command}", os.devnull],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "COLUMNS": "", "LINES": ""},
    )  # fmt: skip
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script (util-linux)")
def test_a_terminal_shows_whole_keys_and_the_worst_twenty_rows(tmp_path):
    tail = "causal-r128-c64-w4-async-eager-swz-q2-k2-v1-opt"
    rows = [
        Row(f"flash_forward.sm80.bf16-d{n}-{tail}", arch="sm_90", used_registers=n)
        for n in range(100, 130)
    ]
    keys = [row.symbol for row in reversed(rows)]
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text(csv_text([row._replace(used_registers=99) for row in rows]), newline="")
    new.write_text(csv_text(rows), newline="")
    for arguments in ([new], [new, "--diff", old]):
        lines = on_a_terminal(80, *arguments)
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if line in keys] == keys[:20]
        assert lines[-2].startswith("… and 10 more: --all")
        everything = on_a_terminal(80, *arguments, "--all")
        assert [line for line in everything if line in keys] == keys
    line = on_a_terminal(160, new)[1].split()
    assert (line[0], line[-1]) == (keys[0], "129")


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script (util-linux)")
def test_two_lines_of_a_narrow_terminal_show_a_row(tmp_path):
    key = KEYS[0]
    rows = [
        Row(symbol(key).replace("18flash_forward_sm80", f"26flash_forward_sm80_part{n}"),
            arch="sm_90" if n > 100 else "sm_80", used_registers=n, barriers=1, smem=1024,
            stack_frame=0, spill_stores=0, spill_loads=0, compile_time_ms=1234.5, cmem0=900,
            code_bytes=10_000 * n)
        for n in range(100, 130)
    ]  # fmt: skip
    path = tmp_path / "r.csv"
    path.write_text(csv_text(rows), newline="")
    lines = on_a_terminal(80, path)
    assert lines[0].startswith(
        "these rows: arch sm_90, spills 0, stack 0, smem 1,024, bar 1, ms 1,23"
    )
    assert len(lines) == 3 + 2 * 20 + 2
    assert lines[3:5] == [f"{key}  flash_forward_sm80_part129", "   129  1,290,000"]


# Where it writes


@pytest.mark.parametrize("option", ["--csv", "--json", "--html", "--markdown"])
def test_a_device_is_written_to_and_stays(project, option):
    result = report(project, option, "/dev/full")
    assert (result.exit_code, "No space left" in result.output) == (2, True)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    result = report(project, option, "/dev/null")
    assert result.exit_code == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_is_written_to(project, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as cat:
        assert report(project, "--csv", pipe).exit_code == 0
        assert cat.communicate(timeout=60)[0].startswith("kernel_config,")
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.parametrize("is_pipe", [True, False])
def test_standard_output_as_a_file_takes_the_rows_and_then_the_table(project, tmp_path, is_pipe):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tools.ptx_report", project.logs, "--csv", "/dev/stdout"]
    with out.open("wb") as file:
        options = {"stdout": subprocess.PIPE if is_pipe else file, "cwd": ROOT}
        done = subprocess.run(command, check=True, **options)
    text = (done.stdout if is_pipe else out.read_bytes()).decode()
    assert text.startswith("kernel_config,")
    assert text.endswith("2 kernels, 0 with spills\n")
    assert Path("/dev/stdout").is_symlink()


def test_a_link_stays_and_its_file_is_written(project, tmp_path):
    file, link = tmp_path / "there" / "r.csv", tmp_path / "link.csv"
    link.symlink_to(file)
    for _ in range(2):  # a link to nothing, then to a file
        assert report(project, "--csv", link).exit_code == 0
        assert link.is_symlink()
        assert len(read_csv(file)) == 2


@pytest.mark.parametrize("option", ["--csv", "--json", "--html", "--markdown"])
def test_no_input_is_written_over(project, tmp_path, option):
    log = project.log(0, record(symbol(KEYS[0])))
    alias = tmp_path / "alias"
    alias.symlink_to(log)
    old = tmp_path / "old.csv"
    report(project, "--csv", old)
    project.baseline.write_text(old.read_text())
    for path, arguments in [
        (log, ()),
        (alias, ()),
        (old, ("--diff", old)),
        (project.manifest, ()),
        (project.baseline, ("--check",)),
    ]:
        before = path.read_bytes()
        result = report(project, option, path, *arguments)
        assert (result.exit_code, "is an input" in result.output) == (2, True), path
        assert path.read_bytes() == before


def test_the_file_behind_standard_input_is_not_written_over(tmp_path):
    log = tmp_path / "build.log"
    log.write_text(record("_Z4kernv"))
    command = [sys.executable, "-m", "tools.ptx_report", "-", "--csv", log]
    with log.open() as file:
        done = subprocess.run(
            command, stdin=file, cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert (done.returncode, "is an input (standard input)" in done.stderr) == (2, True)
    assert log.read_text() == record("_Z4kernv")


def test_two_outputs_are_two_files(project, tmp_path):
    result = report(project, "--csv", tmp_path / "r", "--json", tmp_path / "." / "r")
    assert (result.exit_code, "two outputs" in result.output) == (2, True)
    assert not (tmp_path / "r").exists()


def test_the_collector_writes_over_no_log(project):
    log = project.log(0, record(symbol(KEYS[0])))
    arguments = [project.logs, "--manifest", project.manifest, "--csv", log]
    assert collect.main([*map(str, arguments)]) == 2
    assert log.read_text() == record(symbol(KEYS[0]))


FORMULAS = ["=1+1", "+1+1", "-cmd|' /C calc'!A0", "@SUM(A1)", "'=x", "''-x", "\t=1", "'quoted'"]


@pytest.mark.parametrize("name", FORMULAS)
def test_no_spreadsheet_computes_a_cell_and_the_cell_comes_back(tmp_path, name):
    row = Row(name, warnings=(name,), source=name, line=-1)
    path = tmp_path / "r.csv"
    path.write_text(csv_text([row], [("parameter", ["-1"])]), newline="")
    cells = list(csv.reader(path.open(newline="")))[1]
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in cells)
    assert [cell for cell in cells if cell.startswith("-")] == ["-1", "-1"]  # numbers stay
    assert read_csv(path) == [row]
    assert run(path, "--diff", path).output.startswith("1 same")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a`b", "``a`b``"),
        ("`a``b`", "``` `a``b` ```"),
        ("a|b", "`a\\|b`"),
        ("a\nb", "`a b`"),
    ],
)
def test_a_name_in_markdown_is_code_whatever_it_holds(tmp_path, name, shown):
    log, markdown = tmp_path / "r.csv", tmp_path / "r.md"
    log.write_text(csv_text([Row(name, used_registers=1)]), newline="")
    assert run(log, "--markdown", markdown).exit_code == 0
    assert markdown.read_text().splitlines()[-1].startswith(f"| {shown} | ")


def test_text_in_markdown_is_text(tmp_path):
    old, new, markdown = tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / "r.md"
    row = Row("k", used_registers=1, toolchain="`x` <b> [a](b)", code="1")
    old.write_text(csv_text([row]), newline="")
    new.write_text(csv_text([row._replace(used_registers=2, toolchain="y")]), newline="")
    run(new, "--diff", old, "--markdown", markdown)
    assert r"\`x\` \<b\> \[a\](b)" in markdown.read_text()


@pytest.mark.parametrize(
    ("option", "start"),
    [("--csv", "kernel_config,"), ("--json", "{"), ("--html", "<!doctype"), ("--markdown", "**")],
)
def test_a_dash_is_standard_output_which_holds_nothing_else(project, option, start):
    result = report(project, option, "-", "--check")
    assert result.exit_code == 0
    assert result.stdout.startswith(start)
    assert "check passed" not in result.stdout
    assert "2 kernels, 0 with spills" in result.stderr
    assert not Path("-").exists()
    assert "two outputs" in report(project, "--csv", "-", "--json", "-").output


@pytest.mark.parametrize("command", ["tools.ptx_report", "kernelmint ptx-report"])
def test_standard_output_on_a_full_disk_is_an_error_and_no_traceback(project, command):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command.split(), project.logs],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "Error: standard output: No space left on device\n"


# What it reads


def test_a_folder_of_logs_a_file_gzip_and_standard_input(project, tmp_path):
    zipped = tmp_path / "build.log.gz"
    zipped.write_bytes(gzip.compress(record(symbol(KEYS[0])).encode()))
    assert KEYS[0] in run(zipped).output
    result = run("-", input=record(symbol(KEYS[1])))
    assert (result.exit_code, KEYS[1] in result.output) == (0, True)
    result = run(project.logs, zipped)
    assert "3 kernels" in result.output


def test_a_build_folder_prefers_the_logs_beside_its_objects(project):
    (project.root / "build" / "other.log").write_text(record("other"))
    result = run(project.root / "build")
    assert "2 kernels" in result.output


def test_objects(tmp_path):
    printed = resource_usage((DATA / "cuobjdump13.4.txt").read_text())
    of_arch = [[row for row in printed if row.arch == f"sm_{of}"] for of in (80, 90)]
    path = tmp_path / "k.o"
    path.write_bytes(library(fatbin((2, 80, cubin(of_arch[0])), (2, 90, cubin(of_arch[1])))))
    out = tmp_path / "r.csv"
    assert run(path, "--csv", out).exit_code == 0
    rows = list(csv.DictReader(out.open(newline="")))
    assert [row["arch"] for row in rows] == ["sm_80"] * 6 + ["sm_90"] * 6
    ours = [row for row in rows if row["kernel_config"] == KEYS[1]]
    figures = [(row["used_registers"], row["smem"], row["cmem0"]) for row in ours]
    assert figures == [("125", "4096", "376"), ("128", "5120", "552")]
    assert all(row["spilled"] == row["spill_stores"] == "" for row in rows)  # it does not say


def test_instructions_without_nvdisasm(monkeypatch, tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(cubin([Row("k")]))
    monkeypatch.setattr("tools.ptx_report.objects.find_tool", lambda name: None)
    result = run(path, "--sass")
    assert result.exit_code == 2
    assert "needs nvdisasm" in result.output


def bad_inputs(folder):
    """Bad inputs by name: (path, what the message says)."""
    (folder / "empty.log").touch()
    (folder / "no_kernel.log").write_text("gcc -c a.c\nptxas info    : 0 bytes gmem\n")
    (folder / "binary").write_bytes(b"PK\0\1" * 100)
    (folder / "cut.log.gz").write_bytes(gzip.compress(record("k").encode() * 50)[:-9])
    (folder / "nothing").mkdir()
    (folder / "no.csv").write_text("a,b\n1,2\n")
    (folder / "bad.csv").write_text("kernel_config,used_registers\nk,many\n")
    return {
        "missing": (folder / "missing.log", 2, "no such file or folder"),
        "a folder without logs": (folder / "nothing", 2, "no log in it"),
        "a binary": (folder / "binary", 2, "a binary file"),
        "an empty file": (folder / "empty.log", 1, "no kernel in"),
        "no kernel": (folder / "no_kernel.log", 1, "2 lines, 1 lines are ptxas's"),
        "half a gzip": (folder / "cut.log.gz", 2, "cannot be read"),
        "not our CSV": (folder / "no.csv", 2, "must name the columns"),
        "a bad cell": (folder / "bad.csv", 2, "bad.csv:2: used_registers is 'many'"),
    }


BAD_INPUTS = (
    "missing",
    "a folder without logs",
    "a binary",
    "an empty file",
    "no kernel",
    "half a gzip",
    "not our CSV",
    "a bad cell",
)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_a_sentence_and_overwrites_nothing(tmp_path, name):
    path, status, message = bad_inputs(tmp_path)[name]
    out = tmp_path / "out.csv"
    out.write_text("before")
    result = run(path, "--csv", out, "--json", tmp_path / "o.json", "--html", tmp_path / "o.html")
    assert result.exit_code == status
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert out.read_text() == "before"
    assert not (tmp_path / "o.json").exists()
    assert not (tmp_path / "o.html").exists()


def test_nothing_to_do():
    assert run().exit_code == 2
    assert "give logs to read" in run().output


@pytest.mark.parametrize(
    "text", ["not a CSV", "kernel_config,used_registers\nk,x\n", b"\xff\xfe\0"]
)
def test_an_unreadable_baseline(project, text):
    project.baseline.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = project.root / "out.csv"
    result = report(project, "--check", "--csv", out)
    assert result.exit_code == 2
    assert "sm80.ptxas.csv" in result.output
    assert not out.exists()


def test_a_bad_manifest(project):
    project.manifest.write_text("{}")
    result = report(project)
    assert (result.exit_code, "not a manifest" in result.output) == (2, True)


def test_a_file_that_cannot_be_written(project, monkeypatch):
    path = project.root / "old.csv"
    path.write_text("before")
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left"))
    )
    result = report(project, "--csv", path)
    assert (result.exit_code, "no space left" in result.output) == (2, True)
    assert path.read_text() == "before"
    assert [p.name for p in project.root.glob(".old*")] == []


def test_verbose_says_what_was_not_understood(project):
    log = project.log(0, record(symbol(KEYS[0])) + "ptxas info    : a new kind of message\n")
    result = report(project, "--verbose")
    assert f"read: {log}" in result.output
    assert "1 lines not understood" in result.output
    assert ":7: not understood: ptxas info    : a new kind of message" in result.output


# What it compares


def test_diff(project, tmp_path):
    old = tmp_path / "old.csv"
    report(project, "--csv", old)
    project.log(0, record(symbol(KEYS[0]), registers=90))
    project.log(1, record(symbol(KEYS[1]), registers=101, spills=8) + record("_Z3newv"))
    markdown = tmp_path / "diff.md"
    result = report(project, "--diff", old, "--markdown", markdown)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert [line[2] for line in lines[1:4]] == ["worse", "added", "better"]
    assert "1 worse, 1 added, 1 better" in result.output
    assert "0 → 16 (+16)" in result.output
    text = markdown.read_text()
    assert text.startswith("**ptx-report: 1 worse, 1 added, 1 better**")
    assert f"| `{KEYS[0]}` | sm_80 | better |" in text
    assert "100 → 90 (-10)" in text


def test_a_diff_that_fits_a_comment(project, tmp_path):
    old = tmp_path / "old.csv"
    rows = "".join(f"kernel_number_{n}_with_a_long_name,{n % 250}\n" for n in range(5000))
    old.write_text("kernel_config,used_registers\n" + rows)
    markdown = tmp_path / "diff.md"
    report(project, "--diff", old, "--markdown", markdown)
    text = markdown.read_text()
    assert len(text) < 65_536
    assert text.count("| removed |") > 100
    assert text.index("<summary>") < 4000  # twenty are in sight, the others folded
    assert text.splitlines()[-3].endswith("more.")


def test_an_unreadable_old_report(project, tmp_path):
    result = report(project, "--diff", tmp_path / "none.csv")
    assert (result.exit_code, "none.csv" in result.output) == (2, True)


# What it gates


def test_a_clean_build_passes(project):
    result = report(project, "--check")
    assert result.exit_code == 0
    assert "check passed: 2 rows" in result.output


def test_a_planted_spill_fails_the_budget(project):
    project.log(1, record(symbol(KEYS[1]), registers=255, spills=8))
    out = project.root / "r.csv"
    result = report(project, "--check", "--csv", out)
    assert result.exit_code == 1
    offence = "16 spill bytes, the budget of flash_forward.sm80 is 0"
    assert f"{KEYS[1]} [flash_forward_sm80, sm_80]: {offence}" in result.output
    assert KEYS[0] not in result.output.split("check failed")[0].split("spills\n")[1]
    assert out.exists()  # the report of a failing build is what one wants to see


def test_a_serialised_wgmma_fails_the_budget(project):
    project.log(1, record(symbol(KEYS[1]), notes=["C7510"]))
    result = report(project, "--check")
    assert result.exit_code == 1
    assert "1 C75xx notes" in result.output
    assert "(C7510)" in result.output


@pytest.mark.parametrize("name", ["registers", "stack_bytes"])
def test_other_budgets(tmp_path, name):
    project = Project(tmp_path, {name: 99}).clean()
    project.log(0, record(symbol(KEYS[0]), registers=80, spills=0))
    project.log(1, record(symbol(KEYS[1]), registers=100, spills=100))
    result = report(project, "--check")
    assert result.exit_code == 1
    assert result.output.count("the budget of flash_forward.sm80 is 99") == 1


def test_a_cut_record_fails_the_check(project):
    text = record(symbol(KEYS[1]))
    project.log(1, text[: text.index("Used")])
    result = report(project, "--check")
    assert result.exit_code == 1
    assert "sm80_01.cu:2: incomplete, so it cannot be checked" in result.output


def test_a_spill_in_a_device_function_of_a_kernel_fails_its_budget(project):
    helper = symbol(KEYS[1]).replace("18flash_forward_sm80", "6helper")
    text = f"ptxas info    : Function properties for {helper}\n"
    text += "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    project.log(1, record(symbol(KEYS[1])) + text)
    assert report(project, "--check").exit_code == 1


def test_a_kernel_of_the_manifest_without_a_row_fails_the_check(project):
    project.log(1, "its object's log was lost\n")
    result = report(project, "--check")
    assert result.exit_code == 1
    assert f"{KEYS[1]} [sm_80]: in the manifest, and no row" in result.output
    assert KEYS[0] not in result.output.split("ptx-report: ", 1)[1]
    # The filter selects among those as well, by what the manifest says of them.
    assert report(project, "--check", "--where", "d_head == 128").exit_code == 0
    assert report(project, "--check", "--where", "target == 'sm80'").exit_code == 1


def test_each_architecture_of_a_build_has_every_kernel_of_the_targets_that_it_suits(project):
    one, both = (record(symbol(KEYS[0])), "".join(record(symbol(key)) for key in KEYS))
    project.log(0, both + one.replace("sm_80", "sm_90"))
    project.log(1, "")
    result = report(project, "--check")
    assert result.exit_code == 1
    assert f"{KEYS[1]} [sm_90]: in the manifest, and no row" in result.output
    assert "[sm_80]: in the manifest" not in result.output
    # A target of one architecture alone: if it is not built, its kernels are not missed.
    manifest = json.loads(project.manifest.read_text())
    targets = manifest["families"][0]["targets"]
    hopper = targets[1]["kernels"][0] | {"key": "flash_forward.sm90a.bf16", "file": "h.cu"}
    targets.append(targets[1] | {"name": "sm90a", "capability": 90, "kernels": [hopper]})
    project.manifest.write_text(json.dumps(manifest))
    assert "flash_forward.sm90a.bf16 [sm_90a]: in" in report(project, "--check").output
    project.log(0, both)
    assert report(project, "--check").exit_code == 0


def test_check_needs_something_to_check(tmp_path):
    result = run(DATA / "ptxas_11.8.89_sm_80.log", "--check")
    assert result.exit_code == 2
    assert "none of 2 kernels is one of ours" in result.output


def test_check_of_foreign_kernels_against_an_old_report(tmp_path):
    old, log = tmp_path / "old.csv", tmp_path / "b.log"
    log.write_text(record("_Z4kernv"))
    run(log, "--csv", old)
    assert run(log, "--diff", old, "--check").exit_code == 0
    log.write_text(record("_Z4kernv", registers=101))
    result = run(log, "--diff", old, "--check")
    assert result.exit_code == 1
    assert "101 registers (was 100)" in result.output


def write_baseline(project, path):
    result = check(project, path, "--write-baseline")
    assert "written: " in result.output
    return result


def test_baseline(project):
    write_baseline(project, built(project))
    text = project.baseline.read_text()
    assert all(key in text for key in KEYS)
    assert "sm80_00.cu" not in text  # nothing that changes from build to build
    assert {row.toolchain for row in read_csv(project.baseline)} == {"nvcc 13.0.88"}
    assert check(project, built(project)).exit_code == 0


def test_a_regression_of_the_code_fails_against_the_baseline(project):
    write_baseline(project, built(project))
    header = project.specs / "flash_forward" / "sm80.cuh"
    header.write_text(header.read_text() + "int slower();\n")
    project.log(0, record(symbol(KEYS[0]), registers=104))
    project.log(1, record(symbol(KEYS[1]), registers=60))
    result = check(project, built(project))
    assert result.exit_code == 1
    assert f"{KEYS[0]} [flash_forward_sm80, sm_80]: 104 registers (was 100)" in result.output
    assert "the code changed" in result.output
    assert (
        f"{KEYS[1]} [flash_forward_sm80, sm_80]" not in result.output
    )  # fewer registers are no offence
    write_baseline(project, built(project))
    assert check(project, built(project)).exit_code == 0


def test_a_newer_compiler_is_told_apart_from_a_change_of_the_code(project):
    write_baseline(project, built(project))
    project.log(0, record(symbol(KEYS[0]), registers=120))
    result = check(project, built(project, version="13.5.37"))
    assert result.exit_code == 0
    assert "is of nvcc 13.0.88, this build of nvcc 13.5.37: 1 kernels differ, 1 of them worse" in (
        result.output
    )
    # Its own baseline stands beside the other compiler's.
    write_baseline(project, built(project, version="13.5.37"))
    assert len(read_csv(project.baseline)) == 4
    project.log(0, record(symbol(KEYS[0]), registers=121))
    result = check(project, built(project, version="13.5.37"))
    assert result.exit_code == 1
    assert "121 registers (was 120)" in result.output
    project.log(0, record(symbol(KEYS[0]), registers=100))
    assert check(project, built(project, version="13.0.88")).exit_code == 0


def test_of_several_other_compilers_the_newest_is_the_one_compared(project):
    for version, registers in (("13.10.1", 100), ("13.9.2", 80)):
        project.log(0, record(symbol(KEYS[0]), registers=registers))
        write_baseline(project, built(project, version=version))
    result = check(project, built(project, version="14.0.0"))
    assert result.exit_code == 0
    assert "is of nvcc 13.10.1, this build of nvcc 14.0.0: 1 kernels differ, 0 of them worse" in (
        result.output
    )


def test_a_diff_names_the_cause(project, tmp_path):
    old = shutil.copy(built(project), tmp_path / "old.csv")
    project.log(0, record(symbol(KEYS[0]), registers=120))
    result = check(project, built(project, version="13.5.37"), "--diff", old)
    assert result.exit_code == 0
    assert "another compiler: nvcc 13.0.88 -> nvcc 13.5.37" in " ".join(result.output.split())
    result = check(project, built(project, flags="-O2"), "--diff", old)
    assert result.exit_code == 1
    assert "the code changed" in result.output


def test_an_architecture_without_a_baseline_is_a_remark(project):
    write_baseline(project, built(project))
    for index, key in enumerate(KEYS):
        project.log(index, record(symbol(key), arch="sm_90", registers=200))
    result = check(project, built(project))
    assert result.exit_code == 0
    assert "has no rows for sm_90" in result.output


def test_no_baseline_from_an_unknown_compiler(project):
    result = report(project, "--write-baseline")
    assert result.exit_code == 2
    assert "its compiler is unknown" in result.output
    assert not project.baseline.exists()


def test_no_baseline_from_a_cut_record(project):
    project.log(1, record(symbol(KEYS[1]))[:200])
    result = check(project, built(project), "--write-baseline")
    assert result.exit_code == 2
    assert not project.baseline.exists()


# The build's collector


def test_the_fingerprint_is_of_what_is_compiled(project):
    def code():
        return {row.key: row.code for row in read_csv(built(project)) if row.key}

    def changed(path, text):
        before, old = code(), path.read_text()
        path.write_text(text)
        after = code()
        path.write_text(old)
        return {key for key in before if before[key] != after[key]}

    family = project.specs / "flash_forward"
    assert len(set(code().values())) == 2
    assert changed(family / "sm80.cuh", "int kernel(int);\n") == set(KEYS)
    assert changed(family / "sm80_launch.cuh", "// gone\n") == set(KEYS)
    assert changed(family / "sm80.cuh", "// a new comment\n\nint kernel();\n") == set()
    assert changed(family / "cpu.h", "int another();\n") == set()


def test_the_collector_runs_alone_and_isolated(project, tmp_path):
    """As in an isolated build: no package but the standard library, from any folder."""
    out = tmp_path / "ptxas.csv"
    done = subprocess.run(
        [
            sys.executable, "-I", "-S", str(ROOT / "codegen" / "ptxas" / "collect.py"),
            str(project.logs), "--manifest", str(project.manifest), "--csv", str(out),
        ],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "kernels: 2, rows: 2, with spills: 0" in done.stdout
    assert [row.kernel_config for row in read_csv(out)] == list(KEYS)


def test_the_collector_skips_logs_of_sources_that_are_gone(project, capsys):
    project.log(77, record(symbol(KEYS[0]), registers=255))
    rows = read_csv(built(project))
    assert [row.used_registers for row in rows] == [100, 101]
    assert "sm80_77.cu is not among the manifest's sources" in capsys.readouterr().err


def test_the_collector_says_which_kernels_are_missing(project, capsys):
    project.log(1, "nothing\n")
    built(project)
    said = capsys.readouterr().err
    assert "flash_forward.sm80 [sm_80]: 1 kernels of the manifest are in no log" in said


def test_the_collector_of_a_build_without_cuda(project):
    shutil.rmtree(project.logs)
    project.logs.mkdir()
    assert read_csv(built(project)) == []


def test_the_collector_of_logs_without_a_kernel(project, capsys):
    for index in range(2):
        project.log(index, "compiled without -Xptxas -v\n")
    arguments = [project.logs, "--manifest", project.manifest, "--csv", project.root / "x.csv"]
    assert collect.main([*map(str, arguments)]) == 1
    assert "-Xptxas -v" in capsys.readouterr().err
    assert not (project.root / "x.csv").exists()


# With a real compiler


def test_a_planted_spill_of_a_real_build(project):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc on PATH")
    source = DATA / "src" / "kernels.cu"
    command = [nvcc, "-std=c++17", "-gencode", "arch=compute_80,code=sm_80", "-Xptxas", "-v"]
    # A recursive device function of this object spills under any limit.
    for limit, planted in ((255, False), (32, True)):
        done = subprocess.run(
            [*command, f"-maxrregcount={limit}", "-c", str(source), "-o", os.devnull],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        project.log(0, done.stderr)
        project.log(1, record("_Z5otherv"))
        result = report(project, "--check")
        assert result.exit_code == 1, result.output
        offences = [line for line in result.output.splitlines() if "the budget of" in line]
        assert any("rec(float const*, int)" in line for line in offences)
        assert planted == any(
            f"{KEYS[1]} [flash_forward_sm80, sm_80]: " in line and "spill bytes" in line
            for line in offences
        )
