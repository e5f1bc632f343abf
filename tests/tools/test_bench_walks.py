"""Walks through Python: how they are counted, and that those of calls stay straight."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import bench_walks as walks

ROOT = Path(__file__).parents[2]


def test_a_call_into_a_file_that_was_left_is_a_return():
    steps = [("a", "f"), ("a", "g"), ("b", "h"), ("a", "f"), ("b", "h"), ("c", "i"), ("c", "i")]
    assert walks.returns(steps) == 2
    assert walks.returns([]) == 0


def test_comprehensions_belong_to_their_function():
    def called():
        return [all(x for x in (1, 2)) for _ in (1, 2)]

    assert [name for _, name in walks.walk(called)] == []
    assert [name for _, name in walks.walk(lambda: called())] == ["called"]


@pytest.mark.parametrize(("row", "most", "most_returns"), [("new length", 37, 9)])
def test_a_new_call_is_one_straight_walk(row, most, most_returns):
    calls, returns = counted(row)[-1].split()
    assert int(calls) <= most
    assert int(returns) <= most_returns


def test_the_first_call_of_a_process_reads_what_it_needs():
    steps = counted("first call")
    assert not any("ptxas" in step for step in steps)
    assert int(steps[-1].split()[0]) < 9_000


def counted(row):
    command = [sys.executable, "-m", "tools.bench_walks", row]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.splitlines()
