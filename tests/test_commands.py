"""The commands and examples of README and the docs: each names what there is, and those that need
neither a GPU nor minutes run as printed, in their order."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from codegen import options
from kernelmint.__main__ import main
from tests.pages import PAGES, ROOT, steps
from tools.families import command as family_command
from tools.families import offering

COMMANDS = [
    pytest.param(step, id=f"{page.name}: {step.partition('#')[0].strip()}")
    for page in PAGES
    for step in steps(page)
    if "<<" not in step
]
BIN = Path(sys.executable).parent


def simple(command: str) -> list[list[str]]:
    """The words of each program's call in a command, without what is set for it."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&|")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", "|"):
            calls.append([])
        elif calls[-1] or not re.match(r"[A-Z_]+=", word):
            calls[-1].append(word)
    return calls


def options_of(name: str, arguments: list[str]) -> None:
    """Raises click.UsageError if a command of kernelmint knows no such option."""
    context = click.Context(main)
    command = main.get_command(context, name)
    assert command is not None, name
    if families := offering(name):  # handed over to a family's own command
        named = [family for family in families if arguments[:1] and arguments[0] == family]
        of_key = [family for family in families if arguments[:1] and f"{family}." in arguments[0]]
        command = family_command((named or of_key or families)[0], name)
        arguments = arguments[len(named) :]
    command.make_parser(click.Context(command)).parse_args(list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_what_there_is(command: str) -> None:
    """Its subcommand and options, its target of make, its module, its tests."""
    for program, *arguments in simple(command):
        if program == "kernelmint" and arguments:
            options_of(arguments[0], arguments[1:])
        elif program == "ptx-report":
            options_of("ptx-report", arguments)
        elif program == "make":
            listed = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(listed)
        elif program == "python" and arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1])
        elif program == "pip":
            assert arguments[0] in ("install", "wheel")
        for word in arguments if "pytest" in (program, *arguments[1:2]) else ():
            made_on_the_page = re.match(r"kernel_specs/(scale_add|rms_norm)$", word)
            assert "/" not in word or made_on_the_page or (ROOT / word).exists()


# What is not run from its page, and why.
ELSEWHERE = {
    r"make |source |git clone|pre-commit": "in a clone alone; make test is running",
    r"pip ": "builds packages for minutes: tests/build",
    r"kernelmint dev": "runs until it is interrupted: tests/ondemand/test_dev.py",
    r"kernelmint sanity-check|KERNELS=": "checks all kernels: tests/tools/test_sanity_check.py",
    r"kernelmint debug KERNEL": "the next block has it with a kernel",
}


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{page}.md" for page in ("adding_a_family", "debugging", "decoding", "on_demand")),
    ],
)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    """From an empty folder, after `kernelmint new` of the family that the page is about."""
    typed = steps(ROOT / page)
    if page == "docs/adding_a_family.md":
        typed.insert(0, "kernelmint new scale_add")
    typed = [step for step in typed if not any(re.match(pattern, step) for pattern in ELSEWHERE)]
    assert typed
    excluded = "kernelmint explain"  # README's: it exits with 1
    typed = [f"! {step}" if step.startswith(excluded) else step for step in typed]
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-e", "-x", "-c", "\n".join(typed)],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
             "KERNELMINT_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


# Where nobody has begun

EMPTY = (
    "list --specs .", "regenerate", "regenerate --specs .", "check", "check --specs .",
    "explain a.cpu.b --specs .", "sources", "sources --specs .", "dev true", "dev --specs . true",
    "slim u.yaml", "slim --specs . u.yaml", "build", "build .", "sanity-check .", "verify .",
    "bench .", "compare .", "tune . --target cpu", "race-check --family .",
)  # fmt: skip


@pytest.mark.parametrize("command", EMPTY)
def test_a_folder_without_specs_names_kernelmint_new(tmp_path, monkeypatch, command) -> None:
    """With one exit status, that of bad input."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, command.split())
    assert (done.exit_code, "`kernelmint new FAMILY` starts one" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h 30m", 5400), ("3d", 259200),
        ("2w", 1209600), ("500ms", 0.5), ("7", 420), ("0", 0), ("1.5h", 5400), ("2min", 120),
        ("-5", None), ("", None), ("m", None), ("5x", None), ("1h30", None),
        ("nan", None), ("1e3", None),
    ],
)  # fmt: skip
def test_durations(command, seconds) -> None:
    duration = options.Duration("m")
    if seconds is None:
        with pytest.raises(click.BadParameter, match="expected such as 90s, 5m, 1h30m or 3d"):
            duration.convert(command, None, None)
    else:
        assert duration.convert(command, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("500M", 500e6), ("500 MB", 500e6), ("2g", 2e9), ("1.5G", 1.5e9), ("2GiB", 2**31),
        ("64Ki", 65536), ("1T", 1e12), ("7", 7), ("much", None), ("-1", None), ("2X", None),
    ],
)  # fmt: skip
def test_sizes(text, size) -> None:
    if size is None:
        with pytest.raises(click.BadParameter, match="expected such as 500M or 2G"):
            options.Size().convert(text, None, None)
    else:
        assert options.Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("90", "90"), ("90a", "90a"), ("sm_90", "90"), ("sm90a", "90a"), ("SM_90A", "90a"),
        ("compute_86", "86"), ("9.0", "90"), ("9.0a", "90a"), ("10.0f", "100f"), ("120", "120"),
        ("90-real", "90"), ("9", None), ("sm_", None), ("hopper", None), ("9.0+PTX", None),
    ],
)  # fmt: skip
def test_architectures(text, name) -> None:
    if name is None:
        with pytest.raises(click.BadParameter, match="expected such as 80, 90a or 100f"):
            options.Architecture().convert(text, None, None)
    else:
        assert options.Architecture().convert(text, None, None) == name
