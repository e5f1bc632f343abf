"""A report laid out by architecture, by template, and in totals."""

import csv
import json
import subprocess
import zipfile

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from codegen.build import nvcc
from codegen.core.ptxas_rows import Row, csv_text
from tests.ptx_report.cubins import cubin, fatbin, library
from tests.ptx_report.project import KEYS, Project, symbol
from tests.ptx_report.samples import DATA
from tools.ptx_report import architectures, templates
from tools.ptx_report.__main__ import main
from tools.ptx_report.by import duplicates

SETMAXNREG = DATA / "binaries/setmaxnreg.fatbin"


def printed(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def side_by_side(**figures):
    """A kernel with a figure for each architecture."""
    rows = [
        ("k", f"sm_{arch}", Row("k", arch=f"sm_{arch}", **{name: value}))
        for name, values in figures.items()
        for arch, value in values.items()
    ]
    (kernel,) = architectures.side_by_side(rows)
    return [str(one) for one in kernel.out_of_line]


# Architectures


def test_a_setmaxnreg_that_misses_one_architecture_stands_first():
    """The `#if` around it forgets 10.0a, where the consumer's registers no longer fit."""
    heading, first, second, *_ = printed(SETMAXNREG, "--by", "architecture")
    assert heading.split()[:4] == ["kernel", "sm_90a", "sm_100a", "sm_120a"]
    assert first.startswith("void consume<200>(")
    assert "168 0? 10,368  168 272? 14,720  168 0? 10,368" in first
    assert "sm_100a: 272 bytes of stack or spilled, not 0" in first
    assert second.startswith("void consume<8>(")
    assert "sm_100a: 32 registers, not 168" in second
    assert printed(SETMAXNREG, "--by", "architecture")[-1].startswith(
        "4 kernels of several architectures, 2 with figures out of line"
    )


def test_what_nvcc_makes_of_it_here(tmp_path):
    """Its log has the spills, of which a binary only has the stack."""
    try:
        compiler = nvcc.find()
    except nvcc.NvccNotFoundError as error:
        pytest.skip(str(error))
    archs = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("90a", "100a", "120a")]
    command = [*compiler.command, "-fatbin", "-Xptxas=-v", *archs, DATA / "src/setmaxnreg.cu"]
    done = subprocess.run(
        [*command, "-o", tmp_path / "k.fatbin"], capture_output=True, text=True, check=True
    )
    (tmp_path / "k.log").write_text(done.stdout + done.stderr)
    (first, *_) = written(tmp_path, "architecture", tmp_path / "k.log")
    assert first["kernel"].startswith("void consume<200>(")
    assert first["out_of_line"].startswith("sm_100a: ")
    spilled = {arch: first[f"{arch}.spill_bytes"] for arch in ("sm_90a", "sm_100a", "sm_120a")}
    assert [arch for arch, size in spilled.items() if size] == ["sm_100a"]
    (first, *_) = written(tmp_path, "architecture", tmp_path / "k.fatbin")
    assert first["out_of_line"].startswith("sm_100a: ")


@pytest.mark.parametrize(
    ("stacks", "out"),
    [
        ({"80": 0, "90a": 0}, []),
        ({"80": 64, "90a": 64, "100a": 64}, []),
        ({"80": 0, "90a": 64}, ["sm_90a: 64 bytes of stack or spilled, not 0"]),
        (
            {"80": 0, "90a": 0, "100a": 64, "103a": 64},
            ["sm_100a, sm_103a: 64 bytes of stack or spilled, not 0"],
        ),
        (
            {"80": 64, "90a": 0, "100a": 64},
            ["sm_80, sm_100a: 64 bytes of stack or spilled, not 0"],
        ),
    ],
)
def test_memory_that_others_do_not_need_is_out_of_line(stacks, out):
    assert side_by_side(stack_frame=stacks) == out


def test_registers_and_bytes_are_out_of_line_by_their_ratio():
    assert side_by_side(used_registers={"80": 128, "90": 168, "100": 128}) == []
    assert side_by_side(used_registers={"80": 32, "90": 168, "100": 168}) == [
        "sm_80: 32 registers, not 168"
    ]
    assert side_by_side(code_bytes={"80": 1000, "90": 1100, "100": 2400}) == [
        "sm_100: 2,400 bytes of code, not 1,100"
    ]


def test_a_log_has_spills_side_by_side(tmp_path):
    spilled = Row("k", arch="sm_90a", used_registers=168, spill_stores=8, spill_loads=12)
    rows = [spilled, spilled._replace(arch="sm_100a", spill_stores=0, spill_loads=0)]
    (tmp_path / "r.csv").write_text(csv_text([*rows, Row("only", arch="sm_90a")]))
    _, line, _ = printed(tmp_path / "r.csv", "--by", "architecture")
    assert line.split()[:5] == ["k", "168", "20", "168", "0"]
    assert "sm_90a: 20 bytes of stack or spilled, not 0" in line


