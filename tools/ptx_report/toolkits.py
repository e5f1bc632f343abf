"""`ptx-report toolkits`: kernels by several toolkits and with options of ptxas, and the table of
advice that is kept of them."""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from codegen import options
from codegen.build.toolkits import ToolkitError, find
from codegen.core import advice, verified
from codegen.core.ptxas_rows import ReportError, Row, csv_text
from codegen.core.words import counted
from codegen.ptxas.files import check_outputs, write_text

from . import advising
from .architectures import side_by_side
from .by import row_name
from .compiling import FAILED, Compiled, Unit, Variant, compiled, of_commands, of_keys, reported
from .diff import compare, counts, sums
from .report import Report, held_against, named
from .table import print_table
from .views import print_columns

_PATH = click.Path(path_type=Path)


@click.command("toolkits", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sources", nargs=-1)
@click.option(
    "--nvcc", "names", multiple=True, metavar="VERSION|PATH",
    help="A toolkit: a version such as 13.0, or nvcc, or its toolkit's folder; repeated.",
)  # fmt: skip
@click.option(
    "--wheels", type=click.Path(path_type=Path, exists=True, file_okay=False), multiple=True,
    help="A folder of PyPI's wheels, in which versions are looked for; repeated.",
)  # fmt: skip
@click.option(
    "--ptxas-option", "ptxas", multiple=True, metavar="OPTION",
    help="A column besides, with this option: --ptxas-option=-maxrregcount=64; repeated.",
)  # fmt: skip
@click.option(
    "--architecture", "architectures", multiple=True, type=options.Architectures(),
    help="What kernels and .cu files are compiled for, such as 90a; repeated.",
)  # fmt: skip
@options.where("kernels")
@options.set_name("Of which set of the specs.", default="default", show_default=True)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="These kernels; repeated.")
@click.option("--sass", "instructions", is_flag=True, help="Read the machine code.")
@click.option("--csv", "csv_file", type=_PATH, metavar="FILE", help="Write all rows as CSV.")
@click.option("--record", is_flag=True, help="Keep the result in the specs' toolkits.csv.")
@click.option(
    "--rows", "rows_file", type=_PATH, metavar="FILE.csv",
    help="Write all rows that --record would keep, for --merge on another machine.",
)  # fmt: skip
@click.option(
    "--merge", "merged", type=_PATH, multiple=True, metavar="FILE.csv",
    help="Keep the rows of such a file in the specs' toolkits.csv; without --nvcc; repeated.",
)  # fmt: skip
@click.option(
    "--matrix", type=_PATH, metavar="FILE.md",
    help="Write toolkits.csv into this page's table; without --nvcc, of all folders, as it is.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="All rows, also on a terminal.")
def toolkits(
    sources: tuple[str, ...],
    names: tuple[str, ...],
    wheels: tuple[Path, ...],
    ptxas: tuple[str, ...],
    architectures: tuple[tuple[str, ...], ...],
    where: str | None,
    set_name: str,
    keys: tuple[str, ...],
    instructions: bool,
    csv_file: Path | None,
    record: bool,
    rows_file: Path | None,
    merged: tuple[Path, ...],
    matrix: Path | None,
    everything: bool,
) -> None:
    """Compiles kernels by several toolkits, and shows what differs from the first: registers,
    spills, stack, bytes of code, seconds.

    SOURCES is a folder of specs or a family (default: kernel_specs); or .cu files and
    compile_commands.json of any project, with more of nvcc's options after `--`.

    \b
    Examples:
      ptx-report toolkits flash_decode --nvcc 13.0 --nvcc 13.5 --architecture 90
      ptx-report toolkits build/compile_commands.json --nvcc 13.0 --nvcc /opt/cuda-13.5
      ptx-report toolkits k.cu --nvcc 13.0 --ptxas-option=-maxrregcount=64 -- -std=c++20
    """
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), sources))
    more = sources[len(words) :]
    is_foreign = any(word.endswith((".cu", ".json")) for word in words)
    archs = [*itertools.chain(*architectures)]
    is_of_many = not names and not merged  # tables of several folders are in a matrix
    if not is_foreign and (more or (len(words) > 1 and not is_of_many)):
        raise click.UsageError(f"got {' '.join(sources)}: expected one folder of specs or family")
    keeps = record or rows_file is not None
    if keeps and (is_foreign or ptxas):
        raise click.UsageError("--record, --rows: for kernels of specs, without --ptxas-option")
    if not names and matrix is None and not merged:
        raise click.UsageError("name toolkits: --nvcc 13.0 --nvcc 13.5")
    if matrix is not None and names and not record:
        raise click.UsageError("--matrix: with --record, or without --nvcc")
    if names and merged:
        raise click.UsageError("--merge: without --nvcc")
    try:
        if not names:
            folders = [Path(word) for word in words or ("kernel_specs",)]
            if merged:
                _merge(folders[0], merged)
            if matrix is not None:
                advising.write_matrix(matrix, [folder / advice.NAME for folder in folders])
            return
        variants = _variants(names, wheels, ptxas)
        with tempfile.TemporaryDirectory() as work:
            units: Callable[[Variant], Sequence[Unit]]
            if is_foreign:
                read, units = _foreign(words, more, archs)
            else:
                chosen, whole = _keys(words, set_name, where, keys, archs)
                read, units = _specs(chosen), of_keys(chosen, archs, Path(work))
            check_outputs([*filter(None, (csv_file, rows_file))], read)
            results = compiled(
                variants, units, instructions or keeps, functools.partial(click.echo, err=True)
            )
        every = [row for result in results for row in result.rows]
        if not every:
            raise ReportError(
                "no kernel was compiled: no CUDA kernel of the specs suits --architecture "
                f"{' '.join(archs)}, or the files have none"
            )
        if keeps:
            rows = advising.rows_of(results, set_name, whole)
            if rows_file is not None:
                write_text(rows_file, advice.text(rows))
            if record:
                table = advising.record(rows)
                if matrix is not None:
                    advising.write_matrix(matrix, [table])
        _print(results, where if is_foreign else None, Console(), everything)
        if csv_file is not None:
            write_text(csv_file, csv_text(named(every)))
        sys.stdout.flush()
    except (ReportError, ToolkitError, advice.AdviceError, verified.VerifiedError) as error:
        click.echo(f"ptx-report: {error}", err=True)
        sys.exit(2)
    # A kernel of specs that one toolkit does not compile is a result, which --record keeps.
    sys.exit((any if is_foreign else all)(map(_fails, every)))


