"""Every row of every sample log, and the same rows through whatever a build tool does to lines."""

import gzip
import re
import tracemalloc

import pytest

from codegen.ptxas import inputs
from codegen.ptxas.events import Statistics
from codegen.ptxas.parser import Parser
from tests.ptx_report.samples import DATA, FIGURES, LOGS, expected, facts, read, read_file
from tests.slow import slow_after

EXPECTED = expected()
ATTENTION = "_ZN4attn3fwdI6__halfLi64ELi32ELb1EEEvPKT_S4_S4_PS2_if"


def sample(name):
    return (DATA / name).read_bytes()


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_sample_row_for_row(path):
    records, statistics = read_file(path)
    assert [facts(record) for record in records] == EXPECTED[path.name]
    assert [record.incomplete for record in records] == [None] * len(records)
    assert statistics.unknown == 0
    assert statistics.unattached == 0
    entries = path.read_text().count("Compiling entry function")
    assert statistics.entries == entries == sum(record.kind == "kernel" for record in records)


def test_samples_are_all_expected():
    assert {path.name for path in LOGS} == set(EXPECTED)
    assert sum(map(len, EXPECTED.values())) > 200


def prefixed(data, prefix):
    return b"".join(prefix(n) + line for n, line in enumerate(data.splitlines(keepends=True)))


