"""`make matrix`: rows are chosen, run once a commit, and kept whatever comes of them."""

import platform
import subprocess
import zipfile

import pytest
from click.testing import CliRunner

from tools.matrix import manylinux, pythons, results, rows, toolkits, work
from tools.matrix.__main__ import main
from tools.matrix.results import Outcome, Row
from tools.matrix.rows import Kind
from tools.matrix.work import AbsentError, FailedError, Work

PAGE = "before\n\n| row | result | what | on | commit |\n| --- | --- |\n| old | |\n\nafter\n"


@pytest.fixture
def matrix(tmp_path, monkeypatch):
    """Runs the command on rows that pass, fail or cannot be had; checks that were run."""
    checked = []

    def check(version, work):
        checked.append(version)
        if version == "bad":
            work.run("sh", "-c", "echo 'x.cpp:1: error: no such thing'; exit 1")
        if version == "none":
            raise AbsentError("no | python3.99 on PATH")
        return Outcome("run", f"version {version}")

    monkeypatch.setattr(rows, "KINDS", {"python": Kind(("bad", "none", "good"), check)})
    monkeypatch.setattr(rows, "NAMES", ["python:bad", "python:none", "python:good"])
    monkeypatch.setattr(work, "FOLDER", tmp_path / "work")
    monkeypatch.setattr(results, "commit", lambda: "1234567")
    monkeypatch.setattr(results, "is_done", lambda row: row is not None and row.result == "run")
    page, file = tmp_path / "tested.md", tmp_path / "matrix.csv"
    page.write_text(PAGE)

    def run(*arguments):
        checked.clear()
        done = CliRunner().invoke(main, [*arguments, "--csv", str(file), "--page", str(page)])
        return done, list(checked), results.read(file), page.read_text()

    return run


def test_every_row_is_kept_and_a_failure_ends_none(matrix):
    done, checked, kept, page = matrix()
    assert done.exit_code == 1
    assert checked == ["bad", "none", "good"]
    assert [row.result for row in kept.values()] == ["failed", "absent", "run"]
    assert "x.cpp:1: error: no such thing" in kept["python:bad"].detail
    assert "[2/3] python:none: absent, 0 s: no | python3.99 on PATH" in done.output
    assert page.startswith("before\n\n| row |")
    assert page.endswith("|\n\nafter\n")
    assert "| `python:none` | not had | no \\| python3.99 on PATH |" in page
    assert "old" not in page


def test_a_row_that_is_done_is_not_run_again_unless_that_is_said(matrix):
    matrix()
    assert matrix()[1] == ["bad", "none"]
    done, checked, kept, _ = matrix("python:good")
    assert (done.exit_code, checked, len(kept)) == (0, [], 3)
    assert matrix("python:good", "--again")[1] == ["good"]


def test_a_word_that_names_no_row_is_refused_before_any_runs(matrix):
    done, checked, kept, page = matrix("python", "pyton:good")
    assert done.exit_code == 2
    assert "pyton:good: no such row; there are python:bad," in done.output
    assert (checked, kept, page) == ([], {}, PAGE)


def test_a_file_that_another_program_wrote_is_refused(tmp_path):
    file = tmp_path / "matrix.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="expected the columns name, result, "):
        results.read(file)


def test_a_row_is_done_at_commits_that_change_texts_only(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)
        return results.commit()

    monkeypatch.setattr(results, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("1")
    (tmp_path / "code").write_text("1")
    git("init", "-q")
    git("add", ".")
    first = git("commit", "-qm", "first")
    row = Row("python:3.12", "run", "", 1, "", first, "")
    (tmp_path / "docs/a.md").write_text("2")
    assert results.commit() == first
    assert git("commit", "-qam", "second") != first
    assert results.is_done(row)
    assert not results.is_done(row._replace(result="absent"))
    (tmp_path / "code").write_text("2")
    assert results.commit().endswith("+")
    assert not results.is_done(row)


def test_a_step_that_fails_says_why_and_is_in_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "FOLDER", tmp_path)
    step = Work("gcc:11")
    with pytest.raises(FailedError, match=r"^sh -c .*: ValueError: so$"):
        step.run("sh", "-c", "echo Traceback; echo ValueError: so; echo; exit 3")
    assert "ValueError: so" in (tmp_path / "gcc-11/log").read_text()


def test_the_reason_of_a_wheel_that_was_not_built_is_cmakes_and_not_pips() -> None:
    output = """
  CMake Error at a.cmake:149 (message):
    Couldn't find CUDA library root.
  Call Stack (most recent call first):
ERROR: Failed to build one or more wheels
"""
    reason = "CMake Error at a.cmake:149 (message): Couldn't find CUDA library root."
    assert str(FailedError("pip", output)) == f"pip: {reason}"


def test_a_toolkit_without_nvcc_is_not_had(tmp_path, monkeypatch) -> None:
    """The toolkits of CUDA 12 on the index have no nvcc."""
    monkeypatch.setattr(work, "FOLDER", tmp_path)
    monkeypatch.setattr(Work, "pip", lambda *arguments: "")
    with pytest.raises(
        AbsentError, match=r"^no nvcc 12\.99 is named by CUDACXX, .* nor in the ind"
    ):
        toolkits.check_nvcc("12.99", Work("nvcc:12.99"))


@pytest.mark.skipif(
    int(platform.libc_ver()[1].split(".")[-1]) < 34, reason="needs a glibc newer than the policy's"
)
def test_a_wheel_that_needs_a_newer_glibc_than_the_policys_is_not_had(
    tmp_path, monkeypatch
) -> None:
    library = tmp_path / "native.so"
    source = b'#include <dlfcn.h>\nextern "C" void* PyInit_native() { return dlopen(0, 1); }'
    compiler = ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library]
    subprocess.run(compiler, input=source, check=True)
    machine = platform.machine()
    wheel = tmp_path / f"a-1-cp310-abi3-linux_{machine}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "native.so")
        archive.writestr("a-1.dist-info/WHEEL", f"Tag: cp310-abi3-linux_{machine}\n")
        archive.writestr("a-1.dist-info/RECORD", "native.so,,\n")
    monkeypatch.setattr(work, "FOLDER", tmp_path)
    monkeypatch.setattr(pythons, "build", lambda *arguments: wheel)
    with pytest.raises(AbsentError, match=r"makes wheels of manylinux_2_34_\w+; those of .*_2_28_"):
        manylinux.check_manylinux("2_28", Work("manylinux:2_28"))


def test_the_kept_rows_are_those_of_the_page():
    kept = results.read(results.CSV)
    assert [*kept] == [name for name in rows.NAMES if name in kept]
    assert results.table(kept.values()) in results.PAGE.read_text()
