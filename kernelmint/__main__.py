"""The command `kernelmint`, also as `python -m kernelmint`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from kernelmint import rooms


@dataclass(frozen=True)
class _Source:
    """The place of a command: a module's `main`, or the command of that name in this group."""

    module: str
    summary: str
    of_group: str | None = None
    calls: bool = False  # kernels, which takes PyTorch


def _codegen(name: str, summary: str) -> _Source:
    return _Source("codegen.__main__", summary, name)


def _tool(module: str, summary: str, calls: bool = True) -> _Source:
    return _Source(f"kernelmint.tools.{module}", summary, calls=calls)


_SECTIONS = {
    "Kernels": {
        "info": _Source(
            "runtime.__main__", "Shows the built kernels, and which can run here.", "info"
        ),
        "list": _codegen("list", "Lists configurations by key."),
        "explain": _codegen("explain", "Says whether a key is built, and why not."),
        "build": _tool("build_kernels", "Builds kernels into the cache.", calls=False),
        "cache": _Source("runtime.ondemand.__main__", "Lists and prunes the cache.", "cache"),
        "fetch": _Source("runtime.ondemand.__main__", "Fetches slices of packs.", "fetch"),
        "ptx-report": _tool(
            "ptx_report.__main__",
            "Shows registers and spills, of a log or as installed.",
            calls=False,
        ),
        "sizes": _tool("sizes", "Shows where the bytes of wheels and packs went.", calls=False),
        "build-profile": _tool(
            "build_profile.__main__",
            "Ranks headers, templates and functions by the seconds of a build.",
            calls=False,
        ),
        "demo": _tool("demo", "Calls every kernel that can run here, and checks it."),
        "hf-folder": _Source(
            "kernelmint.integrations.hf_folder", "Writes a folder that stands for FlashAttention."
        ),
    },
    "Writing kernels": {
        "init": _codegen("init", "Starts a project: a pack of your own kernels."),
        "new": _codegen("new", "Starts a family of kernels."),
        "regenerate": _codegen("regenerate", "Writes the generated tree."),
        "sources": _codegen("sources", "Fetches the archives that specs pin."),
        "check": _codegen("check", "Says whether the generated tree is up to date."),
        "dev": _tool("dev", "Runs a command again after each edit, with rebuilt kernels."),
        "slim": _tool("slim", "Makes a set of the kernels that programs used.", calls=False),
        "split": _tool("split", "Splits a wheel into a base and slices.", calls=False),
        "schema": _codegen("schema", "Prints the JSON Schema of the specs."),
    },
    "Proving and measuring": {
        "sanity-check": _tool("sanity_check", "Compares kernels with their references."),
        "verify": _tool("verify", "Checks each kernel in its own process, and keeps the results."),
        "debug": _tool("debug.__main__", "Says where a kernel diverges from its simulation."),
        "race-check": _tool("race_check", "Runs CUDA kernels under compute-sanitizer."),
        "compare": _tool("compare", "Compares a family's implementations."),
        "bench": _tool("bench.__main__", "Measures kernels beside others of the same computation."),
        "tune": _tool("tune.__main__", "Finds the fastest kernels for the devices here."),
    },
}
_COMMANDS = {name: source for section in _SECTIONS.values() for name, source in section.items()}
# `verify` of a wheel is another command: it calls no kernel.
_VERIFY_WHEEL = _tool("wheels.__main__", "Builds a wheel again, and compares.", calls=False)


class _Commands(click.Group):
    """Commands whose modules are imported when they are run, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        source = _VERIFY_WHEEL if cmd_name == "verify WHEEL" else _COMMANDS.get(cmd_name)
        if source is None:
            return None
        try:
            if source.calls:
                _ = rooms.imported("runtime").kernel  # first, since it reports missing parts
            command = rooms.imported(source.module).main
        except ImportError as error:
            raise click.ClickException(str(error)) from None
        if source.of_group is not None:
            command = command.commands[source.of_group]
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            if error.filename is not None:
                raise
            raise rooms.imported("kernelmint.tools.output_file").cannot_write(error) from None
        return result

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from codegen.core.words import did_you_mean  # --help imports no room

            hint = did_you_mean(name, _COMMANDS, list_few=False)
            ctx.fail(f"No such command {name!r}{hint}.")
        if name == "verify" and any(word.endswith(".whl") for word in args):
            return name, self.get_command(ctx, "verify WHEEL"), args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, source.summary) for name, source in section.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kernelmint")
def main() -> None:
    """Writes kernels from specs, builds, reports and measures them, and calls them by key.

    \b
    Examples:
      kernelmint init my_kernels           # a project of your own
      kernelmint info                      # the built kernels, and which can run here
      kernelmint list --where "target == 'cpu'"
      kernelmint COMMAND --help            # each with examples
    """


if __name__ == "__main__":
    main(prog_name="python -m kernelmint")
