"""Parts that families bring for the tools: references, by the names that specs give them
(`reference: reference.py:attention`), and hooks, the names of the module `tools.py` beside
family.yaml (docs/debugging.md lists them).

No other module of tools imports Python from the specs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import runtime
from codegen.core.words import did_you_mean
from runtime import manifest, packs
from runtime.ondemand.specs import find, here

HOOKS = "tools.py"


def named(text: str) -> tuple[str, str | None]:
    """Returns the name of a command line's family, and the family's folder if it is loaded from
    there.

    Raises click.UsageError if it is neither, or the spec in the folder is wrong.
    """
    folders = all_named(text)
    if len(folders) != 1:
        raise click.UsageError(
            f"{text}: expected the folder of one family, got that of {', '.join(folders)}"
        )
    return next(iter(folders.items()))


def all_named(text: str) -> dict[str, str | None]:
    """Returns the families of a command line's family, or of the folder of a family, a group or
    specs; and each one's folder if it is loaded from there.

    Raises click.UsageError if the text is neither, or a spec in the folder is wrong.
    """
    if text in (installed := packs.families()):
        return {text: None}
    folder = Path(text) if Path(text).is_dir() else here(text)
    if folder is None:
        raise click.UsageError(
            f"{text!r} is neither a family{did_you_mean(text, installed)} nor a folder"
        )
    try:
        runtime.load(folder)  # with others, which give their gradients
    except (runtime.BuildError, runtime.InvalidArgument) as error:
        raise click.UsageError(str(error)) from None
    return {source.family: str(source.folder) for source in find(folder)}


def know(key: str) -> None:
    """Loads the family of a key, if no pack holds it, from the current folder's kernel_specs.

    Raises:
        BuildError: its spec is wrong.
    """
    family, dot, _ = key.partition(".")
    if dot and family not in packs.families() and (folder := here(family)) is not None:
        runtime.load(folder)


def specs(family: str) -> Path:
    """Returns the folder of specs that a family comes from."""
    return packs.of(family).specs[manifest.family(family).spec_folder.partition("/")[0]]


def path_of(family: str, file: str) -> Path:
    """Returns the path of a file of a family's folder, which may be absent."""
    return specs(family) / manifest.family(family).spec_folder.partition("/")[2] / file


def _module(family: str, file: str) -> Any:
    path = posixpath.normpath(f"{manifest.family(family).spec_folder}/{file}")
    return packs.specs_module(packs.of(family), path.removesuffix(".py").replace("/", "."))


def oracle(family: str, function: str | None = None) -> Callable[..., Any]:
    """Returns the function that defines the results of `family`.

    Args:
        family: a family's name, as in `runtime.families()`.
        function: another function of the same file.

    Raises:
        ValueError: there is no such family, or it names no reference.
    """
    if family not in packs.families():
        raise ValueError(f"no family {family!r}; families: {', '.join(packs.families())}")
    reference = manifest.family(family).reference
    if reference is None:
        raise ValueError(f"family {family!r} names no reference in its family.yaml")
    file, _, named_function = reference.partition(":")
    return getattr(_module(family, file), function or named_function)  # type: ignore[no-any-return]  # a spec's own function


def hook(family: str, name: str, default: Any = None) -> Any:
    """Returns the hook of that name in a family's tools.py; `default` without one, or without the
    file."""
    files = (path_of(family, HOOKS), path_of(family, "tools/__init__.py"))
    if not any(file.is_file() for file in files):
        return default
    return getattr(_module(family, HOOKS), name, default)


def offering(name: str) -> list[str]:
    """Returns the families that have a hook."""
    return [family for family in packs.families() if hook(family, name) is not None]


def command(family: str, name: str) -> click.Command:
    """Returns a command that a family brings: click's, under that name in its tools.py.

    Raises:
        click.UsageError: it brings no such command; the message says how to write it.
    """
    command_ = hook(family, name)
    if command_ is None:
        others = ", ".join(offering(name)) or "no family"
        raise click.UsageError(
            f"{family} has no command `{name}`, unlike {others}: write a click command "
            f"`{name}` in {path_of(family, HOOKS)}"
        )
    assert isinstance(command_, click.Command), (
        f"{path_of(family, HOOKS)}: `{name}` is not a command"
    )
    return command_


def hand_over(command: click.Command, context: click.Context, arguments: Sequence[str]) -> Any:
    """Runs a family's command in place of the tool's own."""
    with command.make_context(context.info_name, list(arguments), parent=context.parent) as inner:
        return command.invoke(inner)
