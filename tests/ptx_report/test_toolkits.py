"""`ptx-report toolkits`: which toolkits it finds, what it compiles by them and shows, and what of
that the table of advice keeps and refuses."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.build import toolkits
from codegen.core import advice
from codegen.core.home import ROOT, SPECS
from codegen.core.ptxas_rows import read_csv
from codegen.ptxas import check_toolkit
from codegen.ptxas.fingerprints import Manifest, SourceFingerprint
from tests.ptx_report.project import KEYS, Project
from tools.ptx_report import advising, compiling
from tools.ptx_report.__main__ import main

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH")
# Eighty values at a time: they do not fit 40 registers.
BIG = """
__global__ void big(const float* x, float* y) {
  float a[80];
  for (int i = 0; i < 80; ++i) a[i] = x[i * threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 80; ++i) y[i] = a[i] * a[79 - i];
}
"""
OTHER = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 13.9, V13.9.1"; exit ;; esac
exec {nvcc} "$@" -maxrregcount=40 -DOTHER
"""


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ["toolkits", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def compiler(folder, version):
    """An nvcc of a version, which compiles nothing."""
    release = version.rpartition(".")[0]
    says = f"echo 'release {release}, V{version}'"
    refuses = "echo 'k.cu(1): error: too old' >&2; exit 1"
    return program(folder, f'#!/bin/sh\ncase "$*" in *--version*) {says} ;; *) {refuses} ;; esac\n')


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A toolkit that differs from the one on PATH."""
    path = tmp_path_factory.mktemp("toolkit") / "cuda/bin/nvcc"
    return program(path, OTHER.format(nvcc=NVCC)).parents[1]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Toolkits on PATH and in the cache, wheels in a folder."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'on_path/bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDACXX", raising=False)
    compiler(tmp_path / "on_path/bin/nvcc", "99.0.88")
    compiler(tmp_path / "cache/toolkits/99.1.3/nvidia/cu99/bin/nvcc", "99.1.3")
    for part in ("nvcc", "crt", "runtime", "cccl"):
        (tmp_path / "wheels").mkdir(exist_ok=True)
        version = "99.3.1.4" if part == "cccl" else "99.1.7"  # which has versions of its own
        wheel(tmp_path / "wheels", f"nvidia_cuda_{part}-{version}", f"bin/{part}")
    wheel(tmp_path / "wheels", "nvidia_nvvm-99.1.7", "nvvm/bin/cicc")
    return tmp_path


def wheel(folder, name, file):
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as zipped:
        zipped.writestr(f"nvidia/cu99/{file}", "#!/bin/sh\necho release 99.1, V99.1.7\n")


# Toolkits


def test_a_version_is_the_newest_of_those_that_suit(places):
    assert toolkits.find("99.0").command == (str(places / "on_path/bin/nvcc"),)
    assert toolkits.find("99").version == "99.1.3"
    unpacked = toolkits.find("99.1", [places / "wheels"])
    assert unpacked.version == "99.1.7"
    folder = Path(unpacked.command[0]).parents[1]
    assert folder.is_relative_to(places / "cache/toolkits/99.1.7")
    assert os.access(folder / "nvvm/bin/cicc", os.X_OK)
    assert toolkits.find("99.1").version == "99.1.7"  # of the cache, without the wheels


def test_a_path_is_an_nvcc_or_the_folder_of_its_toolkit(places):
    for path in (places / "on_path", places / "on_path/bin/nvcc", places / "cache/toolkits/99.1.3"):
        assert toolkits.find(str(path)).version in ("99.0.88", "99.1.3")


def test_a_toolkit_that_is_not_there_is_an_error_that_says_what_is(places):
    (places / "wheels/nvidia_nvvm-99.1.7-py3-none-any.whl").unlink()
    for name, wheels, message in (
        ("98.4", [], r"nvcc 98.4: not here; there is 99.0.88 \(.*\), .*pip download .*==98.4"),
        ("nowhere", [], "nvcc nowhere: no such file or folder, and no version such as 13.0"),
        (str(places), [], "no nvcc in it: looked for bin/nvcc and"),
        ("/bin/true", [], "nvcc /bin/true: its --version does not say a release of CUDA"),
        ("99.1.7", [places / "wheels"], "nvidia_nvvm 99.1 is not beside it: `pip download"),
    ):
        with pytest.raises(toolkits.ToolkitError, match=message):
            toolkits.find(name, wheels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name toolkits: --nvcc 13.0 --nvcc 13.5"),
        (("k.cu", "--nvcc", "1.2"), "nvcc 1.2: not here"),
        (("a", "b", "--nvcc", "1.2"), "got a b: expected one folder of specs or family"),
        (("k.cu", "--nvcc", "1.2", "--record"), "--record, --rows: for kernels of specs"),
        (("--nvcc", "1.2", "--matrix", "x.md"), "--matrix: with --record, or without --nvcc"),
        (("nowhere", "--matrix", "x.md"), "nowhere/toolkits.csv: no such table"),
    ],
)
def test_bad_input_is_an_error_in_a_sentence(arguments, message):
    assert message in run(*arguments, status=2)


# Any project


@pytest.fixture(scope="module")
def shown(tmp_path_factory, other):
    """The report on a project's compile_commands.json, and its CSV."""
    if NVCC is None:
        pytest.skip("no nvcc on PATH")
    folder = tmp_path_factory.mktemp("project")
    new = "#ifndef OTHER\n#error too old\n#endif\n__global__ void newest(int* x) { *x = 1; }\n"
    texts = {"big.cu": BIG, "new.cu": new, "host.cpp": ""}
    for name, text in texts.items():
        (folder / name).write_text(text)
    options = "-arch=sm_90 -MD -MT x -MF x.d -x cu"
    commands = [
        {"directory": ".", "file": "big.cu",
         "command": f"ccache /gone/nvcc {options} -dc {folder}/big.cu -o out/big.o"},
        {"directory": str(folder), "file": "new.cu",
         "arguments": ["/gone/nvcc", *options.split(), "-c", "new.cu", "-o", "new.o"]},
        {"directory": str(folder), "file": "host.cpp", "command": "c++ -c host.cpp"},
    ]  # fmt: skip
    file = folder / "compile_commands.json"
    file.write_text(json.dumps(commands))
    csv = folder / "r.csv"
    text = run(file, "--nvcc", NVCC, "--nvcc", other, "--csv", csv, status=1)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*texts, csv.name, file.name])
    return text.splitlines(), read_csv(csv)


