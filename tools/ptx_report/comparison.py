"""`ptx-report diff BASE HEAD`: two builds side by side, for a terminal, a comment and a gate."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import click
from rich.console import Console

from codegen import options
from codegen.core.ptxas_rows import ReportError
from codegen.core.words import counted
from codegen.ptxas.files import check_outputs, write_text

from ..output_file import cannot_write
from . import conditions
from .annotations import Places, findings, github_lines, sarif_text
from .diff import compare, counts
from .operands import INSTALLED, narrowed, read
from .page import html_text
from .render import change_data, markdown_changes
from .report import Report, held_against
from .table import print_changes

_file_option = functools.partial(click.option, type=click.Path(path_type=Path), metavar="FILE")
_STANDARD_OUTPUT = Path("-")


@click.command("diff", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base")
@click.argument("head", default=INSTALLED)
@_file_option("--markdown", "markdown_file", help="Write a comment (- is standard output).")
@_file_option("--json", "json_file", help="Write every kernel's change as JSON.")
@_file_option("--html", "html_file", help="Write one self-contained page of both.")
@_file_option("--sarif", "sarif_file", help="Write what got worse as SARIF 2.1.0.")
@click.option("--github", is_flag=True, help="Print what got worse as GitHub's annotations.")
@click.option(
    "--fail-on", "fail_on", metavar="CONDITIONS",
    help="Exit 1 if a kernel exceeds one: spills,registers+8,size+5%,C75.",
)  # fmt: skip
@options.where("rows")
@_file_option("--manifest", help="The manifest of the kernels (default: that of the project here).")
@click.option("--all", "everything", is_flag=True, help="All rows, also on a terminal.")
def diff(
    base: str,
    head: str,
    markdown_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    sarif_file: Path | None,
    github: bool,
    fail_on: str | None,
    where: str | None,
    manifest: Path | None,
    everything: bool,
) -> None:
    """Shows what got worse or better from BASE to HEAD, worst first, and why.

    Each is a log, a build's folder, an object or library, a CSV or JSON of ptx-report, `installed`
    (the packs, also if HEAD is left out), or a revision of git, whose committed baselines count:
    REV, or REV:PATH for one file.

    \b
    Examples:
      ptx-report diff main.csv build/ --markdown comment.md --fail-on spills,registers+8
      ptx-report diff origin/main --github --fail-on worse
    """
    try:
        failing = [] if fail_on is None else conditions.parse(fail_on)
        old, new = _read(base, manifest), _read(head, manifest)
        if not new.rows and head != INSTALLED:  # a project may have no CUDA kernel yet
            raise ReportError(f"{head}: no kernel in it")
        if not old.rows:
            click.echo(f"ptx-report: {base}: no kernel in it: all of {head} are added", err=True)
        is_first = old.is_committed and not old.rows  # no baseline yet: nothing to hold HEAD to
        if where is not None:
            old, new = old.where(where), new.where(where)
        changes = compare(narrowed(old, new), new.rows, new.occupancy)
        failures = conditions.failures(changes, failing)
        for remark in conditions.unknown(changes, [] if is_first else failing):
            click.echo(f"ptx-report: {remark}", err=True)
        found, places = findings(changes, failures), Places(new.manifest)
        texts: list[tuple[Path, str]] = []
        if markdown_file:
            texts.append((markdown_file, markdown_changes(changes)))
        if json_file:
            data = {
                "base": base,
                "head": head,
                "failures": [str(failure) for failure in failures],
                "changes": [change_data(change) for change in changes],
            }
            texts.append((json_file, json.dumps(data, indent=1) + "\n"))
        if html_file:
            texts.append((html_file, html_text(new, changes, base)))
        if sarif_file:
            texts.append((sarif_file, sarif_text(found, places)))
        check_outputs([path for path, _ in texts], [Path(n) for r in (old, new) for n in r.files])
        for path, text in texts:
            if path == _STANDARD_OUTPUT:
                click.echo(text, nl=False)
            else:
                write_text(path, text)
        if github:
            click.echo("".join(f"{line}\n" for line in github_lines(found, places)), nl=False)
        if any(path == _STANDARD_OUTPUT for path, _ in texts):
            click.echo(counts(changes), err=True)
        else:
            print_changes(changes, Console(), everything)
        sys.stdout.flush()
    except ReportError as error:
        click.echo(f"ptx-report: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        raise cannot_write(error) from None
    for failure in failures:
        click.echo(f"ptx-report: {failure}", err=True)
    if failures:
        click.echo(f"ptx-report: diff failed: {counted(len(failures), 'offence')}", err=True)
        sys.exit(1)


def _read(name: str, manifest: Path | None) -> Report:
    return held_against(read(name), manifest)