# Templates


@pytest.mark.parametrize(
    ("name", "template", "arguments"),
    [
        ("plain", "plain", ()),
        ("f(int)", "f", ()),
        ("void a::k<32, float>(float*, int)", "a::k", ("32", "float")),
        ("void A<int>::k<B<1, 2>>(C<3>)", "A::k", ("int", "B<1, 2>")),
        ("int a::(anonymous namespace)::k<(E)1>(B<(E)1>) const", "a::(anonymous namespace)::k",
         ("(E)1",)),
        ("void k<f(int)::{lambda(float, int)#1}::operator()(int) const::{lambda()#2}, 4>(int)",
         "k", ("f(int)::{lambda(float, int)#1}::operator()(int) const::{lambda()#2}", "4")),
        ("void k<&operator< >(int)", "k", ("&operator<",)),
        ("void k<1>(int) [clone .x]", "k", ("1",)),
    ],
)  # fmt: skip
def test_a_name_is_a_template_and_its_arguments(name, template, arguments):
    assert templates.of(name) == (template, arguments)


@given(st.text("ab<>(){}[], :&-=operator", max_size=60))
def test_any_name_has_a_template(name):
    templates.differing([templates.of(name).arguments, ("1", "T<2>")])


def test_what_differs_is_named_by_its_place():
    lists = [("32", "T<1, U<2>>"), ("32", "T<1, U<3>>"), ("32", "T<1, U<3>>")]
    assert templates.differing(lists) == (["2.2.1"], [["2"], ["3"], ["3"]])
    assert templates.differing([("T<1>",), ("V<1>",), ()]) == (["1"], [["T<1>"], ["V<1>"], [""]])


def test_a_very_deep_name_is_read():
    deep = ["T<" * 10_000 + value + ">" * 10_000 for value in "12"]
    names, values = templates.differing(
        [templates.of(f"k<{name}>(int)").arguments for name in deep]
    )
    assert (len(names), len(values)) == (1, 2)


def test_kernels_of_a_template_are_shown_with_what_differs():
    title, heading, first, *rest = printed(SETMAXNREG, "--by", "template")
    assert title.startswith("consume: 9 rows, 64,384 bytes of code, ")
    assert heading.split() == ["arch", "1", "regs", "spills", "stack", "smem", "code"]
    assert first.split() == ["sm_100a", "200", "168", "?", "272", "0", "14,720"]
    assert any(line.startswith("local_array: 3 rows") for line in rest)
    where = ("--where", "template == 'local_array'")
    assert printed(SETMAXNREG, "--by", "template", *where)[0].startswith("local_array: 3 rows")


def test_our_kernels_are_shown_with_their_functions_and_the_parameters_that_differ(tmp_path):
    project = Project(tmp_path, {})
    symbols = [symbol(key) for key in KEYS]
    symbols.append(symbols[0].replace("18flash_forward_sm80", "11merge_parts"))
    path = tmp_path / "k.so"
    path.write_bytes(library(fatbin((2, 80, cubin(map(Row, symbols))))))
    given = (path, "--manifest", project.manifest)
    _, heading, *lines = printed(*given, "--by", "template")
    assert heading.split()[:4] == ["arch", "function", "d_head", "causal"]
    assert sorted(line.split()[1:4] for line in lines[:3]) == [
        ["flash_forward_sm80", "128", "True"],
        ["flash_forward_sm80", "64", "False"],
        ["merge_parts", "128", "True"],
    ]
    lines = written(tmp_path, "template", *given)
    assert {(line["argument function"], line["argument d_head"]) for line in lines} == {
        ("flash_forward_sm80", "128"), ("flash_forward_sm80", "64"), ("merge_parts", "128"),
    }  # fmt: skip
    table = [Row(name, arch="sm_80", used_registers=1) for name in ("f.t.a", "f.t.b")]
    (tmp_path / "k.csv").write_text(csv_text(table))  # kernels that no manifest knows
    assert [line.split()[1] for line in printed(tmp_path / "k.csv", "--by", "template")[2:4]] == [
        "f.t.a", "f.t.b",
    ]  # fmt: skip


# Totals


def test_totals_say_where_the_bytes_went():
    lines = printed(SETMAXNREG, "--by", "total")
    parts = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert parts["setmaxnreg.fatbin"][:2] == ["12", "83,712"]
    assert parts["setmaxnreg.fatbin"][-1] == "100.0%"
    shares = [float(parts[arch][-1][:-1]) for arch in ("sm_90a", "sm_100a", "sm_120a")]
    assert abs(sum(shares) - 100) < 0.2
    stored = int(parts["setmaxnreg.fatbin"][2].replace(",", ""))
    size = SETMAXNREG.stat().st_size
    assert size - 400 < stored < size  # but for the headers and the padding


