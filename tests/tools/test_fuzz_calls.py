"""tools.fuzz calls, for a few seconds; and that its runner sees what it is there to see."""

import importlib

import pytest

from tools.fuzz.calls import right, runner, wrong

MISBEHAVING = """
import os, signal, time

def case(seed, number):
    if number == 1:
        raise ValueError("not one")
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        time.sleep(600)
    return f"case of seed {seed}"
"""


@pytest.mark.parametrize(("case", "count"), [(wrong.case, 1500), (right.case, 150)])
def test_calls(case, count):
    found = runner.run(case, 20, count)
    assert found.failures == []
    assert found.counts.total() == count


def test_a_case_that_fails_dies_or_never_ends_is_reported_by_its_number(monkeypatch, tmp_path):
    (tmp_path / "misbehaving.py").write_text(MISBEHAVING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(runner, "_SLOWEST", 20.0)
    found = runner.run(importlib.import_module("misbehaving").case, 7, 8)
    assert [(failure.number, failure.what) for failure in found.failures] == [
        (1, "ValueError: not one"),
        (3, "the process died (SIGSEGV)"),
        (5, "not done after 20 s"),
    ]
    assert found.counts == {"case of seed 7": 5}
