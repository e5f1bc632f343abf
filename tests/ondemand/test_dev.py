"""kernelmint dev: run, edit, build what the run used, run again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from runtime.manifest import Resources
from tools.dev import changes

RUN = """
import sys, torch, runtime
runtime.load(sys.argv[1])
x, y = torch.ones(2, 1, 10)
print("computed", runtime.kernel(sys.argv[2])(x, y, alpha=3.0)[0, 0].item(), flush=True)
"""


def test_figures_say_what_changed() -> None:
    before = Resources(24, 0)
    assert changes(Resources(28, 8), before) == "28 registers (was 24), 8 bytes spilled (was 0)"
    assert changes(Resources(24, 0), before) == "24 registers, 0 bytes spilled"
    assert changes(Resources(24, 0), None) == "24 registers, 0 bytes spilled"
    assert changes(None, None) == "built"


@contextlib.contextmanager
def dev(family, *command):
    """The running command; its lines come from an iterator."""
    with subprocess.Popen(
        [sys.executable, "-m", "kernelmint", "dev", "--specs", family.specs,
         sys.executable, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ},
    ) as process:  # fmt: skip
        guard = threading.Timer(300, process.kill)
        guard.start()
        yield iter(process.stdout.readline, "")
        guard.cancel()
        process.kill()


def until(lines, part: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if part in line:
            return line
    raise AssertionError("".join(seen))


def test_an_edit_is_built_and_run_and_a_mistake_is_told(family, cache) -> None:
    with dev(family, "-c", RUN, family.folder, family.key()) as lines:
        until(lines, "computed 4.0")
        until(lines, f"{family.key()}: built")
        family.edit("splat(args_.alpha)", "splatt(args_.alpha)")
        assert "splatt" in until(lines, "error:")
        family.edit("splatt(args_.alpha)", "splat(2 * args_.alpha)")
        until(lines, "cpu.h changed")
        until(lines, f"{family.key()}: built")
        until(lines, "computed 7.0")
        assert " s (was " in until(lines, "kernelmint: ")


@pytest.mark.slow
def test_the_test_of_a_new_family_runs_where_nothing_was_installed(family, cache) -> None:
    with dev(family, "-m", "pytest", family.folder, "-k", "f32 or are_there") as lines:
        assert "4 passed, 4 skipped" in until(lines, " in ")
        until(lines, f"{family.key()}: built")
