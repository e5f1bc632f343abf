"""The command `kernelmint`: what it offers, what each part takes, and what it says without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kernelmint.__main__ import main
from tests.slow import slow_after

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = main.list_commands(click.Context(main))
WITHOUT_PYTORCH = (
    "build",
    "build-profile",
    "cache",
    "fetch",
    "info",
    "init",
    "list",
    "explain",
    "hf-folder",
    "ptx-report",
    "regenerate",
    "check",
    "new",
    "schema",
    "slim",
    "sources",
    "sizes",
    "split",
)


def test_help_lists_every_command_and_imports_none(python) -> None:
    script = (
        "import sys\n"
        "sys.argv = ['kernelmint', '--help']\n"
        "from kernelmint.__main__ import main\n"
        "try: main()\n"
        "finally: print(*{'torch', 'runtime', 'codegen', 'yaml'} & sys.modules.keys())"
    )
    done = python("-c", script)
    *shown, imported = done.stdout.splitlines()
    assert imported == ""
    for name in COMMANDS:
        assert any(line.split()[:1] == [name] for line in shown), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_under_its_name(name) -> None:
    result = CliRunner().invoke(main, [name, "--help"], prog_name="kernelmint")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: kernelmint {name} ")


def test_a_command_that_is_not_there_is_an_error_and_the_nearest_is_named() -> None:
    result = CliRunner().invoke(main, ["explian"], prog_name="kernelmint")
    assert result.exit_code == 2
    assert "No such command 'explian' (did you mean 'explain'?)." in result.output
    result = CliRunner().invoke(main, ["zzz"], prog_name="kernelmint")
    assert (result.exit_code, "No such command 'zzz'." in result.output) == (2, True)


KEY = "flash_forward.cpu.f32-d64-r64-c128"


COMPLETED = [
    ("exp", "explain"),
    ("tune hstu_bsa --target sm9", "sm90a"),
    ("explain flash_forward.cpu.f32-d64-r64", KEY),
    ("build --key flash_forward.cpu.f32-d64-r64", KEY),
    ("sanity-check --kernel flash_forward.cpu.f32-d64-r64", KEY),
    ("debug flash_forward.cpu.f32-d64-r64", KEY),
    ("tune flash_f", "flash_forward"),
]


@pytest.mark.parametrize(("words", "completed"), slow_after(2, COMPLETED))
def test_a_shell_completes_commands_keys_families_and_targets(words, completed) -> None:
    line = ["kernelmint", *words.split()]
    done = subprocess.run(
        [Path(sys.executable).parent / "kernelmint"],
        env={
            **os.environ, "_KERNELMINT_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1),
        },
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"plain,{completed}"], done.stderr


@pytest.mark.parametrize("command", [["kernelmint"], [sys.executable, "-m", "kernelmint"]])
def test_it_runs_as_a_script_and_as_a_module(command, tmp_path) -> None:
    program = str(Path(sys.executable).parent / command[0]) if len(command) == 1 else command[0]
    done = subprocess.run(
        [program, *command[1:], "list", "--specs", ROOT / "kernel_specs", "--where", "d_head==64"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "flash_forward.cpu.f32-d64-r64-c128" in done.stdout.splitlines()


def test_what_calls_no_kernel_needs_no_pytorch(
    python, without_torch, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments):
        done = python("-m", "kernelmint", *arguments, libraries=[without_torch])
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", "my_kernels")
    run("new", "scale_add")
    run("regenerate")
    assert "is up to date" in run("check")
    key = run("list").splitlines()[0]
    assert f"{key} is built" in run("explain", key)
    assert "PyTorch     not installed" in run("info")
    assert json.loads(run("info", "--json"))["torch"] is None
    assert key in run("build", "scale_add", "--key", key)
    assert key in run("cache")
    log = ROOT / "tests/ptx_report/data/nvcc13.5_4arch_warnings.log"
    assert "used_registers" in run("ptx-report", log, "--csv", "/dev/stdout")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_PYTORCH])
def test_what_calls_kernels_says_that_pytorch_is_missing(python, without_torch, name) -> None:
    done = python("-m", "kernelmint", name, libraries=[without_torch])
    assert done.returncode == 1
    assert done.stderr == (
        "Error: runtime calls kernels on PyTorch tensors, and PyTorch is not installed: run "
        '`pip install "kernelmint[torch]"`\n'
    )


@pytest.mark.parametrize(("name", "command"), [("codegen", "list"), ("runtime", "info")])
def test_a_foreign_module_that_shadows_a_room_is_named(python, tmp_path, name, command) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a foreign module was run')\n")
    done = python("-m", "kernelmint", command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: `import {name}` finds {tmp_path / name}.py, not ")
