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
