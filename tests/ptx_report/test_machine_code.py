"""Machine code that reads what nothing has written, or uses what a product still needs."""

import os
import re
import shutil
import subprocess
import zipfile

import pytest
from click.testing import CliRunner

from codegen.build import nvcc
from codegen.core.ptxas_rows import csv_text, read_csv
from tests.ptx_report.cubins import cubin, resource_usage
from tests.ptx_report.project import record
from tests.ptx_report.samples import DATA
from tools.ptx_report import gate, objects
from tools.ptx_report.__main__ import main
from tools.ptx_report.machine_code import faults
from tools.ptx_report.machine_code.listing import Instruction, functions
from tools.ptx_report.machine_code.operands import effect, names

WRONG = DATA / "src" / "unwritten.ptx"  # ptxas 13.0.88 compiles it wrongly for 9.0
LISTING = DATA / "nvdisasm13.1_unwritten.txt"
KEY = "flash_decode.sm80.bf16-d64-c128-w8-s3"
COUNT = 2
CONDITION = "UISETP.NE.AND UP0, UPT, URZ, URZ, UPT"
FIRST = "UR0 UR1: LDGSTS.E.BYPASS.128 [R0+UR0], desc[UR1][R10.64], !P0 at 0x05c0"


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def listing(*instructions, name="k", arch="sm_90", is_kernel=False):
    """Returns nvdisasm's listing of a function of these instructions and labels."""
    lines = [f"\t.target\t{arch}", f'\t.section\t.text.{name},"ax",@progbits']
    if is_kernel:
        lines.append(f'        .other          {name},@"STO_CUDA_ENTRY STV_DEFAULT"')
    at = 0
    for instruction in instructions:
        if instruction.endswith(":"):
            lines.append(instruction)
        else:
            lines.append(f"        /*{at:04x}*/                   {instruction} ;")
            at += 16
    return "\n".join([*lines, ""])


def unwritten(*instructions, **options):
    (function,) = functions(listing(*instructions, **options))
    found = faults.of_function(function).unwritten
    return len(found), found[0] if found else ""


@pytest.mark.parametrize(
    "write",
    [
        "ULDC.64 UR4, c[0x0][0x208]",
        "LDCU.128 UR4, c[0x0][0x380]",
        "LDCU.128 UR2, c[0x0][0x380]",
        "UIMAD.WIDE.U32 UR4, URZ, 0x4, URZ",
        "@!UP0 ULDC.64 UR4, c[0x0][0x208]",
    ],
)
def test_an_instruction_may_write_a_pair_and_more(write):
    assert unwritten(CONDITION, write, "LDG.E R4, desc[UR4][R4.64]") == (0, "")


@pytest.mark.parametrize(
    "write",
    [
        "UMOV UR4, 0xf0",
        "UMOV UR4, URZ",
        "S2UR UR4, SR_CTAID.X",
        "R2UR UR4, R9",
        "R2UR.OR P0, UR4, R9",
        "UIADD3 UR4, UP1, URZ, 0x80, URZ",
        "ELECT P0, UR4, PT",
        "@UP0 USEL UR4, URZ, 0x1, UP0",
        "REDUX.SUM UR4, R5",
    ],
)
def test_each_instruction_that_writes_one(write):
    assert unwritten(CONDITION, write, "IADD3 R4, R4, UR4, RZ") == (0, "")
    count, first = unwritten(CONDITION, write, "LDG.E R4, desc[UR4][R4.64]")
    assert (count, first) == (1, "UR5: LDG.E R4, desc[UR4][R4.64] at 0x0020")


@pytest.mark.parametrize(
    ("read", "registers"),
    [
        ("@!P1 LDG.E R4, desc[UR14][R4.64]", "UR14 UR15"),
        ("LDGSTS.E.BYPASS.128 [R99+UR0+0x8000], desc[UR1][R84.64], !P0", "UR0 UR1"),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, !UPT", "UR8 UR9 UR10 UR11"),
        ("HGMMA.64x8x16.F32 R24, R4, gdesc[UR8], R24, gsb0", "UR10 UR11"),
        ("UISETP.NE.AND UP0, UPT, UR7, URZ, UPT", "UR7"),
        ("UMOV UR4, UR7", "UR7"),
        ("STS [UR7+0x10], R4", "UR7"),
        ("IMAD R4, R5.reuse, UR7, R6", "UR7"),
        ("UTMALDG.4D [UR8], [UR12], desc[UR16]", "UR8 UR9 UR10 UR11 UR12 UR13 UR16 UR17"),
    ],
)
def test_what_is_read(read, registers):
    text = re.sub(r"^@!P1 ", "", read)
    assert unwritten("UMOV UR20, 0x1", read) == (1, f"{registers}: {text} at 0x0010")


