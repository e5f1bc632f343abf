"""KERNELMINT_RECORD, and the set and the tree that `kernelmint slim` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.slow import slow_after
from tests.tools import forward_alone
from tools import slim

ROOT = Path(__file__).resolve().parents[2]
TARGETS = [
    path
    for path in sorted((ROOT / "kernel_specs").glob("**/*.yaml"))
    if path.name not in ("family.yaml", "choices.yaml")
]
KEYS = ["flash_forward.cpu.f32-d64-r64-c128", "flash_forward.cpu.f32-d64-r32-c64"]
CALLS = """
import contextlib, os, runtime
for key in {keys!r}:
    os.fork() or runtime.kernel(key, build=True)  # a child, too, notes what it resolves
with contextlib.suppress(ChildProcessError):
    while True:
        os.wait()
"""


@pytest.mark.parametrize("path", TARGETS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_set_is_written_replaced_and_removed_and_all_else_stays(path) -> None:
    text = path.read_text()
    first = slim.with_set(text, "used", ["{a: 1}", "{a: 2}"])
    assert yaml.safe_load(first)["sets"]["used"] == [{"a": 1}, {"a": 2}]
    lines = first.splitlines()
    added = [line for line in lines if line not in text.splitlines()]
    assert len(added) <= 4
    second = slim.with_set(first, "used", ["{a: 3}"])
    assert yaml.safe_load(second)["sets"]["used"] == [{"a": 3}]
    between = slim.with_set(second, "later", ["{a: 4}"])
    assert yaml.safe_load(slim.with_set(between, "used", []))["sets"]["later"] == [{"a": 4}]
    if "sets" in yaml.safe_load(text):
        assert slim.with_set(second, "used", []) == text


def test_what_programs_used_becomes_a_set_and_a_tree(tmp_path, monkeypatch) -> None:
    used = tmp_path / "used.yaml"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", CALLS.format(keys=KEYS)],
            env={**os.environ, "KERNELMINT_RECORD": str(used)}, check=True,
        )  # fmt: skip
    assert sorted(slim.read_keys(used)) == sorted(KEYS)  # one of them in no set, each once
    assert used.read_text().count("\n") == 3

    forward_alone.copy(tmp_path / "kernel_specs")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(slim.main, ["used.yaml"])
    assert done.exit_code == 0, done.output
    assert "kernel_specs/attention/flash_forward/cpu.yaml: set used with 2 kernels" in done.output
    (family,) = json.loads(Path("generated-used/manifest.json").read_text())["families"]
    kernels = [k["key"] for target in family["targets"] for k in target["kernels"]]
    assert sorted(kernels) == sorted(KEYS)
    used.write_text(f"- {KEYS[0]}\n- other.cpu.x\n")
    done = CliRunner().invoke(slim.main, ["used.yaml"])
    assert "generated-used: 1 kernel" in done.output
    assert "these specs do not have other.cpu.x" in done.output


NO_LISTS = [
    ("{", "used.yaml: "),
    ("a: b", "expected a list of keys"),
    ("- other.cpu.x", "none of its keys is of these specs"),
    ("- flash_forward.cpu.f32-d64-r64-c7", "is excluded:"),
    ("- flash_forward.cpu.x", "is not a valid key"),
]


@pytest.mark.parametrize(("text", "said"), slow_after(2, NO_LISTS))
def test_what_is_no_list_of_kernels_is_an_error_in_a_sentence(tmp_path, text, said) -> None:
    (tmp_path / "used.yaml").write_text(text)
    options = ["--specs", str(ROOT / "kernel_specs"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(slim.main, [str(tmp_path / "used.yaml"), *options])
    assert done.exit_code == 1
    assert said in done.output
    assert not (tmp_path / "out").exists()


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with specs and a record of their kernels; the spec that slim changes."""
    forward_alone.copy(tmp_path / "kernel_specs")
    (tmp_path / "used.yaml").write_text(f"- {KEYS[0]}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "kernel_specs/attention/flash_forward/cpu.yaml"


@pytest.mark.parametrize("name", ["no", "My-Set", "7", "a: b", "default # x"])
def test_a_set_that_would_not_load_is_refused_and_the_spec_stays(project, name) -> None:
    before = project.read_bytes()
    done = CliRunner().invoke(slim.main, ["used.yaml", "--set", name])
    assert done.exit_code == 1
    assert "nothing is written" in done.output
    assert "kernel_specs/attention/flash_forward/cpu.yaml:" in done.output
    assert project.read_bytes() == before
    assert not Path("generated-used").exists()


FULL = """
import resource, signal
from tools import slim
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
slim.main(["used.yaml"])
"""


def test_a_full_disk_leaves_the_spec_as_it_was(project) -> None:
    before, there = project.read_bytes(), sorted(project.parent.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", FULL], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.read_bytes() == before
    assert sorted(project.parent.iterdir()) == there


def test_a_record_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch) -> None:
    from runtime import used

    monkeypatch.setenv(used.VARIABLE, str(tmp_path / "none" / "used.yaml"))
    with pytest.warns(RuntimeWarning, match="KERNELMINT_RECORD=.*: No such file"):
        used.note("a.b.c")