def test_each_toolkit_is_a_column_and_what_differs_is_said(shown):
    lines, _ = shown
    (heading,) = (line for line in lines if line.startswith("kernel "))
    version = toolkits.find(NVCC).version
    assert heading.split() == ["kernel", version, "13.9.1", "differs"]
    (line,) = (line for line in lines if line.startswith("big(float const*"))
    assert re.search(r"13\.9\.1: [\d,]+ bytes of stack or spilled, not 0", line)
    assert "13.9.1: 40 registers, not " in line
    assert any(re.match(r"13\.9\.1: .* s of nvcc; 1 worse, 1 added", x) for x in lines)
    version = re.escape(version)
    assert any(re.fullmatch(rf"{version}: .* s of nvcc; 1 does not compile", x) for x in lines)


@needs_nvcc
def test_a_kernel_that_only_one_toolkit_has_is_listed(shown):
    lines, _ = shown
    (line,) = (line for line in lines if line.startswith("newest(int*)"))
    assert " – " in line
    assert line.rstrip().endswith(f"{toolkits.find(NVCC).version}: no such kernel")
    assert any(line.startswith("3 rows of 3 differ") for line in lines)


@pytest.mark.slow
def test_what_does_not_compile_is_a_row_and_no_end(shown):
    lines, _ = shown
    (line,) = (line for line in lines if line.startswith("new.cu"))
    assert lines.index(line) < next(i for i, x in enumerate(lines) if x.startswith("big("))
    assert "incomplete" in line
    assert re.search(r": does not compile: .*too old", line)
    assert any(re.match(r"\[\d/4\] 13\.9\.1  big\.cu  \d", x) for x in lines)  # progress


def test_the_csv_has_all_rows_with_their_toolkits(shown):
    _, rows = shown
    figures = {row.toolchain: row for row in rows if row.kernel == "big"}
    assert set(figures) == {f"nvcc {toolkits.find(NVCC).version}", "nvcc 13.9.1"}
    assert figures["nvcc 13.9.1"].spilled
    assert all(row.code_bytes for row in figures.values())


