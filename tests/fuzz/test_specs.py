"""Specs: damaged real ones and random good ones, through all of codegen but the writing.

Each must be accepted, or refused with located problems, one a line, within the limit. Accepted ones
are compiled, and C++'s values compared with Python's.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import pipeline
from codegen.core.home import SPECS
from codegen.core.manifest import Selection
from codegen.core.problems import Location, Problem, SpecError, UsageError
from codegen.tree import writer
from tests.fuzz import spec_programs, spec_texts
from tests.fuzz.limits import TimeOutError, limited
from tests.fuzz.spec_texts import Texts

_PROBLEM = re.compile(r"[^\n]*:\d+:\d+: [^\n]+")
MANY = {"suppress_health_check": list(HealthCheck)}


def _write(folder: Path, files: Texts) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode(errors="surrogatepass"))


def _accepted(specs: Path, limit: float = 30) -> bool:
    """Whether specs are accepted. Raises what codegen must not, and AssertionError for problems
    that are not one a line, each with its place."""
    try:
        with limited(limit):
            pipeline.generate([specs], specs.parent / "generated", Selection())
    except SpecError as error:
        lines = [str(problem) for problem in error.problems]
        wrong = [line for line in lines if not _PROBLEM.fullmatch(line)]
        assert not wrong, f"not one problem a line, with its place: {wrong[0]!r}"
        return False
    except UsageError:
        return False
    return True


def _compiled(folder: Path) -> list[str]:
    """What differs between C++ and Python for the specs in folder/specs."""
    tree = pipeline.generate([folder / "specs"], folder / "generated", Selection())
    for space in tree.spaces:
        header = spec_programs.header(space.targets[0].target)
        (folder / "specs" / space.family.name / "cpu.h").write_text(header)
    writer.write(folder / "generated", tree.files)
    try:
        printed = spec_programs.run(folder, tree.spaces)
    except subprocess.CalledProcessError as error:
        return [error.stderr[:2000]]
    return list(spec_programs.differences(printed, tree.spaces))


def _seeds() -> list[Texts]:
    """The files of the families there are."""
    return [
        {path.name: path.read_text() for path in sorted(family.parent.iterdir()) if path.is_file()}
        for family in sorted(SPECS.glob("**/family.yaml"))
    ]


def _damaged(rng: random.Random, seeds: Sequence[Texts]) -> tuple[str, Texts]:
    """A family's name and files; only YAML is damaged."""
    files = rng.choice(seeds)
    yaml = {name: text for name, text in files.items() if name.endswith(".yaml")}
    others = {name: "" for name in files if name not in yaml}
    (family,) = re.findall(r"^family: (\w+)", yaml["family.yaml"], re.MULTILINE)
    return family, {**others, **spec_texts.mutant(rng, [yaml])}


SEEDS = _seeds()


@settings(max_examples=3 * settings.default.max_examples // 2, **MANY)
@given(st.randoms(use_true_random=False))
def test_specs_are_accepted_or_refused_with_their_place_in_time(rng):
    if rng.random() < 0.3:
        family, files = "f", {**spec_texts.good(rng, "f"), "cpu.h": ""}
    else:
        family, files = _damaged(rng, SEEDS)
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name) / "specs" / family, files)
        _accepted(Path(name) / "specs")


@pytest.mark.slow
@settings(max_examples=max(2, settings.default.max_examples // 25), **MANY)
@given(st.lists(st.integers(0, 2**32), min_size=10, max_size=10, unique=True))
def test_cpp_computes_what_python_does(seeds):
    """A program takes a second or more to compile, and so it has several specs."""
    with tempfile.TemporaryDirectory() as name:
        good = Path(name) / "specs"
        for seed in seeds:
            family = f"f{seed}"
            files = {**spec_texts.good(random.Random(seed), family), "cpu.h": ""}
            _write(Path(name) / "one" / family, files)
            if _accepted(Path(name) / "one"):
                _write(good / family, files)
            for path in (Path(name) / "one" / family).iterdir():
                path.unlink()
            (Path(name) / "one" / family).rmdir()
        if good.exists():
            assert _compiled(Path(name)) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda: 1 // 0, ZeroDivisionError),
        (lambda: time.sleep(60), TimeOutError),
        (lambda: exec("while True: pass"), TimeOutError),
    ],
)
def test_a_fault_is_seen(monkeypatch, tmp_path, fault, error):
    monkeypatch.setattr(pipeline, "generate", lambda *_: fault())
    with pytest.raises(error):
        _accepted(tmp_path, limit=0.05)


def test_a_problem_on_two_lines_is_seen(monkeypatch, tmp_path):
    class TwoLines(Problem):
        def __str__(self) -> str:
            return "a.yaml:1:1: one\ntwo"

    def refuse(*_: object) -> None:
        raise SpecError([TwoLines(Location("a.yaml", 1, 1), "")])

    monkeypatch.setattr(pipeline, "generate", refuse)
    with pytest.raises(AssertionError, match="not one problem a line"):
        _accepted(tmp_path)


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
    _write(tmp_path / "specs/f", files)
    tree = pipeline.generate([tmp_path / "specs"], tmp_path / "generated", Selection())
    assert _compiled(tmp_path) == []
    printed = spec_programs.run(tmp_path, tree.spaces)
    assert "twice 6\n" in printed
    wrong = printed.replace("twice 6\n", "twice 7\n")
    assert len(list(spec_programs.differences(wrong, tree.spaces))) > 0