TRANSFORMS = {
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "indented": lambda data: prefixed(data, lambda n: b"      "),
    "no indentation": lambda data: b"\n".join(line.lstrip() for line in data.splitlines()),
    "timestamps": lambda data: prefixed(data, lambda n: b"2026-11-21T02:40:%02d.%07dZ " % (n, n)),
    "ragged prefixes": lambda data: prefixed(data, lambda n: b"#%d %d.5 " % (9 + n % 3, n)),
    "bracketed": lambda data: prefixed(data, lambda n: b"[build, compile] | "),
    "colour": lambda data: data.replace(b"ptxas", b"\x1b[1;35mptxas\x1b[0m").replace(
        b"bytes stack", b"\x1b[Kbytes\x1b[m stack"
    ),
    "warnings between": lambda data: data.replace(
        b"ptxas info    : Used", b"lib.h(12): warning #177-D: never used\n\nptxas info    : Used"
    ).replace(
        b"ptxas info    : Compile time", b"nvcc warning : a note\nptxas info    : Compile time"
    ),
    "no end of line": lambda data: data.rstrip(b"\n"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_what_build_tools_do_to_lines(path, name):
    records = read(TRANSFORMS[name](path.read_bytes()))
    assert [facts(record)[1:] for record in records] == [row[1:] for row in EXPECTED[path.name]]
    assert all(record.incomplete is None for record in records)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_chunks_do_not_matter(chunk):
    for path in LOGS:
        if chunk == 1 and path.stat().st_size > 4000:
            continue
        assert read(path.read_bytes(), chunk) == read(path.read_bytes()), path.name


def test_gzip(tmp_path):
    path = tmp_path / "build.log.gz"
    path.write_bytes(gzip.compress(sample("nvcc13.0_rdc.log")))
    records = list(inputs.read_log(path, "x", Statistics()))
    assert [facts(record) for record in records] == EXPECTED["nvcc13.0_rdc.log"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_utf_16(tmp_path, encoding, pack):
    """What PowerShell's `>` writes."""
    path = tmp_path / "build.log"
    text = sample("nvcc13.0_rdc.log").decode().replace("\n", "\r\n")
    path.write_bytes(pack(f"Größe — 大きさ\r\n{text}".encode(encoding)))
    records = list(inputs.read_log(path, "x", Statistics()))
    assert [facts(record)[1:] for record in records] == [
        row[1:] for row in EXPECTED["nvcc13.0_rdc.log"]
    ]
    assert all(record.incomplete is None for record in records)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_through_a_demangler(path):
    """Figures, keys, kernels, their arguments and warnings are those of the symbols."""
    known = pytest.importorskip("pycxxfilt")
    log = path.read_text()
    readable = re.sub(r"\b_Z\w+", lambda match: known.demangle(match[0]), log)

    def told(row):
        return (*facts(row)[3:], row.key, row.kernel, row.arguments, row.c75, len(row.warnings))

    statistics = Statistics()
    records = read(readable.encode(), statistics=statistics)
    assert list(map(told, records)) == list(map(told, read(log.encode())))
    assert not any(record.symbol.startswith("_Z") or record.incomplete for record in records)
    assert statistics.unknown == statistics.unattached == 0


@pytest.mark.parametrize(
    "name",
    [
        "void k<64>(float*)",
        "void k<(int)64, (bool)1>(float *)",
        "(anonymous namespace)::k(float*) [clone .part.0]",
        "void ns::k<main::'lambda'(int)>(main::'lambda'(int))",
        "void k<main::{lambda(int)#1}>(float const*, unsigned long) const",
        "ns::k",
    ],
)
def test_a_declaration_is_a_name(name):
    warning = b"ptxas warning : Registers are spilled to local memory in function '%s', 8 bytes\n"
    (record,) = read(warning % name.encode() + one(name.encode()))
    assert (record.symbol, record.used_registers, record.incomplete) == (name, 40, None)
    assert len(record.warnings) == 1


@pytest.mark.parametrize("name", ["_Z1kPf    0 bytes (stack)", "void k<64>(float", "a b"])
def test_a_name_with_other_text_is_none(name):
    statistics = Statistics()
    rows = read(b"ptxas info    : Function properties for " + name.encode(), statistics=statistics)
    assert (rows, statistics.unknown) == ([], 1)


def test_source_is_the_object_of_a_ninja_step():
    records, _ = read_file(DATA / "ninja_cmake.log")
    assert {record.source for record in records} == {
        "CMakeFiles/sample.dir/kernels.cu.o",
        "CMakeFiles/sample.dir/shared_spill.cu.o",
    }
    records, _ = read_file(DATA / "pip_wheel_v_pypinvcc130_3arch.log")
    assert {record.source for record in records} == {"CMakeFiles/attn_kernels.dir/src/attn.cu.o"}


def test_source_of_make_in_parallel_is_not_guessed():
    records, _ = read_file(DATA / "make_v_j2.log")
    assert {record.source for record in records} == {"make_v_j2.log"}


def test_keys():
    records, _ = read_file(DATA / "nvcc13.0_sm80_sm90.log")
    assert {record.key for record in records if record.key} == {
        "flash_forward.sm80.bf16-d64-r64-c64-w4",
        "flash_forward.sm80.bf16-d128-causal-r64-c64-w4",
    }


def by_symbol(name):
    return {record.symbol: record for record in read_file(DATA / name)[0]}


def test_c75_notes_belong_to_their_kernels():
    rows = by_symbol("nvcc13.0_wgmma_serialised.log")
    assert rows["_Z11wgmma_touchPfmmi"].c75 == ("C7519", "C7517", "C7511", "C7508?")
    assert len(rows["_Z11wgmma_touchPfmmi"].warnings) == 8
    # This one does not say which of the unit's three kernels it means.
    for row in rows.values():
        assert ("C7508?" in row.c75) == (row.kind == "kernel")
    assert rows["_Z4regsPf"].c75 == ("C7508?",)
    assert (
        rows["_Z4regsPf"].warnings[0].startswith("of some kernel in its translation unit: (C7508)")
    )


def test_every_warning_belongs_to_its_row():
    rows = by_symbol("nvcc13.0_maxrregcount32_warnings.log")
    spilled = next(row for row in rows.values() if row.spill_stores == 832)
    assert [warning.split(" '")[0] for warning in spilled.warnings] == [
        "Overriding maximum register limit 256 for",
        "Local memory used for function",
        "Registers are spilled to local memory in function",
    ]
    assert len(rows["_Z3recPKfi"].warnings) == 2  # a device function
    assert rows["_Z6helperPKfi"].warnings == ()
    text = sample("nvcc13.0_maxrregcount32_warnings.log").decode()
    named = [line for line in text.splitlines() if "' with" in line or "ptxas warning" in line]
    assert sum(len(row.warnings) for row in rows.values()) == len(named)


def test_warnings_of_the_next_unit_are_not_taken_by_this_one():
    first = sample("ptxas12.9_sm80.log")
    second = first.replace(b"sm_80", b"sm_90")
    rows = read(first + second)
    spilling = [row for row in rows if "Registers are spilled" in " ".join(row.warnings)]
    assert [row.kind for row in spilling] == ["kernel", "function"] * 2
    assert [row.arch for row in spilling] == ["sm_80", None, "sm_90", None]
    assert all(len(row.warnings) == len(set(row.warnings)) for row in rows)
    assert not any("(x" in warning for row in rows for warning in row.warnings)


def test_an_error_is_in_the_row():
    rows = by_symbol("nvcc13.0_error.log")
    assert rows["_Z8too_muchPf"].warnings == (
        "error: Entry function '_Z8too_muchPf' uses too much shared data "
        "(0x10000 bytes, 0xc000 max)",
    )
    assert rows["_Z4fitsPf"].warnings == ()


RECORD = (
    b"ptxas info    : Compiling entry function '%(s)s' for 'sm_80'\n"
    b"ptxas info    : Function properties for %(s)s\n"
    b"    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    b"ptxas info    : Used 40 registers, used 1 barriers, 64 bytes smem\n"
    b"ptxas info    : Compile time = 1.5 ms\n"
)


def one(symbol):
    return RECORD % {b"s": symbol}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (1, "cut after 'Compiling entry function'"),
        (2, "cut after 'Function properties'"),
        (3, "its 'Used ... registers' line is missing"),
    ],
)
def test_a_cut_record_is_incomplete_with_its_line(lines, reason):
    cut = b"".join(one(b"cut").splitlines(keepends=True)[:lines])
    records = read(b"some tool\n" + cut + one(b"whole"))
    assert [record.symbol for record in records] == ["cut", "whole"]
    assert (records[0].line, records[0].incomplete) == (2, reason)
    assert records[0].used_registers is None
    assert (records[1].used_registers, records[1].smem, records[1].incomplete) == (40, 64, None)


def test_a_cut_line_is_an_incomplete_row():
    records = read(b"ptxas info    : Compiling entry function '_Z5hal\n" + one(b"whole"))
    assert [(record.symbol, record.incomplete is None) for record in records] == [
        ("_Z5hal", False),
        ("whole", True),
    ]
    assert records[0].arch is None


def test_a_cut_in_the_used_line_gives_nothing_that_is_not_there():
    text = one(b"cut").replace(
        b"Used 40 registers, used 1 barriers, 64 bytes smem", b"Used 40 regis"
    )
    statistics = Statistics()
    records = read(text + one(b"whole"), statistics=statistics)
    assert records[0].used_registers is None
    assert records[0].incomplete is not None
    assert records[1].incomplete is None
    assert statistics.unknown >= 1
    assert "Used 40 regis" in statistics.unknown_samples[0][2]


def test_a_field_that_is_not_understood_is_counted_and_the_row_marked():
    statistics = Statistics()
    text = one(b"new").replace(b"64 bytes smem", b"64 bytes smem, four widgets")
    (record,) = read(text, statistics=statistics)
    assert (record.used_registers, record.smem) == (40, 64)
    assert record.incomplete == "part of its 'Used' line is not understood"
    assert statistics.unknown == 1


def test_a_new_field_of_the_usual_form_is_kept():
    text = one(b"new").replace(b"64 bytes smem", b"64 bytes smem, 3 textures, 16 bytes cmem[2]")
    (record,) = read(text)
    assert record.other == (("textures", "3"), ("cmem[2]", "16"))
    assert record.incomplete is None


def writes(text):
    """What ptxas writes at once: a line that names a function together with its spill line."""
    first, named, frame, *others = text.splitlines(keepends=True)
    return [first, named + frame, *others]


def test_interleaved_values_are_given_to_no_row():
    one_, two = writes(one(b"one")), writes(one(b"two").replace(b"8 bytes stack", b"9 bytes stack"))
    mixed = b"".join(line for pair in zip(one_, two, strict=True) for line in pair)
    records = read(mixed.replace(b"Used 40", b"Used 41", 1))
    assert [(record.symbol, record.stack_frame) for record in records] == [("one", 8), ("two", 9)]
    for record in records:
        assert record.used_registers is None
        assert record.compile_time_ms is None
        assert record.incomplete == "interleaved with another process's lines"


def test_a_kernel_compiled_twice_at_once_does_not_hide_that_lines_interleave():
    """The spill line of one of two records of a name is not a gap in the log: the stray line behind
    it still shows that what was right behind a record may be another's."""
    (entry, named, used, _), (entry_b, named_b, used_b, _) = map(
        writes, (one(b"a"), one(b"b").replace(b"Used 40", b"Used 41"))
    )
    log = [entry_b, entry_b, named_b, entry, named, used_b, named_b, used, used_b]
    (row,) = (record for record in read(b"".join(log)) if record.symbol == "a")
    assert row.used_registers is None
    assert row.incomplete == "interleaved with another process's lines"


def test_what_four_processes_wrote_at_once_is_right_or_absent():
    """Real ptxas processes that shared a pipe; the truth is what each wrote by itself."""
    folder = DATA / "interleaved"
    truth = {row.symbol: row for row in read((folder / "one_by_one.log").read_bytes())}
    rows = read((folder / "at_once.log").read_bytes())
    assert sorted(row.symbol for row in rows) == sorted(truth)
    figures = [figure for figure in FIGURES if figure != "compile_time_ms"]
    for row in rows:
        for figure in figures:
            assert getattr(row, figure) in (None, getattr(truth[row.symbol], figure)), row.symbol
        assert row.stack_frame == truth[row.symbol].stack_frame  # with the line of its name
        assert (row.used_registers is None) <= (row.incomplete is not None)
    assert sum(row.incomplete is None for row in rows) >= 33


def test_blocks_of_other_processes_between_records_change_nothing():
    parts = [
        one(b"a"),
        b"[2/9] Linking CXX executable app\n",
        one(b"b"),
        b"g++ -c x.cpp\n",
        one(b"c"),
    ]
    records = read(b"".join(parts))
    assert [(record.symbol, record.used_registers) for record in records] == [
        ("a", 40),
        ("b", 40),
        ("c", 40),
    ]


def test_only_the_lines_that_people_grep_for():
    text = b"".join(
        line for line in one(b"a").splitlines(keepends=True) if b"Used" in line or b"entry" in line
    )
    (record,) = read(text)
    assert (record.used_registers, record.arch) == (40, "sm_80")
    assert record.incomplete == "its spill line is missing"


def test_a_log_that_starts_within_a_record():
    lines = one(b"a").splitlines(keepends=True)[1:]
    (record,) = read(b"".join(lines))
    assert record.incomplete == "its 'Compiling entry function' line is missing"
    assert (record.kind, record.used_registers, record.arch) == ("kernel", 40, None)


def test_command_lines_that_name_ptxas_are_no_messages():
    statistics = Statistics()
    command = b"/usr/local/cuda/bin/ptxas -v -arch=sm_80 k.ptx\nnvcc -Xptxas -v -Xptxas=-O3 k.cu\n"
    text = command + one(b"a").replace(b"ptxas info    : Used", command + b"ptxas info    : Used")
    (record,) = read(text, statistics=statistics)
    assert record.used_registers == 40
    assert statistics.unknown == 0


def test_repeated_kernels_are_all_rows():
    records = read(one(b"a") * 3)
    assert [record.line for record in records] == [1, 6, 11]


WARNING = b"ptxas warning : Registers are spilled to local memory in function 'f%d', 8 bytes\n"


@pytest.mark.parametrize(
    "line", slow_after(1, [WARNING, None, b"ptxas warning : a warning of nothing %d\n"])
)
def test_memory_is_bounded(line):
    text = b"".join(line % n if line else one(b"kernel_%d" % n) for n in range(8_000))
    statistics = Statistics()
    peaks = []
    for repeats in (2, 4):
        tracemalloc.start()
        parser = Parser("log", statistics)
        for _ in range(repeats):
            for at in range(0, len(text), 1 << 18):
                for _record in parser.feed(text[at : at + (1 << 18)]):
                    pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


# Gaps that show: no row gets what may be another's, and it says so

MARKS = (
    b"[output clipped, log limit 2MiB reached]",
    b"#9 12.3 [output clipped, log limit 100KiB/s reached]",
    b"... [214 lines omitted] ...",
    b"[... 4096 bytes truncated ...]",
    b"Job's log exceeded limit of 4194304 bytes.",
    b"The job exceeded the maximum log length, and has been terminated.",
    b"[...truncated 12 KB...]",
    b"(truncated)",
    b"...",
)


@pytest.mark.parametrize("mark", [*MARKS, b"ptxas info    : 0 bytes gmem"])
@pytest.mark.parametrize("before", range(1, 5))
@pytest.mark.parametrize("behind", range(2, 5))
def test_a_row_before_a_gap_takes_nothing_from_behind_it(mark, before, behind):
    """`before` lines of one kernel, the mark, and of another kernel all but `behind - 1` lines."""
    other = one(b"other").replace(b"Used 40", b"Used 77").replace(b"= 1.5", b"= 9.5")
    other = other.replace(b"8 bytes stack", b"88 bytes stack")
    lines = [*one(b"cut").splitlines()[:before], mark, *other.splitlines()[behind:]]
    rows = [row for row in read(b"\n".join(lines) + b"\n") if row.symbol == "cut"]
    assert [(row.used_registers, row.stack_frame) for row in rows] == [
        (40 if before > 3 else None, 8 if before > 2 else None)
    ]
    assert rows[0].compile_time_ms is None
    assert (rows[0].incomplete is None) == (before > 3)


def test_a_time_behind_a_device_function_is_not_that_one_s_where_a_kernel_waits_for_it():
    debug = sample("nvcc13.0_debug.log").splitlines()
    entry = next(n for n, line in enumerate(debug) if b"Compiling entry" in line)
    helper, kernel = debug[2:5], debug[entry : entry + 5]
    mixed = [*kernel[:4], *helper[:2], kernel[4], helper[2]]
    rows = {row.symbol: row for row in read(b"\n".join(mixed) + b"\n")}
    assert rows["plain_c"].compile_time_ms is None
    assert rows["_Z6helperPKfi"].compile_time_ms is None
    assert rows["plain_c"].incomplete == "interleaved with another process's lines"


def test_a_time_behind_a_gap_is_not_the_device_function_s_before_it():
    debug = sample("nvcc13.0_debug.log").splitlines()
    cut = [*debug[2:4], b"[output clipped, log limit 2MiB reached]", debug[7]]
    (row,) = read(b"\n".join(cut) + b"\n")
    assert (row.symbol, row.compile_time_ms) == ("_Z6helperPKfi", None)


@pytest.mark.parametrize("chunk", [60, 97, 500, 1000])
def test_chunks_do_not_matter_where_a_line_is_missing(chunk):
    lines = sample("nvcc13.0_rdc.log").splitlines(keepends=True)
    for missing in range(len(lines)):
        text = b"".join(lines[:missing] + lines[missing + 1 :])
        assert read(text, chunk) == read(text), missing + 1


def test_a_note_of_no_function_is_not_certain_where_kernels_of_its_run_are_missing():
    note = b"ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n"
    (row,) = read(note + one(b"a"))
    assert row.c75 == ("C7508",)
    (row,) = read(note + MARKS[0] + b"\n" + one(b"a"))
    assert row.c75 == ("C7508?",)


@pytest.mark.parametrize(
    "line",
    [
        b"-- Check for working CUDA compiler: /usr/local/cuda/bin/nvcc - skipped",
        b"a.c:3:5: warning: 'strncpy' output may be cut off [-Wstringop-truncation]",
        b"catalog.cpp: limit reached",
        b"checking for cc... yes",
    ],
)
def test_what_is_no_mark(line):
    lines = one(b"a").splitlines()
    (row,) = read(b"\n".join([*lines[:3], line, *lines[3:]]) + b"\n")
    assert (row.used_registers, row.incomplete) == (40, None)


# Whatever a line holds


@pytest.mark.parametrize(
    "word",
    [
        b"Used 3 registers",
        b"ptxas info    : Used 3 registers",
        b"ptxas info    : ",
        b"ptxas warning : in function 'f', line 3; ",
        b"\x1b]",
        b"7",
        b"\n",
    ],
)
def test_a_line_of_a_megabyte_takes_no_longer_than_many_short_ones(word):
    """Quadratic, the shortest of these took minutes; the suite's limit of time is the guard."""
    text = word * (1_000_000 // len(word)) + b"\n"
    assert read(text + one(b"a"))[-1].used_registers == 40


@pytest.mark.parametrize("field", ["Used 40", "8 bytes stack", "= 1.5", "64 bytes smem"])
def test_a_number_of_5000_digits_is_not_understood(field):
    number = field.encode().translate(None, b"abcdefghijklmnopqrstuvwxyzU= ")
    text = one(b"a").replace(field.encode(), field.encode().replace(number, b"9" * 5000))
    statistics = Statistics()
    rows = read(text + one(b"b"), statistics=statistics)
    assert [row.symbol for row in rows] == ["a", "b"]
    assert statistics.unknown
    assert rows[1].incomplete is None


def test_a_line_of_nvlink_cut_short_leaves_its_function_without_figures():
    """`used 10000` for `used 10 registers, …`: the next function's figures are not this one's."""
    entry = b"nvlink info    : Function properties for '%s': (target: sm_80)\n"
    used = b"nvlink info    : used 24 registers, used 1 barriers, 0 stack, 0 bytes lmem\n"
    log = entry % b"first" + b"nvlink info    : used 10000\n" + used
    rows = [row for row in read(log) if row.symbol == "first"]
    assert [row.used_registers for row in rows] == [None]


def test_the_first_letters_of_a_line_behind_a_time_stamp_are_a_gap():
    """Of `ptxas info : Used …` only `pt` is left: another function's `Used` is not this one's."""
    lines = [*one(b"first").splitlines()[:3], b"pt", *one(b"second").splitlines()]
    lines[5] = b"ptxas info    : Function properties for sec"
    log = b"".join(b"2026-11-21T02:40:11.5Z " + line + b"\n" for line in lines)
    rows = [row for row in read(log) if row.symbol == "first"]
    assert [(row.used_registers, row.incomplete is None) for row in rows] == [(None, False)]


@pytest.mark.parametrize("stamp", ["", "#9 71.2 ", "2026-11-21T02:40:11.5Z "])
def test_a_line_behind_an_entry_that_names_no_function_may_be_that_entrys(stamp):
    """The entry's own `Function properties` are lost: it is not known whose it is."""

    def stamped(text):
        return read("".join(stamp + line for line in text.splitlines(keepends=True)).encode())

    (other, touched) = stamped(
        "ptxas info    : Function properties for _Z5otherf\n"
        "    10\n"
        "ptxas info    : Compiling entry function '_Z5touchPf' for 'sm_90a'\n"
        "touchPf\n"
        "    7 bytes stack frame, 8 bytes spill stores, 9 bytes spill loads\n"
    )
    assert (other.stack_frame, other.spill_stores, other.spill_loads) == (None, None, None)
    assert other.incomplete is not None
    assert touched.incomplete == "cut after 'Compiling entry function'"
    rows = stamped(
        "ptxas info    : Compiling entry function '_Z8recursesPfi' for 'sm_80'\n"
        "ptxas info    : Function properties for _Z8recursesPfi\n"
        "    5 bytes stack frame, 6 bytes spill stores, 7 bytes spill loads\n"
        "mem[0]\n"
        "ptxas info    : Compiling entry function 'plain_c' for 'sm_80'\n"
        "ptxas info    : Function properties for plai\n"
        "    1 bytes stack frame, 2 bytes spill stores, 3 bytes spill loads\n"
        "ptxas info    : Used 44 registers, used 1 barriers\n"
    )
    assert rows[0].symbol == "_Z8recursesPfi"
    assert (rows[0].stack_frame, rows[0].used_registers) == (5, None)
    assert rows[0].incomplete is not None
    # One that names its function later has lines of its own: two processes.
    first, second = stamped(
        "ptxas info    : Compiling entry function 'a' for 'sm_80'\n"
        "ptxas info    : Function properties for a\n"
        "    1 bytes stack frame, 2 bytes spill stores, 3 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_80'\n"
        "ptxas info    : Used 4 registers\n"
        "ptxas info    : Function properties for b\n"
        "    5 bytes stack frame, 6 bytes spill stores, 7 bytes spill loads\n"
        "ptxas info    : Used 8 registers\n"
    )
    assert (first.stack_frame, first.used_registers, first.incomplete) == (1, 4, None)
    assert (second.stack_frame, second.used_registers, second.incomplete) == (5, 8, None)
