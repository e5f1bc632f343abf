"""ptx-report: registers and spills of every kernel, from any log of ptxas."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from codegen import options
from codegen.core import packs
from codegen.core.home import SPECS
from codegen.core.ptxas_rows import ReportError, csv_text, read_csv
from codegen.core.words import counted
from codegen.ptxas.files import check_outputs, write_text

from ..output_file import cannot_write
from . import budgets, by, gate
from . import report as reports
from .comparison import diff
from .diff import Change, compare
from .fitting import fit
from .page import html_text
from .render import json_text, markdown_text
from .report import STANDARD_INPUT, Report, held_against
from .table import print_changes, print_table, summary
from .toolkits import toolkits
from .views import print_architectures, print_predicted, print_templates, print_totals

_PATH = click.Path(path_type=Path)
_file_option = functools.partial(click.option, type=_PATH, metavar="FILE")
_STANDARD_OUTPUT = Path("-")
OTHERS = {"diff": diff, "toolkits": toolkits}  # commands by their first word
_VIEWS = {
    "architecture": print_architectures,
    "template": print_templates,
    "total": print_totals,
    "predicted": print_predicted,
}


class _Command(click.Command):
    """The report; `diff` or `toolkits` if that is the first word. (A file of that name is
    ./diff.)"""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if other := OTHERS.get(args[0] if args else ""):
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("logs", nargs=-1, metavar="LOG...")
@click.option("--installed", is_flag=True, help="The report of all installed packs.")
@click.option(
    "--sass", "machine_code", is_flag=True,
    help="Read the machine code of objects and packs: registers that are read unwritten, or used "
    "while a product is in flight.",
)  # fmt: skip
@_file_option(
    "--csv", "csv_file", help="Write the rows, or the lines of --by, as CSV (- is standard output)."
)
@_file_option("--json", "json_file", help="Write the rows, and the lines of --by, as JSON.")
@_file_option("--html", "html_file", help="Write one self-contained page.")
@_file_option("--markdown", "markdown_file", help="Write a table for a comment.")
@_file_option("--diff", "old_file", help="Compare with an earlier CSV, worst first.")
@click.option(
    "--check",
    is_flag=True,
    help="Exit 1 on a budget or baseline exceeded, a worse --diff, or wrong machine code.",
)
@options.where("rows")
@click.option("--all", "everything", is_flag=True, help="All rows, on a terminal and with --check.")
@click.option(
    "--by",
    "view",
    type=click.Choice(list(_VIEWS)),
    help="Architectures side by side, what is out of line first; the kernels of each template, "
    "with the arguments that differ; totals of bytes by file, architecture and template; or what "
    "specs predict of kernels beside what ptxas says.",
)
@click.option(
    "--fit",
    "terms",
    multiple=True,
    metavar="TERM",
    help="Predict registers by least squares over these terms, expressions over parameters and "
    "derived values, for `predict:` of a spec.",
)
@click.option("--parameters", is_flag=True, help="The configurations' parameters as columns.")
@_file_option("--manifest", help="The manifest of the kernels (default: that of the project here).")
@_file_option("--budgets", "budget_file", help="Budgets of any kernels, by expressions (YAML).")
@click.option(
    "--baselines",
    type=_PATH,
    metavar="DIR|FILE.csv",
    multiple=True,
    help="A file of accepted figures, or folders of families with <target>.ptxas.csv (default: "
    "the project's kernel_specs).",
)
@click.option(
    "--update-baseline", "--write-baseline", "update_baseline", is_flag=True,
    help="Make these rows the baseline: what is, passes; what gets worse, does not.",
)  # fmt: skip
@click.option("--verbose", is_flag=True, help="Show what was read and what was not understood.")
def main(
    logs: tuple[str, ...],
    installed: bool,
    machine_code: bool,
    csv_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    markdown_file: Path | None,
    old_file: Path | None,
    check: bool,
    where: str | None,
    everything: bool,
    view: str | None,
    terms: tuple[str, ...],
    parameters: bool,
    manifest: Path | None,
    budget_file: Path | None,
    baselines: tuple[Path, ...],
    update_baseline: bool,
    verbose: bool,
) -> None:
    """Shows registers, spills and warnings of every kernel in LOG...: build logs, folders of
    per-object logs, gzip, `-` for standard input, compiled files (.so, .o, .a, .cubin, .fatbin,
    .ptx, .whl, folders of them), or an earlier CSV.

    `ptx-report diff BASE HEAD` compares two (ptx-report diff --help), and `ptx-report toolkits
    --nvcc 13.0 --nvcc 13.5` what several toolkits make of kernels.

    \b
    Examples:
      kernelmint ptx-report build.log --where "d_head == 128 and spilled"
      kernelmint ptx-report --installed --check
    """
    try:
        report = _read(logs, installed, machine_code, manifest)
        if verbose:
            _print_reading(report)
        if not report.rows:
            sys.exit(_nothing(report, installed))
        if where is not None:
            total, report = len(report.rows), report.where(where)
            if not report.rows:
                remark = f'--where "{where}": none of {counted(total, "row")} matches'
                click.echo(f"ptx-report: {remark}", err=True)
        changes = compare(read_csv(old_file), report.rows, report.occupancy) if old_file else None
        accepted = _Baselines(report, baselines, update_baseline)
        own_budgets = budgets.read(budget_file) if budget_file else []
        verdict = _check(report, changes, accepted, own_budgets) if check else None
        of_view = by.lines(report, view) if view and (csv_file or json_file) else []
        texts: list[tuple[Path, str]] = []  # all of them before the first is written
        if csv_file:
            columns = _parameter_columns(report, parameters)
            rows = by.csv_text(of_view) if view else csv_text(report.rows, columns)
            texts.append((csv_file, rows))
        if json_file:
            texts.append((json_file, json_text(report, changes, view, of_view)))
        if html_file:
            texts.append((html_file, html_text(report, changes, str(old_file or ""))))
        if markdown_file:
            texts.append((markdown_file, markdown_text(report, changes)))
        read = [path for path in (old_file, budget_file) if path is not None]
        check_outputs([path for path, _ in texts], [*_inputs(report), *read, *accepted.paths])
        for path, text in texts:
            if path == _STANDARD_OUTPUT:
                click.echo(text, nl=False)
            else:
                write_text(path, text)
        if update_baseline:
            for path in accepted.update():
                click.echo(f"written: {path}")
        console = Console()
        if any(path == _STANDARD_OUTPUT for path, _ in texts):
            click.echo(summary(report), err=True)
        elif changes is not None:
            print_changes(changes, console, everything)
        elif terms:
            click.echo(fit(report, terms))
        elif view is not None:
            _VIEWS[view](report, console, everything)
        elif (check or update_baseline) and not everything:
            click.echo(summary(report))
        else:
            print_table(report, console, parameters, everything)
        status = 0 if verdict is None else _print_verdict(verdict)
        sys.stdout.flush()
    except ReportError as error:
        click.echo(f"ptx-report: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        raise cannot_write(error) from None
    sys.exit(status)


def _read(
    logs: Sequence[str], installed: bool, machine_code: bool, manifest: Path | None
) -> Report:
    if installed == bool(logs):
        raise ReportError("give logs to read, or --installed (ptx-report --help)")
    report = reports.installed(machine_code) if installed else reports.read(logs, machine_code)
    return held_against(report, manifest)


def _inputs(report: Report) -> list[Path | int]:
    """Returns the files that were read; standard input as its descriptor."""
    manifests = [] if report.manifest is None else report.manifest.paths
    read = (0 if name == STANDARD_INPUT else Path(name) for name in report.files)
    return [*read, *manifests]


def _print_reading(report: Report) -> None:
    statistics = report.statistics
    for name in report.files:
        click.echo(f"read: {name}", err=True)
    click.echo(
        f"{statistics.lines:,} lines, {statistics.messages:,} messages of ptxas and nvlink, "
        f"{statistics.entries:,} entries, {statistics.unknown:,} lines not understood, "
        f"{statistics.unattached:,} warnings of functions that the log does not hold",
        err=True,
    )
    for samples, what in (
        (statistics.unknown_samples, "not understood"),
        (statistics.unattached_samples, "of no row"),
    ):
        for source, line, text in samples:
            click.echo(f"{source}:{line}: {what}: {text}", err=True)


def _nothing(report: Report, installed: bool) -> int:
    """Says that there is no kernel; returns the exit status."""
    if installed:
        click.echo("the installed packs have no CUDA kernels: there is nothing to report")
        return 0
    statistics = report.statistics
    found = (
        f"{statistics.messages} lines are ptxas's or nvlink's, {statistics.unknown} look like it"
        if statistics.messages or statistics.unknown
        else "none of them is ptxas's"
    )
    click.echo(
        f"ptx-report: no kernel in {', '.join(report.inputs)}: read {statistics.bytes:,} bytes, "
        f"{statistics.lines:,} lines, {found}. Was it compiled with -Xptxas -v?",
        err=True,
    )
    return 1


class _Baselines:
    """Accepted figures: in one file, or in the folders of the rows' families."""

    def __init__(self, report: Report, given: Sequence[Path], is_update: bool) -> None:
        self.files = [path for path in given if path.suffix == ".csv"]
        self.folders = [path for path in given if path.suffix != ".csv"]
        for folder in self.folders:
            if not folder.is_dir():
                raise ReportError(f"{folder}: no such folder of baselines")
        for file in self.files:
            if not file.exists() and not is_update:
                raise ReportError(f"{file}: no such baseline: --update-baseline writes it")
        if not given:
            of_specs = [] if report.manifest is None else report.manifest.spec_dirs
            installed = [f for pack in packs.installed()[0] for f in pack.specs.values()]
            self.folders = list(dict.fromkeys([*of_specs, SPECS, *installed]))
        self._report = report

    @property
    def paths(self) -> list[Path]:
        """Returns the files, also those that an update would write."""
        return [*self.files, *gate.baseline_paths(self._report.rows, self.folders)]

    def check(self, verdict: gate.Verdict) -> gate.Accepted:
        """Holds the rows against all of them; returns what they accept."""
        rows = self._report.rows
        of_families = gate.read_baselines(rows, self.folders)
        gate.check_baselines(rows, of_families, verdict)
        of_files = {file: read_csv(file) for file in self.files if file.exists()}
        for file, accepted in of_files.items():
            gate.hold(file, accepted, gate.kernels(rows), verdict)
        return gate.Accepted([*of_families.values(), *of_files.values()])

    def update(self) -> list[Path]:
        """Writes them; returns their paths."""
        texts = {file: gate.merged(file, gate.kernels(self._report.rows)) for file in self.files}
        for file, text in texts.items():
            write_text(file, text)
        if self.files and not self.folders:
            return self.files
        return [*self.files, *gate.write_baselines(self._report.rows, self.folders)]


