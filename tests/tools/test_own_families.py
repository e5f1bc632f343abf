"""Tools on a family of the folder's kernel_specs, which no pack holds, and on none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codegen import scaffold
from tests import warm_python
from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
KEY = "mine.cpu.f32-h1024-n8192"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The family `mine`, for rows of 1,024 or 4,096, whose reference has no default for alpha."""
    folder = tmp_path_factory.mktemp("project")
    scaffold.create("mine", folder / "kernel_specs")
    spec = folder / "kernel_specs/mine"
    (spec / "sm80.yaml").unlink()
    for name, old, new in (
        ("family.yaml", "reference:", "  hidden: {type: int, token: h}\nrequires:\n"
         "  - {that: N == hidden, because: the width is compiled in}\nreference:"),
        ("family.yaml", "front: mine", "front: {name: mine, takes: {hidden: N}}"),
        ("cpu.yaml", "[bf16, fp16, f32]", "[f32], hidden: [1024, 4096]"),
    ):  # fmt: skip
        text = (spec / name).read_text()
        assert old in text
        (spec / name).write_text(text.replace(old, new))
    reference = (spec / "reference.py").read_text()
    assert "alpha: float = 1.0" in reference
    (spec / "reference.py").write_text(reference.replace("alpha: float = 1.0", "alpha: float"))
    (folder / "empty").mkdir()
    return folder


def run(folder, *arguments):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return warm_python.run_module("kernelmint", *arguments, folder=folder, environment=environment)


WRONG = [
    ("compare nosuch", "'nosuch' is neither a family"),
    ("compare mine", "mine has no command `compare`"),
    ("compare empty", "no families here"),
    ("bench empty", "no families here"),
    ("debug nosuch.cpu.f32 2", "'nosuch.cpu.f32' is not a valid key"),
    (f"debug {KEY} 2", "mine has no command `debug`"),
    ("bench mine --case M=64,N=77", "the kernels are compiled for N=1024, N=4096"),
    ("sanity-check --kernel nosuch.cpu.f32", "no family 'nosuch'"),
    ("race-check --kernel nosuch.sm80.f32", "no family 'nosuch'"),
]


@pytest.mark.parametrize(("command", "message"), slow_after(4, WRONG))
def test_what_is_wrong_is_a_usage_error(folder, command, message) -> None:
    done = run(folder, *command.split())
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_kernel_of_a_key_is_built_and_checked(folder) -> None:
    """The reference gets the spec's default of alpha."""
    done = run(folder, "sanity-check", "--kernel", KEY)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 right" in done.stdout


def test_race_check_knows_its_keys(folder) -> None:
    done = run(folder, "race-check", "--kernel", KEY)
    assert "no CUDA kernel can run here" in done.stderr


def test_bench_lists_kernels_under_their_own_sizes_alone(folder) -> None:
    done = run(folder, "bench", "mine", "--seconds", "0.01", "--case", "M=64,N=1024")
    assert done.returncode == 0, done.stderr
    assert "h1024" in done.stdout
    assert "h4096" not in done.stdout


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """A project whose group `pair` has the families `left` and `right`, of one kernel each."""
    folder = tmp_path_factory.mktemp("grouped")
    for name in ("left", "right"):
        scaffold.create(name, folder / "kernel_specs/pair")
        spec = folder / "kernel_specs/pair" / name
        (spec / "sm80.yaml").unlink()
        text = (spec / "cpu.yaml").read_text()
        (spec / "cpu.yaml").write_text(text.replace("[bf16, fp16, f32]", "[f32]"))
    return folder


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sanity-check kernel_specs/pair", "1 of 1 right"),
        pytest.param("verify kernel_specs/pair --dry-run", "", marks=pytest.mark.slow),
        ("bench kernel_specs/pair --seconds 0.001 --case M=4,N=64", "±"),
    ],
)
def test_a_groups_folder_stands_for_its_families(group, command, said) -> None:
    done = run(group, *command.split())
    assert done.returncode == 0, done.stderr
    assert "left.cpu.f32-n8192" in done.stdout
    assert "right.cpu.f32-n8192" in done.stdout
    assert said in done.stdout


def test_a_command_of_one_family_refuses_a_groups_folder(group) -> None:
    done = run(group, "compare", "kernel_specs/pair")
    assert done.returncode == 2, done.stderr
    assert "expected the folder of one family, got that of left, right" in done.stderr