def test_only_a_write_on_the_way_counts():
    read, write = "IADD3 R4, R4, UR4, RZ", "UMOV UR4, 0x1"
    assert unwritten(read, write) == (1, f"UR4: {read} at 0x0000")
    assert unwritten(".L_0:", read, write, "@P0 BRA `(.L_0)") == (0, "")  # a second round has it
    skipped = ("@P0 BRA `(.L_0)", write, ".L_0:", read)
    assert unwritten(*skipped) == (0, "")  # R4 may not matter then
    assert unwritten("BRA `(.L_0)", write, ".L_0:", read)[0] == 1


def test_an_address_is_written_on_every_way():
    load = "LDG.E R4, desc[UR4][R4.64]"
    some = ("@P0 BRA `(.L_0)", "ULDC.64 UR4, c[0x0][0x208]", ".L_0:", load)
    assert unwritten(*some) == (1, f"UR4 UR5 on a path: {load} at 0x0020")
    assert unwritten(*some[:2], "BRA `(.L_1)", ".L_0:", some[1], ".L_1:", load) == (0, "")
    assert unwritten("@P0 EXIT", *some[1:]) == (0, "")


def test_a_called_function_writes_and_reads_for_its_caller():
    body = ("CALL.REL.NOINC `(f)", "LDG.E R4, desc[UR4][R4.64]", "EXIT", "f:")
    assert unwritten(*body, "ULDC.64 UR4, c[0x0][0x208]", "RET.REL.NODEC R2 `(k)") == (0, "")
    assert unwritten(*body, "RET.REL.NODEC R2 `(k)")[0] == 1
    assert unwritten(*body, "IADD3 R4, R4, UR9, RZ", "EXIT")[1].startswith("UR9: ")
    assert unwritten("CALL.ABS.NOINC `(elsewhere)", *body[1:3]) == (0, "")


def test_a_kernel_starts_with_nothing_and_a_device_function_with_its_arguments():
    code = ("@P0 IADD3 R4, R5, R5, RZ", "BSYNC B0")
    assert unwritten(*code, is_kernel=True)[0] == 2
    assert unwritten(*code) == (0, "")


@pytest.mark.parametrize(
    "part",
    [
        "PRMT R4, RZ, 0x7610, R4",  # sets one half
        "UPRMT UR4, UR8, 0x7610, UR4",
        "LOP3.LUT R4, R4, 0xfffffff7, RZ, 0xc0, !PT",  # sets one bit
        "BMOV.32.CLEAR RZ, B0",
        "HGMMA.64x8x16.F32 R24, gdesc[UR8], R24, UP0, gsb0",  # its sums begin at 0
    ],
)
def test_what_was_there_before_may_be_anything(part):
    before = ("UMOV.64 UR8, 0x0", "UMOV.64 UR10, 0x0", "UISETP.NE.AND UP0, UPT, UR8, URZ, UPT")
    assert unwritten(*before, part, is_kernel=True) == (0, "")


# Of PyTorch 2.11's libtorch_cuda.so, for 8.0, 10.0 and 12.0.
@pytest.mark.parametrize(
    "move",
    [
        "MOV R120, R38",
        "IMAD.MOV.U32 R8, RZ, RZ, R26",
        "@P0 IMAD.MOV.U32 R8, RZ, RZ, R26",
        "MOV.64 R26, R158",  # R158 is written
        "STL.64 [R1+0x160], R222",
    ],
)
def test_an_unwritten_register_may_be_copied_and_spilled(move):
    before = ("LDC R1, c[0x0][0x37c]", "S2R R158, SR_TID.X", "ISETP.NE.AND P0, PT, R158, RZ, PT")
    assert unwritten(*before, move, is_kernel=True) == (0, "")


@pytest.mark.parametrize(
    ("use", "registers"),
    [
        ("FADD R9, R26, R26", "R26"),
        ("FADD R9, R27, R27", "R27"),
        ("STG.E desc[UR4][R158.64], R27", "R27"),
        ("LDG.E R4, desc[UR4][R26.64]", "R26 R27"),
        ("@P1 EXIT", "P1"),
    ],
)
def test_what_is_copied_is_as_unwritten_as_before(use, registers):
    before = ("ULDC.64 UR4, c[0x0][0x208]", "CS2R R158, SRZ", "ISETP.NE.AND P0, PT, R158, RZ, PT")
    copies = (
        "MOV.64 R30, R28",
        "@P0 MOV R31, R29",
        "MOV R26, R30",
        "IMAD.MOV.U32 R27, RZ, RZ, R31",
    )
    uses = (use, "EXIT")
    bare = re.sub(r"^@P1 ", "", use)
    assert unwritten(*before, *copies, *uses, is_kernel=True) == (
        1, f"{registers}: {bare} at 0x0070",
    )  # fmt: skip
    if registers != "P1":  # once one way writes what is copied, the copy may be used
        around = ("@P0 BRA `(.L_0)", "CS2R R28, SRZ", ".L_0:")
        found = unwritten(*before, *around, *copies, *uses, is_kernel=True)
        assert found == (0, "")
        before = (*before, "CS2R R26, SRZ")  # and a copy replaces what was there
        assert unwritten(*before, *copies, *uses, is_kernel=True)[0] == 1


