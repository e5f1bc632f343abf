"""Machine code that reads uniform registers which no instruction writes."""

import os
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from codegen.build import nvcc
from codegen.core.ptxas_rows import csv_text, read_csv
from tests.ptx_report.cubins import cubin, resource_usage
from tests.ptx_report.samples import DATA
from tools.ptx_report import gate, objects, sass
from tools.ptx_report.__main__ import main

WRONG = DATA / "src" / "unwritten.ptx"  # ptxas 13.0.88 compiles it wrongly for 9.0
LISTING = DATA / "cuobjdump13.1_unwritten.txt"
KEY = "flash_decode.sm80.bf16-d64-c128-w8-s3"
COUNT = 2
FIRST = "UR0 UR1 UR2: LDGSTS.E.BYPASS.128 [R0+UR0], desc[UR1][R10.64], !P0 at 0x05c0"


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def listing(*instructions, name="k", arch="sm_90"):
    """What cuobjdump prints of a function of these instructions."""
    lines = [f"\tcode for {arch}\n", f"\t\tFunction : {name}\n"]
    for at, instruction in enumerate(instructions):
        lines += [f"        /*{16 * at:04x}*/   {instruction} ;   /* 0x00000a00ff017b82 */\n"]
        lines += ["                                           /* 0x000fe20000000800 */\n"]
    return "".join(lines)


def unwritten(*instructions):
    (function,) = sass.functions(listing(*instructions).splitlines(keepends=True))
    return function.unwritten


@pytest.mark.parametrize(
    "write",
    [
        "ULDC.64 UR4, c[0x0][0x208]",
        "LDCU.128 UR4, c[0x0][0x380]",
        "LDCU.128 UR2, c[0x0][0x380]",
        "UIMAD.WIDE.U32 UR4, UR5, UR4, URZ",
        "@!UP0 ULDC.64 UR4, c[0x0][0x208]",
    ],
)
def test_an_instruction_may_write_a_pair_and_more(write):
    assert unwritten(write, "LDG.E R4, desc[UR4][R4.64]") == (0, "")


@pytest.mark.parametrize(
    "write",
    [
        "UMOV UR4, 0xf0",
        "UMOV UR4, URZ",
        "S2UR UR4, SR_CTAID.X",
        "R2UR UR4, R9",
        "R2UR.OR P0, UR4, R9",
        "UIADD3 UR4, UP0, UR4, 0x80, URZ",
        "ELECT P0, UR4, PT",
        "@UP1 USEL UR4, URZ, 0x1, UP0",
        "REDUX.SUM UR4, R5",
    ],
)
def test_each_instruction_that_writes_one(write):
    assert unwritten(write, "IADD3 R4, R4, UR4, RZ") == (0, "")
    count, first = unwritten(write, "LDG.E R4, desc[UR4][R4.64]")
    assert (count, first) == (1, "UR5: LDG.E R4, desc[UR4][R4.64] at 0x0010")


@pytest.mark.parametrize(
    ("read", "registers"),
    [
        ("@!P1 LDG.E R4, desc[UR14][R4.64]", "UR14 UR15"),
        ("LDGSTS.E.BYPASS.128 [R99+UR0+0x8000], desc[UR1][R84.64], !P0", "UR0 UR1 UR2"),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, !UPT", "UR8 UR9"),
        ("UISETP.NE.AND UP0, UPT, UR7, URZ, UPT", "UR7"),
        ("UMOV UR4, UR7", "UR7"),
        ("STS [UR7+0x10], R4", "UR7"),
        ("IMAD R4, R5.reuse, UR7, R6", "UR7"),
        ("UTMALDG.4D [UR8], [UR12], desc[UR16]", "UR8 UR12 UR16 UR17"),
    ],
)
def test_what_is_read(read, registers):
    text = re.sub(r"^@!P1 ", "", read)
    assert unwritten("UMOV UR20, 0x1", read) == (1, f"{registers}: {text} at 0x0010")


def test_a_write_anywhere_in_the_function_counts_and_none_of_another_function():
    later = listing("IADD3 R4, R4, UR4, RZ", "UMOV UR4, 0x1", name="a")
    other = listing("IADD3 R4, R4, UR4, RZ", name="b")
    found = {f.symbol: f.unwritten[0] for f in sass.functions((later + other).splitlines())}
    assert found == {"a": 0, "b": 1}


def test_no_uniform_register_is_read_that_is_not_one():
    assert unwritten("IADD3 R4, R4, URZ, RZ", "BRA.U UP0, 0x10", "EXIT") == (0, "")


# The command


