"""A short run of the spec fuzzer, and that it sees what it looks for."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen import pipeline
from codegen.spec.problems import Location, Problem, SpecError
from tools.fuzz import _spec_programs, specs


@pytest.mark.parametrize(("count", "options"), [(150, ()), (40, ("--compile",))])
def test_specs_are_right_or_refused_with_their_place_in_time(count, options) -> None:
    arguments = ["--count", str(count), "--seed", "20", "--limit", "30", *options]
    result = CliRunner().invoke(specs.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    counts = re.search(r"(\d+) accepted, (\d+) refused, 0 failures", result.output)
    assert all(int(count) > 5 for count in counts.groups())


@pytest.mark.parametrize(
    ("fault", "reported"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: time.sleep(60), "took more than 0.05 s"),
        (lambda: exec("while True: pass"), "took more than 0.05 s"),
    ],
)
def test_a_fault_is_seen(monkeypatch, tmp_path, fault, reported) -> None:
    monkeypatch.setattr(pipeline, "build", lambda *_: fault())
    arguments = ["--count", "1", "--limit", "0.05", "--keep", str(tmp_path)]
    result = CliRunner().invoke(specs.main, arguments)
    assert result.exit_code == 1
    assert reported in result.output
    assert list(tmp_path.glob("*/family.yaml"))


def test_a_problem_on_two_lines_is_seen(monkeypatch) -> None:
    class TwoLines(Problem):
        def __str__(self) -> str:
            return "a.yaml:1:1: one\ntwo"

    def refuse(*_: object) -> None:
        raise SpecError([TwoLines(Location("a.yaml", 1, 1), "")])

    monkeypatch.setattr(pipeline, "build", refuse)
    result = CliRunner().invoke(specs.main, ["--count", "1"])
    assert result.exit_code == 1
    assert "not one problem a line" in result.output


def test_a_wrong_value_in_cpp_is_seen(tmp_path: Path) -> None:
    files = {
        "family.yaml": "family: f\nsummary: one\narguments:\n  x: {tensor: [N, M], dtype: f32}\n"
        "  y: {output: [N + 1], dtype: f32}\n  s: {scalar: f64, default: N / M}\n"
        "  c: {scalar: i64, default: N // M}\nrequires: [{that: N > M, because: it is}]\n",
        "cpu.yaml": "target: cpu\nkernel: cpu.h\nparameters:\n  tile: {type: int}\n"
        "derived: {twice: 2 * tile}\nrequires: [{that: N > 0, because: it is}]\n"
        "sets: {default: [{tile: 3}]}\n",
        "cpu.h": "",
    }
    specs._write(tmp_path / "specs/f", files)
    tree = pipeline.build([tmp_path / "specs"], tmp_path / "generated", specs.Selection())
    assert specs._compiled(tmp_path) == []
    printed = _spec_programs.run(tmp_path, tree.spaces)
    assert "twice 6\n" in printed
    wrong = printed.replace("twice 6\n", "twice 7\n")
    assert len(list(_spec_programs.differences(wrong, tree.spaces))) > 0