def test_copies_around_a_loop():
    start = ("S2R R0, SR_TID.X", "ISETP.NE.AND P0, PT, R0, RZ, PT")
    loop = (".L_0:", "FADD R9, R5, R0", "MOV R5, R7", "MOV R7, {}", "@P0 BRA `(.L_0)", "EXIT")
    of = lambda source: [*start, *(line.format(source) for line in loop)]  # noqa: E731
    assert unwritten(*of("R5"), is_kernel=True)[0] == 1  # each is a copy of the other
    assert unwritten(*of("R0"), is_kernel=True) == (0, "")  # the third round has it


def test_a_called_function_may_copy_its_arguments():
    start = ("S2R R4, SR_TID.X", "CS2R R2, SRZ", "CALL.REL.NOINC `(f)", "FADD R9, R20, R4", "EXIT")
    body = ("f:", "MOV R20, R4", "RET.REL.NODEC R2 `(k)")
    assert unwritten(*start, *body, is_kernel=True) == (0, "")


@pytest.mark.parametrize(
    "access",
    ["STG.E.ENL2.256 desc[UR4][R2.64], R20, R16", "LDG.E.ENL2.256 R20, R16, desc[UR4][R2.64]"],
)
def test_256_bits_are_two_operands_of_four_registers(access):
    own = effect(*access.split(" ", 1))
    assert names((own.reads | own.writes) & ~own.addresses) == "R16 R17 R18 R19 R20 R21 R22 R23"


def test_no_uniform_register_is_read_that_is_not_one():
    assert unwritten(CONDITION, "IADD3 R4, R4, URZ, RZ", "BRA.U UP0, 0x10", "EXIT") == (0, "")


# Real machine code, altered

ARCHITECTURES = ("sm80", "sm86", "sm89", "sm90a", "sm100", "sm120")


def real(arch):
    """The kernels of `src/faults.cu` for an architecture, by name."""
    text = (DATA / f"nvdisasm13.1_faults_{arch}.txt").read_text()
    return {function.symbol: function for function in functions(text)}


def altered(function, at, operation="NOP", operands=""):
    """The faults of a function with one instruction replaced."""
    old = function.instructions[at]
    function.instructions[at] = Instruction(old.address, "", operation, operands, old.source)
    found = faults.of_function(function)
    function.instructions[at] = old
    return found


