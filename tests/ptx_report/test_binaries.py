"""Kernels of compiled files, read without a CUDA toolkit."""

import contextlib
import shutil
import struct
import subprocess
import zipfile

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from codegen.build import nvcc
from codegen.core.elf import EM_CUDA, PROGBITS
from codegen.core.ptxas_rows import ReportError, Row, read_csv
from tests.ptx_report.cubins import HOST, cubin, elf, fatbin, library, resource_usage
from tests.ptx_report.samples import DATA
from tools.ptx_report import objects
from tools.ptx_report.__main__ import main
from tools.ptx_report.binary import reader
from tools.ptx_report.binary.fatbin import BinaryError, Budget

BINARIES = DATA / "binaries"
NAMES = ("cuda12.4", "cuda13.0", "setmaxnreg")  # Zstandard, LZ4 and its cubins of the older ABI
CUOBJDUMP = objects.find_tool("cuobjdump")


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def rows_of(path, kind="object"):
    return [row for row in reader.read(path) if row.kind == kind]


def figures(rows):
    """What cuobjdump prints as well, in any order. Of device functions it prints no registers for
    some architectures."""
    return sorted(
        (row.symbol, row.arch, 0 if "looked_up" in row.symbol else row.used_registers,
         row.stack_frame, row.smem, row.cmem0 or 0, row.other) for row in rows
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_cuobjdumps(name):
    printed = (BINARIES / f"{name}.fatbin.txt").read_text()
    assert figures(rows_of(BINARIES / f"{name}.fatbin")) == figures(resource_usage(printed))


def test_what_cuobjdump_does_not_say():
    rows = rows_of(BINARIES / "cuda13.0.fatbin")
    assert {row.toolchain for row in rows} == {"nvcc 13.0.88"}
    assert {(row.symbol, row.barriers) for row in rows if "reduced" not in row.symbol} == {
        ("plain", 0)
    }
    assert {row.barriers for row in rows if "reduced" in row.symbol} == {1}
    old = rows_of(BINARIES / "cuda12.4.fatbin")
    assert {row.barriers for row in old if "reduced" in row.symbol} == {1}
    assert all(row.code_bytes % 128 == 0 and row.code_bytes > 0 for row in [*rows, *old])
    assert len({(row.arch, row.machine_code) for row in rows}) == len(rows)
    assert all(row.spill_stores is row.spill_loads is None for row in rows)


def test_ptx_is_counted_for_each_kernel_and_architecture(tmp_path):
    rows = rows_of(BINARIES / "cuda13.0.fatbin", "ptx")
    assert {row.arch for row in rows} == {"compute_120"}
    assert [row.symbol for row in rows if row.symbol == "plain"] == ["plain"]
    assert all(200 < row.ptx_bytes < 8000 for row in rows)
    assert "12 kernels, 4 kernels in PTX, " in run(BINARIES / "cuda13.0.fatbin").output
    text = ".version 8.0\n.target sm_90a\n.func f()\n{\n}\n// an .entry in a remark\n"
    text += ".visible .entry k(\n)\n{\n}\n"
    (tmp_path / "k.ptx").write_text(text)
    assert reader.read(tmp_path / "k.ptx") == [
        Row(
            "k",
            "ptx",
            "compute_90a",
            source="k.ptx",
            ptx_bytes=len(".entry k(\n)\n{\n}\n"),
            stored_bytes=len(text),
        )
    ]


SAMPLE = cubin([Row("a", used_registers=40, stack_frame=8, smem=1280, cmem0=536), Row("b")])


def is_sample(rows, source):
    (a, b) = rows
    assert (a.symbol, a.arch, a.used_registers, a.stack_frame, a.smem, a.cmem0) == (
        "a", "sm_90", 40, 8, 1280, 536,
    )  # fmt: skip
    assert (b.symbol, b.smem, b.cmem0, a.source) == ("b", 0, None, source)
    return True


def member(name, content):
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{0:<8}{len(content):<10}`\n"
    return head.encode() + content + b"\n" * (len(content) % 2)


def test_whatever_holds_code(tmp_path):
    image = fatbin((2, 90, SAMPLE))
    for name, content in {
        "k.cubin": SAMPLE, "k.fatbin": image, "k.so": library(image + bytes(8)),
        "k.o": elf([("__nv_relfatbin", PROGBITS, image, 0)], HOST),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
        assert is_sample(reader.read(tmp_path / name), name)
    archive = b"!<arch>\n" + member("//", b"a_very_long_name_of_an_object.o/\n\n")
    archive += member("/0", SAMPLE) + member("other.o/", elf([], HOST))
    (tmp_path / "lib.a").write_bytes(archive)
    assert is_sample(reader.read(tmp_path / "lib.a"), "lib.a(a_very_long_name_of_an_object.o)")
    with zipfile.ZipFile(tmp_path / "k.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("k/_C.abi3.so", library(image))
        wheel.writestr("k/__init__.py", "")
    assert is_sample(reader.read(tmp_path / "k.whl"), "k/_C.abi3.so")


def test_a_linked_library_is_what_the_loader_takes(tmp_path):
    """Beside it lie the objects that it was linked from, whose kernels would count twice."""
    rest = fatbin((2, 90, cubin([Row("c")])))
    sections = [("__nv_relfatbin", PROGBITS, rest, 0)]
    sections += [(".nv_fatbin", PROGBITS, fatbin((2, 90, SAMPLE)), 0)]
    (tmp_path / "k.so").write_bytes(elf(sections, HOST))
    assert is_sample(reader.read(tmp_path / "k.so"), "k.so")


def test_a_folder_of_binaries_and_one_with_logs(tmp_path):
    (tmp_path / "cache/abc").mkdir(parents=True)
    (tmp_path / "cache/abc/k.cubin").write_bytes(SAMPLE)
    (tmp_path / "cache/notes.txt").write_text("no log")
    (tmp_path / "cache/same.cubin").symlink_to(tmp_path / "cache/abc/k.cubin")
    result = run(tmp_path / "cache", "--csv", tmp_path / "r.csv")
    assert "2 kernels, 2 whose spills are unknown" in result.output
    assert is_sample(read_csv(tmp_path / "r.csv"), "abc/k.cubin")
    shutil.copy(DATA / "ptxas12.9_sm80.log", tmp_path / "cache/build.log")
    assert "unknown" not in run(tmp_path / "cache").output


def test_large_files_are_read_by_several_processes(tmp_path):
    kernels = cubin([Row("large", code_bytes=1 << 24), Row("small")])
    (tmp_path / "k.so").write_bytes(library(fatbin(*[(2, 90, kernels)] * 9)))
    rows = reader.read(tmp_path / "k.so")
    assert [row.symbol for row in rows] == ["large", "small"] * 9


def test_a_wheel_of_many_small_files_is_read_by_several_processes(tmp_path):
    kernels = library(fatbin((2, 90, cubin([Row("large", code_bytes=1 << 24), Row("small")]))))
    path = tmp_path / "k.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for number in range(12):
            wheel.writestr(f"{number:02}.so", kernels)
    rows = reader.read(path)
    assert [(row.source, row.symbol) for row in rows] == [
        (f"{number:02}.so", symbol) for number in range(12) for symbol in ("large", "small")
    ]
    content = bytearray(path.read_bytes())
    content[content.rindex(b"07.so", 0, -2000) + 1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"k\.whl: 07\.so: damaged in its wheel: Bad CRC"):
        reader.read(path)


# Damaged and hostile files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("k.so", elf([], HOST), "no kernel in it: neither a cubin nor PTX"),
        ("k.so", SAMPLE[:50], "an ELF file cut after 50 bytes"),
        ("k.so", b"\x7fELF\x01\x01" + bytes(60), "not an ELF file of 64 bits"),
        ("k.cubin", SAMPLE[:-64], "cut: its 7 section headers end at byte"),
        ("k.so", library(fatbin((2, 90, SAMPLE))[:-8]), "cut: a fatbinary ends at byte"),
        ("k.so", library(b"\1" * 64), "no fatbinary at byte"),
        ("k.fatbin", fatbin((2, 90, b"no cubin")), "k.fatbin: not an ELF file"),
        ("k.fatbin", fatbin((2, 90, elf([], HOST))), "for machine 62, not for GPUs"),
        ("k.a", b"!<arch>\nno member", "no member of the archive at byte 8"),
        ("k.a", b"!<arch>\n" + member("a.o", SAMPLE)[:-2], "cut: a member ends at byte"),
        ("k.a", b"!<thin>\n", "a thin archive"),
        ("k.whl", b"PK\3\4" + bytes(100), "not a whole wheel"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = run(tmp_path / name)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert f"ptx-report: {tmp_path / name}: " in result.output


def damaged(content, place, value):
    return content[:place] + bytes([value]) + content[place + 1 :]


FILES = {name: (BINARIES / f"{name}.fatbin").read_bytes() for name in NAMES}
FILES["library"] = library(fatbin((2, 90, SAMPLE), (1, 90, b".target sm_90\n.entry k() {}\n")))
FILES["archive"] = b"!<arch>\n" + member("a.o/", SAMPLE)


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 30000), st.integers(0, 255)), max_size=4),
    st.integers(0, 30000),
)
@example("library", [], 100)
def test_any_damage_is_read_or_named(tmp_path_factory, name, changes, length):
    content = FILES[name]
    for place, value in changes:
        content = damaged(content, place % len(content), value)
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[:length] if length % 2 else content)
    with contextlib.suppress(ReportError):
        reader.read(path)


def test_what_a_file_claims_to_hold_is_bounded(tmp_path):
    with pytest.raises(BinaryError, match="more than such a file holds"):
        Budget.of(1000).take(1 << 29)
    content = bytearray(FILES["cuda13.0"])
    struct.pack_into("<Q", content, 16 + 56, 1 << 40)  # what the first entry decompresses to
    (tmp_path / "k.fatbin").write_bytes(content)
    with pytest.raises(ReportError, match="claims 1,099,511,627,776 bytes"):
        reader.read(tmp_path / "k.fatbin")
    with zipfile.ZipFile(tmp_path / "k.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("k.so", bytes(300 << 20))
    with pytest.raises(ReportError, match="claims 314,572,800 bytes"):
        reader.read(tmp_path / "k.whl")


def test_sections_that_overlap_do_not_multiply_the_work(tmp_path):
    content = bytearray(elf([(f".text.k{i}", PROGBITS, b"", 0) for i in range(200)], EM_CUDA))
    (table,) = struct.unpack_from("<Q", content, 0x28)
    for index in range(1, 201):
        struct.pack_into("<QQ", content, table + 64 * index + 24, 0, len(content))
    (tmp_path / "k.cubin").write_bytes(content)
    with pytest.raises(ReportError, match="its functions take more bytes than it has"):
        reader.read(tmp_path / "k.cubin")
    (strings,) = struct.unpack_from("<Q", content, table + 64 * 201 + 24)
    content[strings : table - 1] = b"n" * (table - 1 - strings)
    (tmp_path / "k.cubin").write_bytes(content)
    with pytest.raises(ReportError, match="section 16 has no name"):
        reader.read(tmp_path / "k.cubin")


def test_one_line_of_many_entries_is_read_in_time(tmp_path):
    (tmp_path / "k.ptx").write_text(".entry k" * 300_000)
    reader.read(tmp_path / "k.ptx")


def test_compressed_code_names_the_package_that_reads_it(tmp_path, monkeypatch):
    from tools.ptx_report.binary import fatbin as module

    for name, package in (("cuda13.0", "zstandard"), ("cuda12.4", "lz4")):
        monkeypatch.setitem(__import__("sys").modules, package, None)
        monkeypatch.setitem(__import__("sys").modules, "compression", None)
        module._lz4.cache_clear()
        module._zstd.cache_clear()
        with pytest.raises(ReportError, match=r"compressed by \w+: pip install 'kernelmint\[bin"):
            reader.read(BINARIES / f"{name}.fatbin")


# The compiler


def compiler():
    """nvcc's command; skips without it."""
    try:
        return nvcc.find().command
    except nvcc.NvccNotFoundError as error:
        pytest.skip(str(error))


def test_the_stack_of_a_kernel_that_calls_itself_is_unknown(tmp_path):
    source, path = tmp_path / "k.cu", tmp_path / "k.so"
    source.write_text(
        "__device__ __noinline__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        'extern "C" __global__ void k(int* p) { *p = f(*p); }\n'
    )
    options = ("--shared", "-rdc=true", "-Xcompiler", "-fPIC", "-arch=sm_90")
    subprocess.run([*compiler(), *options, source, "-o", path], check=True, capture_output=True)
    assert {row.symbol: row.stack_frame for row in reader.read(path)}["k"] is None
    (line,) = (line for line in run(path).output.splitlines() if line.startswith("k "))
    assert line.split()[4:6] == ["?", "0"]  # spills, no stack, shared memory


@pytest.mark.parametrize(
    "options",
    [
        ("-fatbin", "--compress-mode=size"),
        ("-fatbin", "--compress-mode=none"),
        ("-c",),
        ("--shared", "-rdc=true", "-Xcompiler", "-fPIC"),
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (("-c", "-rdc=true"), ("--shared", "-Xcompiler", "-fPIC"))
        ),
    ],
)
def test_what_nvcc_makes_here(tmp_path, options):
    if CUOBJDUMP is None:
        pytest.skip("no cuobjdump")
    path = tmp_path / "out"
    archs = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "90a", "120a")]
    source = DATA / "src/binaries.cu"
    subprocess.run([*compiler(), *options, *archs, source, "-o", path], check=True)
    printed = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True)
    wanted = figures(resource_usage(printed.stdout))
    assert len(wanted) >= 12
    assert figures(rows_of(path)) == wanted
