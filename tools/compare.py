"""The command that compares implementations of a family's computation, by the family's own command
`compare`."""

from __future__ import annotations

import sys

import click

from .families import command, hand_over, named, offering


@click.command(
    context_settings={"ignore_unknown_options": True}, add_help_option=False, options_metavar=""
)
@click.argument("arguments", metavar="[FAMILY] ...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def main(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Compares implementations of FAMILY's computation; FAMILY may be left out if only one family
    can be compared.

    \b
    Examples:
      kernelmint compare my_family
      kernelmint compare my_family --help
    """
    families = offering("compare")
    if arguments and not arguments[0].startswith("-"):
        family, arguments = named(arguments[0])[0], arguments[1:]
    elif len(families) == 1:
        (family,) = families
    else:
        raise click.UsageError(f"expected a family that can be compared: {', '.join(families)}")
    hand_over(command(family, "compare"), context, arguments)


if __name__ == "__main__":
    sys.exit(main())