def _merge(specs: Path, files: Sequence[Path]) -> None:
    """Puts the rows of files into the table of a folder of specs."""
    from runtime import loading  # PyTorch's import takes seconds

    with reported():
        loading.families(str(specs))
    rows = []
    for file in files:
        of_file = advice.read(file)
        if not of_file:
            raise ReportError(f"{file}: no rows in it: `ptx-report toolkits --rows` writes them")
        rows += of_file
    advising.record(rows)


def _variants(names: Sequence[str], wheels: Sequence[Path], ptxas: Sequence[str]) -> list[Variant]:
    kits = [find(name, wheels) for name in names]
    versions = [kit.version for kit in kits]
    variants = []
    for kit in dict.fromkeys(kits):
        is_only = versions.count(kit.version) == 1
        label = kit.version if is_only else f"{kit.version} ({' '.join(kit.command)})"
        variants.append(Variant(label, kit))
        variants += [Variant(f"{label} {option}", kit, (option,)) for option in ptxas]
    return variants


def _foreign(
    files: Sequence[str], more: Sequence[str], architectures: Sequence[str]
) -> tuple[list[Path], Callable[[Variant], Sequence[Unit]]]:
    """Returns the files of other projects that are read, and their units."""
    units: list[Unit] = []
    code = [f"--generate-code=arch=compute_{a},code=[sm_{a}]" for a in architectures]
    for file in files:
        path = Path(file).absolute()
        if not path.is_file():
            raise ReportError(f"{file}: no such file")
        if path.suffix == ".cu":
            units.append(Unit(file, path, Path.cwd(), (*code, *more)))
        else:
            if code:
                raise ReportError(f"{file}: its commands name their architectures themselves")
            of_file = list(of_commands(path))
            if not of_file:
                raise ReportError(f"{file}: no command of nvcc in it")
            units += [unit._replace(options=(*unit.options, *more)) for unit in of_file]
    read = [*map(Path, files), *(unit.source for unit in units)]
    return read, lambda variant: units


