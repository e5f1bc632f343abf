"""The command `kernelmint debug`, which hands over to the command `debug` of the kernel's
family."""

from __future__ import annotations

import sys

import click

import runtime
from codegen import completion

from ..families import command, hand_over, offering
from ..selection import select
from .twin import family_of


def _key_of(number: int) -> str:
    """Returns the key of a kernel by its number, among the kernels that KERNELS selects of the
    families that can be debugged."""
    keys, errors = [], []
    for family in offering("debug"):
        try:
            keys += [info.key for info in select(family).kernels]
        except ValueError as error:
            errors.append(str(error))
    if not keys:
        raise ValueError("; ".join(errors) or "no family can be debugged")
    if number >= len(keys):
        raise ValueError(f"KERNEL: got {number}, expected 0 to {len(keys) - 1}")
    return keys[number]


@click.command(
    context_settings={"ignore_unknown_options": True}, add_help_option=False, options_metavar=""
)
@click.argument("kernel", required=False, shell_complete=completion.keys)
@click.argument("arguments", metavar="...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def main(context: click.Context, kernel: str | None, arguments: tuple[str, ...]) -> None:
    """Says where KERNEL diverges from its simulation, by its family's own command.

    KERNEL is a key or a short form, in a set or not, or a number among the kernels that the
    variable KERNELS selects. The other options are the family's: `kernelmint debug KERNEL --help`
    lists them. Its traced twin is built if no pack holds it.

    \b
    Examples:
      kernelmint debug my_family.cpu.f32-n8192
    """
    if kernel in (None, "-h", "--help"):
        click.echo(context.get_help())
        return
    try:
        name = _key_of(int(kernel)) if kernel.isdigit() else kernel
        debug = command(family_of(name), "debug")
    except (ValueError, KeyError, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    hand_over(debug, context, [name, *arguments])


if __name__ == "__main__":
    sys.exit(main())
