"""Rows of the table of advice, made of what toolkits compiled; and the table in a page."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from codegen.core import advice, verified
from codegen.core.advice import Row
from codegen.core.architectures import of_code
from codegen.core.ptxas_rows import ReportError
from codegen.core.ptxas_rows import Row as Kernel
from codegen.ptxas.files import write_text

from .compiling import FAILED, Compiled

_MATRIX = re.compile(r"^\| kernels \| architecture \|.*\n(?:\|.*\n)*", re.MULTILINE)
_FOLDERS = re.compile(r"/(?:[^\s/]+/)+")  # a machine's


def rows_of(results: Sequence[Compiled], set_name: str, whole: set[str]) -> list[Row]:
    """Returns the table's rows of results: of each kernel, and of each target of which a set was
    compiled as a whole."""
    from runtime import ondemand

    rows: list[Row] = []
    code = _source_codes()
    for result in results:
        of_target: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for key in result.units:
            source = ondemand.source_of(key.partition(".")[0])
            assert source is not None
            target = key.rpartition(".")[0]
            file = source.folder / verified.name_of(target.partition(".")[2])
            for row in _of_kernel(key, result, verified.read(file)):
                of_target[target, row.arch].append(row)
                rows.append(row._replace(code=code(key) or ""))
        for (target, arch), kernels in of_target.items():
            if target in whole:
                numbers = map(sum, zip(*(row[4:-2] for row in kernels), strict=True))
                nvcc = result.variant.toolkit.version
                of_set = _of_set(code(row.kernels) for row in kernels)
                rows.append(Row._make([target, set_name, arch, nvcc, *numbers, of_set, ""]))
    return rows


def record(rows: Sequence[Row]) -> Path:
    """Puts rows into the table of their specs; returns its path. Kernels with which no toolkit has
    trouble are left out, and so are rows of sources that have changed since."""
    from runtime import ondemand

    sources = {ondemand.source_of(row.kernels.partition(".")[0]) for row in rows}
    roots = {source.root for source in sources if source is not None}
    if len(roots) != 1:
        raise ReportError(f"--record: expected one folder of specs, got {len(roots)}")
    table = roots.pop() / advice.NAME
    code = _source_codes()
    new = {row[:4] for row in rows}
    others = [row for row in advice.read(table) if row[:4] not in new]
    every = [
        row
        for row in (*others, *rows)
        if (_set_now(row, code) if row.set else code(row.kernels)) in (row.code, "")
    ]
    troubled = {
        row.kernels
        for row in every
        if row.wrong or row.spilled or row.compiled < row.kernel_count
    }  # fmt: skip
    kept = [row for row in every if row.set or row.kernels in troubled]
    write_text(table, advice.text(kept))
    click.echo(f"written: {table}")
    return table


def _source_codes() -> Callable[[str], str | None]:
    """Returns what gives the fingerprint of a kernel's source; None if its spec has no such kernel,
    "" if its family is not loaded. Specs are read once."""
    from runtime import ondemand
    from runtime.errors import KernelNotFound
    from runtime.ondemand.emit import Spec

    spec = functools.cache(Spec)

    @functools.cache
    def code(key: str) -> str | None:
        source = ondemand.source_of(key.partition(".")[0])
        if source is None:
            return ""
        try:
            return spec(source).kernel(key).fingerprint(key, source.root)
        except KernelNotFound:
            return None

    return code


def _of_set(codes: Iterable[str | None]) -> str:
    """Returns the fingerprint of the sources of a set's kernels, of their own."""
    return hashlib.sha256("\n".join(sorted(map(str, codes))).encode()).hexdigest()[:12]


def _set_now(row: Row, code: Callable[[str], str | None]) -> str:
    """Returns the fingerprint that a set has now; "" if its family is not loaded, or the row has
    none."""
    from runtime import ondemand
    from runtime.errors import InvalidArgument
    from runtime.ondemand import kernels as on_demand

    family = row.kernels.partition(".")[0]
    if not row.code or ondemand.source_of(family) is None:
        return ""
    try:
        keys = on_demand.keys([family], row.set, None)
    except InvalidArgument:  # the specs have no such set
        keys = []
    return _of_set(code(key) for key in keys if key.rpartition(".")[0] == row.kernels)