def test_what_no_toolkit_compiles_is_not_the_same(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text("")
    one, other = (compiler(tmp_path / version, version) for version in ("99.0.1", "99.1.1"))
    text = run(file, "--nvcc", one, "--nvcc", other, "--architecture", "90", status=1)
    assert "99.0.1, 99.1.1: incomplete: does not compile: k.cu(1): error: too old" in text
    assert re.search(r"99\.1\.1: 0\.0 s of nvcc; 1 does not compile; no kernels", text)
    assert "1 row of 1 differ" in text


def test_no_source_is_written_over(tmp_path):
    nvcc = compiler(tmp_path / "nvcc", "99.0.1")
    source, commands = tmp_path / "k.cu", tmp_path / "compile_commands.json"
    source.write_text("before")
    entry = {"directory": str(tmp_path), "file": "k.cu", "command": "nvcc -c k.cu"}
    commands.write_text(json.dumps([entry]))
    for file, output in ((source, source), (commands, commands), (commands, source)):
        text = run(file, "--nvcc", nvcc, "--csv", output, status=2)
        assert f"{output}: is an input" in text
    assert source.read_text() == "before"


@needs_nvcc
def test_an_option_of_ptxas_is_a_column(tmp_path):
    file = tmp_path / "big.cu"
    file.write_text(f"#if VALUE != 3\n#error\n#endif\n{BIG}")
    options = ("--ptxas-option=-maxrregcount=40", "--architecture", "90", "--", "-DVALUE=3")
    text = run(file, "--nvcc", NVCC, *options)
    version = toolkits.find(NVCC).version
    assert f"{version} -maxrregcount=40: 40 registers, not " in text
    assert text.count("incomplete") == 0
    assert "no such file" in run(tmp_path / "no.cu", "--nvcc", NVCC, status=2)
    (tmp_path / "c.json").write_text('[{"file": "x.cpp", "command": "c++ x.cpp"}]')
    assert "no command of nvcc in it" in run(tmp_path / "c.json", "--nvcc", NVCC, status=2)
    (tmp_path / "c.json").write_text("{")
    assert "not a compile_commands.json" in run(tmp_path / "c.json", "--nvcc", NVCC, status=2)


@pytest.mark.slow
@needs_nvcc
def test_architectures_that_one_command_cannot_tell_apart_are_compiled_one_by_one(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text(
        "#if __CUDA_ARCH__ == 900\n#error not here\n#endif\n"
        "__device__ __noinline__ double f(double x) { return x * x; }\n"
        "__global__ void k(double* y) { *y = f(*y); }\n"
    )
    archs = ("sm_80", "sm_90", "sm_120")
    options = tuple(f"--generate-code=arch=compute_{a[3:]},code=[{a}]" for a in archs)
    unit = compiling.Unit("k", file, tmp_path, options, archs)
    variant = compiling.Variant("x", toolkits.find(NVCC))
    (result,) = compiling.compiled([variant], lambda variant: [unit], False, print)
    named = {(row.arch, row.kind): row for row in result.rows}
    assert set(named) == {("sm_90", "kernel")} | {
        (arch, kind) for arch in ("sm_80", "sm_120") for kind in ("kernel", "function")
    }
    assert re.match("does not compile: .*not here", named["sm_90", "kernel"].incomplete)
    assert all(row.incomplete is None for row in result.rows if row.arch != "sm_90")


# The table of advice

SET = advice.Row("f.sm80", "default", "sm_90", "13.0.88", 3, 3, 1, 8, 0, 2, "", "")
BAD = advice.Row(KEYS[0], "", "sm_90", "13.0.88", 1, 1, 0, 0, 1, 0, "c0de", "2 | 3")


def right(nvcc, code="c0de"):
    return BAD._replace(nvcc=nvcc, wrong=0, code=code, note="")


def refusal(path, keys, architectures, nvcc, code="c0de"):
    return advice.refusal(path, keys, architectures, nvcc, lambda key: code)


def test_a_table_is_what_was_written(tmp_path):
    rows = [SET, BAD, right("13.5.37"), right("13.10.1")]
    path = tmp_path / advice.NAME
    path.write_text(advice.text(reversed(rows)))
    assert sorted(advice.read(path)) == sorted(rows)
    nvccs = [row.nvcc for row in advice.read(path) if row.kernels == BAD.kernels]
    assert nvccs == ["13.0.88", "13.5.37", "13.10.1"]
    path.write_text(path.read_text().replace("13.0.88,3", "13.0.88,x"))
    with pytest.raises(advice.AdviceError, match=r"toolkits\.csv:\d: expected a header and 12"):
        advice.read(path)


def test_a_wrong_pair_is_refused_with_its_row_and_the_nearest_right_toolkit(tmp_path):
    path = tmp_path / advice.NAME
    rows = [BAD, right("13.2.86"), right("13.5.37"), right("12.0.1"), right("13.1.1", "01d")]
    path.write_text(advice.text(rows))
    why = refusal(path, [KEYS[0]], ["90"], "13.0.88")
    assert f"nvcc 13.0.88 compiles {KEYS[0]} wrongly for sm_90 ({path}:3: 2 | 3)" in why
    assert "nvcc 13.2.86 compiles it rightly" in why
    for keys, architectures, nvcc in (
        ([KEYS[1]], ["90"], "13.0.88"),
        ([KEYS[0]], ["80", "100"], "13.0.88"),
        ([KEYS[0]], ["90"], "13.2.86"),
    ):
        assert refusal(path, keys, architectures, nvcc) is None
    other = [row._replace(kernels=KEYS[1]) for row in (BAD, right("13.5.37"))]
    path.write_text(advice.text([BAD, right("13.2.86"), right("13.5.37"), *other]))
    why = refusal(path, KEYS, ["90"], "13.0.88")
    assert f"and 1 more of these kernels: {KEYS[1]}: nvcc 13.5.37 compiles them rightly" in why
    path.write_text(advice.text([BAD, right("13.2.86"), other[0]]))
    assert "no nvcc that was tried compiles all of them rightly" in refusal(
        path, KEYS, ["90"], "13.0.88"
    )
    path.write_text(advice.text([BAD]))
    assert "no other nvcc was tried" in refusal(path, [KEYS[0]], ["9.0"], "13.0.88")


def test_cmake_refuses_a_wrong_pair(tmp_path, capsys):
    project = Project(tmp_path, {})
    code = SourceFingerprint(Manifest(project.manifest), [project.specs]).of(KEYS[0])
    arguments = [str(project.manifest), str(project.specs), "--architectures", "80", "90", "--nvcc"]
    (project.specs / advice.NAME).write_text(advice.text([BAD._replace(code=code)]))
    assert check_toolkit.main([*arguments, "13.5.37"]) == 0
    assert check_toolkit.main([*arguments, "13.0.88"]) == 1
    error = capsys.readouterr().err
    assert f"compiles {KEYS[0]} wrongly" in error
    assert "KERNELMINT_GENERATED_DIR=DIR builds it" in error


def test_the_matrix_has_a_column_for_each_toolkit(tmp_path):
    page = tmp_path / "p.md"
    fine = right("13.5.37")._replace(kernels=KEYS[1])
    page.write_text("before\n\n| kernels | architecture | x |\n| --- | --- | --- |\n\nafter\n")
    (tmp_path / advice.NAME).write_text(advice.text([SET, BAD, right("13.5.37"), fine]))
    assert f"written: {page}" in run(tmp_path, "--matrix", page)
    assert page.read_text() == (
        "before\n\n"
        "| kernels | architecture | nvcc 13.0.88 | nvcc 13.5.37 |\n| --- | --- | --- | --- |\n"
        "| `f.sm80`, default | sm_90 | 3 of 3 compile; 1 spill 8 bytes; 0 wrong; 2 verified | "
        "not tried |\n"
        f"| `{KEYS[0]}` | sm_90 | wrong: 2 \\| 3 | nothing found |\n"
        "\nafter\n"
    )
    (other := tmp_path / "other").mkdir()
    (other / advice.NAME).write_text(advice.text([SET._replace(kernels="g.sm80", nvcc="13.5.37")]))
    run(tmp_path, other, "--matrix", page)  # of two folders
    assert "| `g.sm80`, default | sm_90 | not tried | 3 of 3 compile; " in page.read_text()
    page.write_text("nothing")
    assert "no table in it that begins" in run(tmp_path, "--matrix", page, status=2)


def test_tested_has_the_matrix_of_the_table():
    page = (ROOT / "docs/tested.md").read_text(encoding="utf-8")
    examples = sorted(ROOT.glob(f"examples/*/kernel_specs/{advice.NAME}"))
    rows = [row for table in (SPECS / advice.NAME, *examples) for row in advice.read(table)]
    assert advising.matrix(rows) in page
