"""Runs a fuzzer: `python -m tools.fuzz logs --count 100000 --seed 1`."""

from __future__ import annotations

import importlib
import pkgutil

import click

from .. import fuzz


class _Fuzzers(click.Group):
    """The modules of `tools.fuzz`; one is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        modules = (module.name for module in pkgutil.iter_modules(fuzz.__path__))
        return sorted(name for name in modules if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{fuzz.__name__}.{cmd_name}").main
        assert isinstance(command, click.Command), f"{cmd_name}.main is not a command"
        return command


@click.group(cls=_Fuzzers)
def main() -> None:
    """Fuzzers: each tries random cases until a count is reached, and exits 1 where one fails."""


if __name__ == "__main__":
    main()
