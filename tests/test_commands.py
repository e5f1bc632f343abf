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
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from codegen import options, scaffold
from kernelmint.__main__ import main
from tests.pages import PAGES, ROOT, steps
from tests.slow import slow_after
from tools.families import command as family_command
from tools.families import offering
from tools.ptx_report.__main__ import OTHERS

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
    _, command, arguments = main.resolve_command(click.Context(main), [name, *arguments])
    assert command is not None, name
    if families := offering(name):  # handed over to a family's own command
        named = [family for family in families if arguments[:1] and arguments[0] == family]
        of_key = [family for family in families if arguments[:1] and f"{family}." in arguments[0]]
        command = family_command((named or of_key or families)[0], name)
        arguments = arguments[len(named) :]
    if name == "ptx-report" and (other := OTHERS.get("".join(arguments[:1]))):
        command, arguments = other, arguments[1:]
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
            listed = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {name for name in arguments if "=" not in name} <= set(listed)
        elif program == "python" and arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1])
        elif program == "pip":
            assert arguments[0] in ("download", "install", "wheel")
        for word in arguments if "pytest" in (program, *arguments[1:2]) else ():
            made_on_the_page = re.match(r"kernel_specs/(scale_add|rms_norm)$", word)
            assert "/" not in word or made_on_the_page or (ROOT / word).exists()


# What is not run from its page, and why.
ELSEWHERE = {
    r"make |source |git clone|pre-commit": "in a clone alone; make test is running",
    r"pip ": "builds packages for minutes: tests/build",
    r"kernelmint dev": "runs until it is interrupted: tests/ondemand/test_dev.py",
    r"kernelmint sanity-check|KERNELS=": "checks all kernels: tests/tools/test_sanity_check.py",
    r"export KERNELMINT_SHARED|.* --shared": "takes keys: tests/ondemand/test_shared.py",
    r"kernelmint debug KERNEL": "the next block has it with a kernel",
}


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/decoding.md",
        *slow_after(
            0, (f"docs/{page}.md" for page in ("adding_a_family", "debugging", "on_demand"))
        ),
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
        ("90 sec", 90), ("5 minutes", 300), ("1 hour 30 mins", 5400), ("2hrs", 7200),
        ("1 week", 604800), ("2 dayss", None), ("5 fortnights", None),
        ("-5", None), ("", None), ("m", None), ("5x", None), ("1h30", None),
        ("nan", None), ("1e3", None),
    ],
)  # fmt: skip
def test_durations(command, seconds) -> None:
    duration = options.Duration("m")
    if seconds is None:
        with pytest.raises(
            click.BadParameter, match="expected a duration such as 90s, 5m, 1h30m or 3d"
        ):
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
        with pytest.raises(click.BadParameter, match="expected a size such as 500M or 2G"):
            options.Size().convert(text, None, None)
    else:
        assert options.Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("90;100", "90 100"), ("sm_90a,10.0f", "90a 100f"), ("90;", None),
        ("90", "90"), ("90a", "90a"), ("sm_90", "90"), ("sm90a", "90a"), ("SM_90A", "90a"),
        ("compute_86", "86"), ("9.0", "90"), ("9.0a", "90a"), ("10.0f", "100f"), ("120", "120"),
        ("90-real", "90"), ("9", None), ("sm_", None), ("hopper", None), ("9.0+PTX", None),
    ],
)  # fmt: skip
def test_architectures(text, name) -> None:
    if name is None:
        with pytest.raises(click.BadParameter, match="expected a name such as 80, 90a or 100f"):
            options.Architectures().convert(text, None, None)
    else:
        assert options.Architectures().convert(text, None, None) == tuple(name.split())


# What --help shows

METAVARS = {
    "--where": "EXPR", "--set": "NAME", "--size": "SIZE", "--kernel": "KEY", "--key": "KEY",
    "--target": "TARGET", "--family": "FAMILY", "--specs": "DIR", "--seconds": "TIME",
}  # fmt: skip


def commands() -> dict[str, click.Command]:
    """All commands, and those that families bring, by how they are called."""
    found = {}
    for name in main.list_commands(click.Context(main)):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):  # a command for each family
            context = click.Context(command)
            for family in command.list_commands(context):
                found[f"{name} {family}"] = command.get_command(context, family)
        else:
            for family in offering(name):
                found[f"{name} ({family})"] = family_command(family, name)
    return found


@pytest.mark.parametrize("name", commands())
def test_help_is_in_one_mood_with_examples_and_the_same_metavars(name: str) -> None:
    command = commands()[name]
    context = click.Context(command, info_name=name)
    text = command.get_help(context)
    first = (command.help or "").split()[0]
    assert first[0].isupper()
    assert first.endswith("s"), f"not a verb in the third person: {first}"
    if " " not in name:  # the families' commands are examples of these
        example = text[text.index("Examples:") :].splitlines()[1]
        program, called, *arguments = shlex.split(example, comments=True)
        assert (program, called) == ("kernelmint", name)
        options_of(called, arguments)
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not option.hidden:
            shown = option.make_metavar(context)
            for spelling in {*option.opts} & METAVARS.keys():
                assert shown == METAVARS[spelling], spelling
            if "--json" in option.opts:
                assert shown == "FILE"
            assert option.help, option.opts


def test_the_first_help_has_examples() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    assert "Examples:\n    kernelmint init my_kernels" in text
    assert "\n    kernelmint COMMAND --help" in text


# Completion in a shell


def completed(line: str) -> list[str]:
    """What a shell is offered for the last word."""
    *arguments, incomplete = line.split(" ")
    shell = ShellComplete(main, {}, "kernelmint", "_KERNELMINT_COMPLETE")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.fixture(scope="module")
def folder_of_mine(tmp_path_factory) -> Path:
    """A family of one's own that is not generated, and one that is."""
    folder = tmp_path_factory.mktemp("mine")
    for name in ("mine_one", "mine_two"):
        scaffold.create(name, folder / "kernel_specs")
    spec = folder / "kernel_specs/mine_two/cpu.yaml"
    text = spec.read_text() + "  wide:\n    - product: {dtype: [f32], segment: [16]}\n"
    spec.write_text(text.replace("sets:\n", "sets:\n  # of a size\n"))
    (folder / "kernel_specs/mine_one").rename(folder / "mine_one")
    subprocess.run(
        [sys.executable, "-m", "codegen", "regenerate"], cwd=folder, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    (folder / "mine_one").rename(folder / "kernel_specs/mine_one")
    return folder


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("list --set wi", ["wide"]),
        ("tune mine_two --set wi", ["wide"]),
        ("build mine_", ["mine_one", "mine_two"]),
        ("tune mine_", ["mine_one", "mine_two"]),
        ("sanity-check mine_o", ["mine_one"]),
        ("tune mine_one --target c", ["cpu"]),
        ("list --where seg", ["segment"]),
        ("list --where dtype==f32and(seg", ["dtype==f32and(segment"]),
        ("build --where targ", ["target"]),
        ("explain mine_two.cpu.f32", ["mine_two.cpu.f32-n8192"]),
    ],
)
def test_a_shell_completes_what_is_of_ones_own(folder_of_mine, monkeypatch, line, words) -> None:
    monkeypatch.chdir(folder_of_mine)
    assert completed(line) == words