def _keys(
    words: Sequence[str],
    set_name: str,
    where: str | None,
    keys: Sequence[str],
    architectures: Sequence[str],
) -> tuple[Sequence[str], set[str]]:
    """Returns the keys of CUDA kernels, and the targets of which they are the whole set."""
    from runtime import loading  # PyTorch's import takes seconds
    from runtime.ondemand import kernels as on_demand

    if not architectures:
        raise click.UsageError("name what kernels are compiled for: --architecture 90")
    if not words and not Path("kernel_specs").is_dir():
        raise click.UsageError("no folder kernel_specs here: name a folder of specs or a family")
    with reported():
        families = loading.families(words[0] if words else "kernel_specs")
        every = on_demand.keys(families, set_name, None)
        keys = keys or on_demand.keys(families, set_name, where)
    lacking = {key.rpartition(".")[0] for key in every if key not in keys}
    return keys, {key.rpartition(".")[0] for key in keys} - lacking


def _specs(keys: Iterable[str]) -> list[Path]:
    """Returns the files of the folders of kernels' specs: all but CSVs, which may be outputs of
    before, and the table of advice."""
    from runtime import ondemand

    sources = {ondemand.source_of(key.partition(".")[0]) for key in keys}
    roots = {source.root for source in sources if source is not None}
    files = [path for root in roots for path in root.rglob("*") if path.suffix != ".csv"]
    return [*files, *(root / advice.NAME for root in roots)]


def _print(
    results: Sequence[Compiled], where: str | None, console: Console, everything: bool
) -> None:
    """Prints a line for each kernel that differs, with its figures for each variant."""
    reports = [_report(result, where) for result in results]
    base, *others = reports
    if not others:
        print_table(base, console, False, everything)
        return
    labels = [result.variant.label for result in results]
    has_one = len({row.arch for report in reports for row in report.rows if row.arch}) < 2
    rows = [
        (row_name(report, row) + ("" if has_one else f" [{row.arch}]"), label, row)
        for report, label in zip(reports, labels, strict=True)
        for row in report.rows
    ]
    kernels = side_by_side(rows, (1, 1), labels)
    differing = [kernel for kernel in kernels if kernel.out_of_line]
    print_columns(differing, labels, _figures, "differs", console, everything)
    for result, report in zip(results, reports, strict=True):
        parts = [f"{result.variant.label}: {result.seconds:,.1f} s of nvcc"]
        failures = sum(map(_fails, report.rows))
        if failures:
            parts.append(f"{failures} {'does' if failures == 1 else 'do'} not compile")
        if report is not base:
            old, new = ([r for r in each.rows if not _fails(r)] for each in (base, report))
            changes = compare(old, new)
            parts += [counts(changes), *sums(changes)]
        console.print("; ".join(parts), highlight=False, soft_wrap=True, markup=False)
    click.echo(
        f"{counted(len(differing), 'row')} of {len(kernels)} differ; cells: registers, spilled "
        "bytes, stack, bytes of code, seconds of ptxas"
    )


def _figures(row: Row) -> Iterable[str]:
    figures = (row.used_registers, row.spill_bytes, row.stack_frame, row.code_bytes)
    texts = [f"{figure:,}" for figure in figures if figure is not None]
    seconds = row.compile_time_ms
    return texts if seconds is None else [*texts, f"{seconds / 1000:.2f}"]


def _report(result: Compiled, where: str | None) -> Report:
    """Returns the rows that a filter leaves, and what does not compile."""
    report = held_against(Report(named(result.rows)), None)
    if where is None:
        return report
    selected = report.where(where)
    return replace(selected, rows=[*selected.rows, *filter(_fails, selected.left_out)])


def _fails(row: Row) -> bool:
    """Returns whether a row stands for what does not compile."""
    return (row.incomplete or "").startswith(FAILED)