@pytest.fixture
def printed(monkeypatch, tmp_path):
    """An object, and the file that cuobjdump prints of it: what it printed of `WRONG`."""
    text = tmp_path / "printed.txt"
    shutil.copy(LISTING, text)
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!/bin/sh\nexec cat {text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "k.cubin"
    path.write_bytes(cubin(resource_usage(LISTING.read_text())))
    return path, text


def rows_of(path, *options):
    out = path.with_name("rows.csv")
    assert run(path, *options, "--csv", out).exit_code == 0
    return read_csv(out)


def test_without_the_option_machine_code_is_not_read(printed):
    (row,) = rows_of(printed[0])
    assert (row.unwritten, row.unwritten_at) == (None, None)


def test_wrong_machine_code_is_shown_and_fails_the_check(printed):
    path, _ = printed
    (row,) = rows_of(path, "--sass")
    assert (row.unwritten, row.unwritten_at) == (COUNT, FIRST)
    assert row.remarks == (f"unwritten {FIRST}",)
    assert (
        "1 kernel, 1 whose spills are unknown (0 with a stack), 1 with unwritten registers"
        in run(path, "--sass").output
    )
    for given in (path, "--sass"), (path.with_name("rows.csv"),):  # the CSV knows as much
        result = run(*given, "--check", "--where", f"kernel_config == '{KEY}'")
        assert result.exit_code == 1
        kernel = f"{KEY} [flash_decode_sm80, true, sm_90]"
        assert f"{kernel}: {COUNT} instructions" in result.output
        assert f"{FIRST}: ptxas compiled it wrongly, and a GPU stops" in result.output


def test_the_same_without_the_wrong_instructions_passes(printed):
    path, text = printed
    lines = text.read_text().splitlines(keepends=True)
    text.write_text("".join(line for line in lines if "desc[UR1]" not in line))
    (row,) = rows_of(path, "--sass")
    assert (row.unwritten, row.unwritten_at, row.remarks) == (0, None, ())
    result = run(path, "--sass", "--check", "--where", "unwritten == 0")
    assert (result.exit_code, "check passed: 1 row\n" in result.output) == (0, True)


def test_it_is_worse_than_before_and_no_baseline_excuses_it(printed, tmp_path):
    path, _ = printed
    (wrong,) = rows_of(path, "--sass")
    (tmp_path / "before.csv").write_text(csv_text([wrong._replace(unwritten=0, unwritten_at=None)]))
    result = run(path, "--sass", "--diff", tmp_path / "before.csv")
    assert f"0 → {COUNT} (+{COUNT})" in result.output
    (tmp_path / "specs/flash_decode").mkdir(parents=True)
    built = wrong._replace(kind="kernel", arch="sm_90", toolchain="nvcc 13.0.88")
    (baseline,) = gate.write_baselines([built], [tmp_path / "specs"])
    assert [(row.unwritten, row.unwritten_at) for row in read_csv(baseline)] == [(None, None)]


def test_a_log_holds_no_machine_code(tmp_path):
    result = run(DATA / "ptxas12.9_sm80.log", "--sass")
    assert (result.exit_code, "none of the inputs is an object" in result.output) == (2, True)


def test_a_kernel_whose_machine_code_is_not_there_does_not_pass(printed):
    path, text = printed
    text.write_text(text.read_text().replace("Function : _Z", "Function : _Y"))
    result = run(path, "--sass", "--check")
    assert (result.exit_code, "its machine code is not in" in result.output) == (2, True)


def test_what_cannot_be_disassembled(printed):
    path, text = printed
    tool = path.with_name("cuobjdump")
    fails = "echo 'Could not find nvdisasm' >&2; exit 255"
    tool.write_text(f"#!/bin/sh\nif [ $1 = -sass ]; then {fails}; fi\nexec cat {text}\n")
    result = run(path, "--sass")
    assert result.exit_code == 2
    assert "cannot be disassembled; cuobjdump says: Could not find nvdisasm" in result.output


# The compiler


def ptxas():
    """ptxas 13.0.88; skips without it."""
    try:
        compiler = subprocess.run(
            [*nvcc.find().command, "--dryrun", "-c", "-x", "cu", os.devnull],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (nvcc.NvccNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no nvcc: {error}")
    folder = re.search(r"^#\$ _HERE_=(.*)$", compiler.stderr, re.MULTILINE)
    program = shutil.which("ptxas", path=folder[1])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if "V13.0.88" not in version.stdout:
        pytest.skip("another ptxas than 13.0.88")
    return program


@pytest.mark.skipif(objects.find_cuobjdump() is None, reason="no cuobjdump")
def test_what_ptxas_13_0_88_compiles_wrongly(tmp_path):
    """The kernel of `WRONG`, cut down; if this fails with 13.0.88, the check has gone blind."""
    path = tmp_path / "k.cubin"
    subprocess.run([ptxas(), "-arch=sm_90", "-o", path, WRONG], check=True)
    (row,) = rows_of(path, "--sass")
    assert row.key == KEY
    assert (row.unwritten, row.unwritten_at) == (COUNT, FIRST)