def _of_kernel(key: str, result: Compiled, known: Iterable[verified.Row]) -> Iterable[Row]:
    """Yields a kernel's rows, one for each architecture."""
    by_arch: dict[str, list[Kernel]] = defaultdict(list)
    for row in result.units[key]:
        by_arch[row.arch or ""].append(row)
    for arch, rows in by_arch.items():
        failure = next((r.incomplete for r in rows if (r.incomplete or "").startswith(FAILED)), "")
        spill_bytes = sum(row.spill_bytes or 0 for row in rows)
        bad = next((f"{row.unwritten} instructions read registers that none writes: "
                    f"{str(row.unwritten_at).partition(':')[0]}"
                    for row in rows if row.unwritten), "")  # fmt: skip
        bad = bad or next((f"{row.in_flight} instructions use registers in flight: "
                           f"{str(row.in_flight_at).partition(':')[0]}"
                           for row in rows if row.in_flight), "")  # fmt: skip
        named = of_code(arch)
        of_device = f"sm_{named.capability}" if named else arch
        code = result.codes.get((key, of_device))
        outcomes = [
            row
            for row in known
            if (row.kernel_config, row.arch, row.code) == (key, of_device, code)
        ]
        if wrong := next((row for row in outcomes if not row.is_right), None):
            bad = bad or f"verify on {wrong.device}: {wrong.outcome}"
        yield Row(
            key, "", arch, result.variant.toolkit.version, 1, int(not failure),
            int(spill_bytes > 0), spill_bytes, int(bool(bad)),
            int(bool(outcomes) and not wrong), "", _FOLDERS.sub("", failure or bad),
        )  # fmt: skip


def write_matrix(page: Path, tables: Sequence[Path]) -> None:
    """Writes tables into the page's table with this heading."""
    rows: list[Row] = []
    for table in tables:
        of_table = advice.read(table)
        if not of_table:
            raise ReportError(f"{table}: no such table: --record writes it")
        rows += of_table
    try:
        before = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{page}: cannot be read: {error.strerror or error}") from None
    after, count = _MATRIX.subn(lambda _: matrix(rows), before, count=1)
    if not count:
        raise ReportError(f"{page}: no table in it that begins `| kernels | architecture |`")
    write_text(page, after)
    click.echo(f"written: {page}")


def matrix(rows: Iterable[Row]) -> str:
    """Returns the table of advice in Markdown, a column for each nvcc, without the kernels and
    architectures with which nothing was found."""
    rows = list(rows)
    versions = sorted({row.nvcc for row in rows}, key=advice.numbers)
    cells = {(*row[:3], row.nvcc): _advice_cell(row) for row in rows}
    heading = ["kernels", "architecture", *(f"nvcc {version}" for version in versions)]
    lines = [heading, ["---"] * len(heading)]
    for kernels, set_name, arch in dict.fromkeys(row[:3] for row in rows):
        shown = f"`{kernels}`" + (f", {set_name}" if set_name else "")
        of_versions = [cells.get((kernels, set_name, arch, v), "not tried") for v in versions]
        if not {*of_versions} <= {"not tried", "nothing found", "verified"}:
            lines.append([shown, arch, *of_versions])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _advice_cell(row: Row) -> str:
    spills = f"{row.spill_bytes:,} bytes" if row.spilled else "none"
    if not row.set:
        note = row.note.replace("|", "\\|")
        parts = [f"wrong: {note}" if row.wrong else note, f"spills {spills}" * row.spilled]
        return "; ".join(filter(None, parts)) or ("verified" if row.verified else "nothing found")
    return (
        f"{row.compiled} of {row.kernel_count} compile; {row.spilled} spill"
        f"{f' {spills}' if row.spilled else ''}; {row.wrong} wrong; {row.verified} verified"
    )