def test_the_same_code_in_several_objects_is_named(tmp_path):
    one, two = cubin([Row("k", code_bytes=256), Row("a")]), cubin([Row("k", code_bytes=256)])
    (tmp_path / "a.so").write_bytes(library(fatbin((2, 90, one))))
    (tmp_path / "b.so").write_bytes(library(fatbin((2, 90, two), (2, 80, two))))
    lines = printed(tmp_path, "--by", "total")
    (line,) = (line for line in lines if line.endswith("a.so, b.so"))
    assert line.split()[:4] == ["k", "sm_90", "2", "256"]
    assert "1 function several times: 256 bytes" in lines


def test_files_of_one_name_are_told_apart(tmp_path, monkeypatch):
    for number, path in enumerate(("a/x/k.cubin", "b/x/k.cubin", "b/other.cubin"), 1):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(cubin([Row("k", code_bytes=256 * number)]))
    monkeypatch.chdir(tmp_path)

    def files(*inputs):
        lines = written(tmp_path, "total", *inputs)
        return {line["name"]: line["code_bytes"] for line in lines if line["of"] == "file"}

    apart = {"a/x/k.cubin": 256, "b/x/k.cubin": 512}
    assert files("a/x/k.cubin", "b/x/k.cubin", "b/other.cubin") == {**apart, "other.cubin": 768}
    assert files("a/x", tmp_path / "b/x") == apart
    assert files("b/x", "b/../b/x/k.cubin") == {"k.cubin": 1024}  # one file twice


def test_members_of_two_wheels_are_told_apart(tmp_path):
    for name in ("a.whl", "b.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr("k/_C.so", library(fatbin((2, 90, cubin([Row("k")])))))
    lines = written(tmp_path, "total", tmp_path / "a.whl", tmp_path / "b.whl")
    files = [line["name"] for line in lines if line["of"] == "file"]
    assert sorted(files) == ["a.whl/k/_C.so", "b.whl/k/_C.so"]


def test_code_that_differs_is_no_copy():
    row = Row("k", arch="sm_90", code_bytes=128, machine_code="1")
    assert duplicates([row, row._replace(machine_code="2"), row._replace(arch="sm_80")]) == []
    assert duplicates([row, row, Row("k", arch="sm_90")]) == [[row, row]]


# Files


def written(tmp_path, view, *arguments):
    """The view's lines of a CSV, and of a JSON."""
    paths = tmp_path / "v.csv", tmp_path / "v.json"
    printed(*arguments, "--by", view, "--csv", paths[0], "--json", paths[1])
    data = json.loads(paths[1].read_text())
    assert data["by"]["view"] == view
    with paths[0].open(newline="") as stream:
        of_csv = list(csv.DictReader(stream))
    of_json = data["by"]["lines"]
    # A name that a spreadsheet would compute has an apostrophe in front.
    assert [{n: v.removeprefix("'") for n, v in line.items() if v} for line in of_csv] == [
        {n: str(v) for n, v in line.items() if v not in (None, "")} for line in of_json
    ]
    return of_json


def test_architectures_in_csv_and_json(tmp_path):
    first, second, *_ = written(tmp_path, "architecture", SETMAXNREG)
    assert first["kernel"].startswith("void consume<200>(")
    assert first["out_of_line"] == "sm_100a: 272 bytes of stack or spilled, not 0"
    assert (first["sm_90a.used_registers"], first["sm_100a.stack_frame"]) == (168, 272)
    assert first["sm_90a.spill_bytes"] is None
    assert second["out_of_line"].startswith("sm_100a: 32 registers, not 168")


def test_templates_in_csv_and_json(tmp_path):
    lines = written(tmp_path, "template", SETMAXNREG)
    (line,) = (
        line for line in lines if line["template"] == "consume" and line["stack_frame"] == 272
    )
    assert (line["argument 1"], line["arch"], line["code_bytes"]) == ("200", "sm_100a", 14720)


def test_totals_in_csv_and_json(tmp_path):
    (tmp_path / "k.cubin").write_bytes(cubin([Row("k", code_bytes=256), Row("=a")]))
    (tmp_path / "l.cubin").write_bytes(cubin([Row("k", code_bytes=256)]))
    lines = written(tmp_path, "total", tmp_path)
    assert {(line["of"], line["name"]): line["code_bytes"] for line in lines} == {
        ("file", "k.cubin"): 272, ("file", "l.cubin"): 256, ("arch", "sm_90"): 528,
        ("template", "k"): 512, ("template", "=a"): 16, ("copies", "k"): 256,
    }  # fmt: skip
    assert lines[-1]["files"] == "k.cubin l.cubin"
