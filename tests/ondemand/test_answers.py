"""What compilers answer is asked once, as long as they are the files that they were."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import runtime
from runtime.ondemand import answers

CXX = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture
def compiler(tmp_path) -> Path:
    """A copy of this machine's C++ compiler, that tests may touch."""
    if CXX is None:  # nothing else is remembered: a c++ may be a script, or ccache
        pytest.skip("no g++ or clang++ on PATH")
    return Path(shutil.copy(os.path.realpath(CXX), tmp_path / Path(CXX).name))


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """The programs that were started."""
    programs = []
    run = subprocess.run

    def counted(command, **options):
        programs.append(command[0])
        return run(command, **options)

    monkeypatch.setattr(answers.subprocess, "run", counted)
    return programs


def test_a_compiler_is_asked_again_only_where_it_or_the_question_changed(
    compiler, cache, started
) -> None:
    first = answers.ask((str(compiler), "--version"))
    assert "Copyright" in first.output or "clang" in first.output
    assert answers.ask((str(compiler), "--version")) == first
    assert len(started) == 1
    answers.ask((str(compiler), "-dumpversion"))
    assert len(started) == 2
    os.utime(compiler, (1, 1))  # another compiler, of the same size
    assert answers.ask((str(compiler), "--version")) == first
    assert len(started) == 3


def test_an_answer_that_is_damaged_is_asked_for_again(compiler, cache, started) -> None:
    first = answers.ask((str(compiler), "--version"))
    (note,) = (cache / "1/answers").iterdir()
    for text in ("[", "{}", '["one"]'):
        note.write_text(text)
        assert answers.ask((str(compiler), "--version")) == first
    assert len(started) == 4


def test_a_program_that_may_run_another_is_asked_each_time(compiler, cache, started) -> None:
    wrapper = compiler.with_name("c++")
    wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" "$@"\n')
    wrapper.chmod(0o755)
    as_ccache = Path(shutil.copy(compiler, compiler.with_name("ccache")))
    for program in (wrapper, as_ccache):
        for _ in range(2):
            answers.ask((str(program), "--version"))
    assert len(started) == 4


def test_what_fails_is_said_and_asked_again(compiler, cache, started) -> None:
    for _ in range(2):
        with pytest.raises(runtime.BuildError, match="--no-such-option"):
            answers.ask((str(compiler), "--no-such-option"))
    assert len(started) == 2
    with pytest.raises(runtime.BuildError, match="/nowhere/c\\+\\+ --version: No such file"):
        answers.ask(("/nowhere/c++", "--version"))


def test_a_cache_that_cannot_be_written_is_no_matter(compiler, monkeypatch, started) -> None:
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", "/proc/nowhere")
    assert answers.ask((str(compiler), "--version")) == answers.ask((str(compiler), "--version"))
    assert len(started) == 2