def _check(
    report: Report,
    changes: Sequence[Change] | None,
    baselines: _Baselines,
    own_budgets: Sequence[budgets.Budget],
) -> gate.Verdict:
    verdict = gate.Verdict()
    gate.check_machine_code(report.rows, verdict)
    of_baselines = gate.Verdict()
    accepted = baselines.check(of_baselines)
    if report.manifest is not None:
        gate.check_budgets(report.rows, report.manifest, accepted, verdict)
        gate.check_presence(report.absent, verdict)
    budgets.check(report, own_budgets, accepted, verdict)
    accepted.say(verdict)
    verdict.add(of_baselines)
    if changes is not None:
        gate.check_changes(changes, verdict)
    if not verdict.checked and not own_budgets:
        raise ReportError(
            f"--check: none of {counted(len(report.rows), 'kernel')} is one of ours, and there is "
            "no --diff, --baselines or --budgets to hold them against, and no machine code of them "
            "was read (--sass)"
        )
    return verdict


def _print_verdict(verdict: gate.Verdict) -> int:
    for remark in verdict.remarks:
        click.echo(f"ptx-report: {remark}", err=True)
    for offence in verdict.offences:
        click.echo(f"ptx-report: {offence}", err=True)
    if verdict.offences:
        click.echo(
            f"ptx-report: check failed: {counted(len(verdict.offences), 'offence')}", err=True
        )
        return 1
    click.echo(f"check passed: {counted(len(verdict.checked), 'row')}", err=True)
    return 0


def _parameter_columns(report: Report, wanted: bool) -> list[tuple[str, list[str]]]:
    names = report.parameter_names() if wanted else []
    values = [report.parameters(row) for row in report.rows]
    return [(name, [str(known.get(name, "")) for known in values]) for name in names]


if __name__ == "__main__":
    main()