def places(function, operation):
    return [at for at, i in enumerate(function.instructions) if i.operation.startswith(operation)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_right_kernels_have_no_fault(arch):
    kernels = real(arch)
    assert "walk" in kernels
    assert all(function.is_kernel for function in kernels.values())
    assert not any(any(faults.of_function(function)) for function in kernels.values())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_a_write_that_is_the_only_one(arch):
    function = real(arch)["walk"]
    writes = [effect(i.operation, i.operands).writes for i in function.instructions]
    reads = 0
    for instruction in function.instructions:
        reads |= effect(instruction.operation, instruction.operands).reads
    planted = 0
    for at, own in enumerate(writes):
        others = 0
        for other in writes[:at] + writes[at + 1 :]:
            others |= other
        if own & ~others & reads:
            planted += 1
            assert altered(function, at).unwritten, function.instructions[at]
    assert planted >= 4


def test_a_fault_names_the_line_of_the_source():
    function = real("sm90a")["walk"]
    (at,) = (
        at for at in places(function, "ULDC.64") if "UR8" in function.instructions[at].operands
    )
    first = altered(function, at).unwritten[0]
    assert re.fullmatch(
        r"UR8 UR9: LDG\.E R5, desc\[UR8\]\[R4\.64\] at 0x\w+ \(.*faults\.cu:\d+\)", first
    )


def test_a_left_operand_is_overwritten_before_the_wait():
    function = real("sm90a")["product"]
    (product,) = places(function, "HGMMA")
    function.instructions.insert(product + 1, function.instructions[product])
    found = altered(function, product + 1, "IMAD.WIDE.U32", "R28, R7, 0x10, R4")
    assert [text.partition(" at ")[0] for text in found.in_flight] == [
        "R28 R29: IMAD.WIDE.U32 R28, R7, 0x10, R4"
    ]
    assert not altered(function, product + 1, "MOV", "R32, RZ").in_flight


@pytest.mark.parametrize("operands", ["", "gsb0, 0x1"])
def test_without_a_wait_sums_are_read_and_left_operands_overwritten(operands):
    function = real("sm90a")["product"]
    (wait,) = places(function, "WARPGROUP.DEPBAR")
    operation = "WARPGROUP.DEPBAR.LE" if operands else "NOP"
    found = altered(function, wait, operation, operands).in_flight
    assert found[-4].split()[:3] == ["R24:", "STG.E", "desc[UR4][R2.64],"]
    assert any("LDG.E.128 R28" in text for text in found)  # in the next round


def test_groups_are_waited_for_in_their_order():
    one, two = (f"HGMMA.64x8x16.F32 R{r}, gdesc[UR8], R{r}, gsb0" for r in (24, 32))
    (function,) = functions(
        listing(one, two, "WARPGROUP.DEPBAR.LE gsb0, 0x1", "MOV R0, R24", "MOV R1, R32")
    )
    (found,) = faults.of_function(function).in_flight
    assert found == "R32: MOV R1, R32 at 0x0040"


# The command


@pytest.fixture
def printed(monkeypatch, tmp_path):
    """An object, and the file that nvdisasm prints of it: what it printed of `WRONG`."""
    text = tmp_path / "printed.txt"
    shutil.copy(LISTING, text)
    tool = tmp_path / "nvdisasm"
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


def test_a_folder_and_a_wheel_are_read_file_by_file(printed, tmp_path):
    """The same kernel is right in one file and wrong in another."""
    path, text = printed
    lines = text.read_text().splitlines(keepends=True)
    right = tmp_path / "right.txt"
    right.write_text("".join(line for line in lines if "desc[UR1]" not in line))
    (tmp_path / "nvdisasm").write_text(
        '#!/bin/sh\nfor file; do :; done\n[ $(stat -c %s "$file") -lt 9999 ]'
        f" && exec cat {text}; exec cat {right}\n"
    )
    (large,) = (row._replace(code_bytes=9999) for row in resource_usage(text.read_text()))
    (tmp_path / "all/in").mkdir(parents=True)
    (tmp_path / "all/in/right.cubin").write_bytes(cubin([large]))
    shutil.copy(path, tmp_path / "all/wrong.cubin")
    with zipfile.ZipFile(tmp_path / "k.whl", "w") as wheel:
        for name in ("in/right.cubin", "wrong.cubin"):
            wheel.write(tmp_path / "all" / name, name)
    for place in (tmp_path / "all", tmp_path / "k.whl"):
        found = {row.source: row.unwritten for row in rows_of(place, "--sass")}
        assert found == {"in/right.cubin": 0, "wrong.cubin": COUNT}
    result = run(tmp_path / "all", "--sass", "--check", "--where", f"kernel_config == '{KEY}'")
    assert (result.exit_code, "1 offence" in result.output) == (1, True)


@pytest.mark.parametrize("name", ["k.log", "k.ptx"])
def test_an_input_without_machine_code_does_not_pass(printed, name):
    path, _ = printed
    other = path.with_name(name)
    other.write_text(record("_Z1kv") if name == "k.log" else ".entry k()\n{}\n")
    for inputs in ([other], [path, other]):
        result = run(*inputs, "--sass", "--check")
        message = f"--sass: no machine code in {other}: logs and PTX hold none"
        assert (result.exit_code, message in result.output) == (2, True)


def test_a_kernel_whose_machine_code_is_not_there_does_not_pass(printed):
    path, text = printed
    text.write_text(text.read_text().replace(".text._Z", ".text._Y"))
    result = run(path, "--sass", "--check")
    assert (result.exit_code, "its machine code is not in" in result.output) == (2, True)


def test_what_cannot_be_disassembled(printed):
    path, _ = printed
    tool = path.with_name("nvdisasm")
    tool.write_text("#!/bin/sh\necho 'nvdisasm fatal: SM60 is deprecated' >&2; exit 255\n")
    result = run(path, "--sass")
    assert result.exit_code == 2
    assert "cannot be disassembled; nvdisasm says: nvdisasm fatal: SM60" in result.output


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


@pytest.mark.skipif(objects.find_tool("nvdisasm") is None, reason="no nvdisasm")
def test_what_ptxas_13_0_88_compiles_wrongly(tmp_path):
    """The kernel of `WRONG`, cut down; if this fails with 13.0.88, the check has gone blind."""
    path = tmp_path / "k.cubin"
    subprocess.run([ptxas(), "-arch=sm_90", "-o", path, WRONG], check=True)
    (row,) = rows_of(path, "--sass")
    assert row.key == KEY
    assert (row.unwritten, row.unwritten_at) == (COUNT, FIRST)
