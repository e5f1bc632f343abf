"""Joins the build's ptxas logs with the manifest into one CSV. The standard library alone.

    python codegen/ptxas/collect.py LOGDIR --manifest generated/manifest.json --csv OUT \\
        [--units DIR] [--nvcc-version 13.0.88] [--flags="-O3 --use_fast_math"] [--include DIR]... \\
        [--without-times]

Exit status: 0; 1 if there are logs and they hold no kernel of the manifest; 2 for bad input. A
folder without any log is a build without CUDA: its CSV has no rows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run by its path: it and the modules beside it are a package nonetheless
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "codegen.ptxas"

from codegen.core.home import INCLUDE
from codegen.core.ptxas_rows import ReportError, Row, csv_text
from codegen.ptxas.events import Statistics
from codegen.ptxas.files import check_outputs, write_text
from codegen.ptxas.fingerprints import CodeFingerprint, Manifest
from codegen.ptxas.inputs import OBJECT_LOG, read_log, source_name


def write_csv(
    folder: Path,
    manifest_file: Path,
    csv: Path,
    nvcc_version: str | None = None,
    flags: str = "",
    include: Sequence[Path] = (),
    units: Path | None = None,
    without_times: bool = False,
) -> tuple[list[Row], list[str]]:
    """Writes the CSV of the logs in `folder`; the other arguments are the command's. Its rows, and
    what a user should know.

    Raises NoKernelsError if there are logs and they hold no kernel, ReportError for bad input.
    """
    manifest = Manifest(manifest_file)
    if units is not None:
        manifest.compiled_together(units)
    toolchain = f"nvcc {nvcc_version}" if nvcc_version else None
    code = CodeFingerprint(manifest, [INCLUDE, *include], flags)
    rows, remarks, statistics = collect(folder, manifest, toolchain, code)
    logs = list(folder.rglob(f"*{OBJECT_LOG}"))
    check_outputs([csv], [*logs, manifest_file])
    if logs and not rows and not statistics.messages:
        remarks.append(
            f"{folder}: no kernel of {manifest_file} in {statistics.lines} lines of logs: were "
            "they compiled with -Xptxas -v?"
        )
        raise NoKernelsError("\nptx-report: ".join(remarks))
    if without_times:
        rows = [row._replace(compile_time_ms=None) for row in rows]
    write_text(csv, csv_text(rows))
    return rows, remarks


class NoKernelsError(ReportError):
    """There are logs, and they hold no kernel of the manifest."""


def collect(
    folder: Path, manifest: Manifest, toolchain: str | None, code: CodeFingerprint
) -> tuple[list[Row], list[str], Statistics]:
    """Returns the rows of every kernel in the logs of `folder`, and what a user should know.

    Sorted by key and architecture. Logs of sources that are no longer generated are left over from
    an earlier build and are skipped.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder: give the build's folder of ptxas logs")
    rows: list[Row] = []
    remarks: list[str] = []
    statistics = Statistics()
    for path in sorted(folder.rglob(f"*{OBJECT_LOG}")):
        source = source_name(path, folder)
        if source not in manifest.files:
            remarks.append(f"{path}: skipped: {source} is not among the manifest's sources")
            continue
        for row in manifest.attributed(read_log(path, source, statistics)):
            rows.append(
                row._replace(toolchain=toolchain, code=code.of(row.key) if row.key else None)
            )
    rows.sort(key=lambda row: (row.kernel_config, row.arch or "", row.symbol))
    remarks.extend(_missing(manifest, rows))
    remarks.extend(
        f"{row.source}:{row.line}: {row.kernel_config}: incomplete: {row.incomplete}"
        for row in rows
        if row.incomplete
    )
    if statistics.unknown:
        source, line, text = statistics.unknown_samples[0]
        remarks.append(
            f"{statistics.unknown} lines look like ptxas's and were not understood; the first: "
            f"{source}:{line}: {text}"
        )
    return rows, remarks, statistics


def _spill_counts(rows: Sequence[Row]) -> str:
    """Says how many rows spill, and how many do not say whether they do."""
    spilled = sum(bool(row.spilled) for row in rows)
    unknown = sum(row.lacks_spills for row in rows)
    parts = [f"with spills: {spilled}"] if spilled or not unknown else []
    return ", ".join([*parts, *([f"spills unknown: {unknown}"] if unknown else [])])


def _missing(manifest: Manifest, rows: list[Row]) -> list[str]:
    lost = Counter((key.rpartition(".")[0], arch) for key, arch in manifest.absent(rows))
    return [
        f"{target} [{arch}]: {count} kernels of the manifest are in no log"
        for (target, arch), count in lost.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", type=Path, metavar="LOGDIR", help="the build's folder of *.ptxas.log"
    )
    parser.add_argument(
        "--manifest", type=Path, required=True, dest="manifest_file", help="generated/manifest.json"
    )
    parser.add_argument("--csv", type=Path, required=True, help="where to write the rows")
    parser.add_argument("--nvcc-version", help="version of nvcc, e.g. 13.0.88")
    parser.add_argument("--flags", default="", help="compiler flags, for the code's fingerprint")
    parser.add_argument(
        "--include", type=Path, action="append", default=[], help="a folder of foreign headers"
    )
    parser.add_argument(
        "--units", type=Path, help="the folder of files that build/units.py wrote, if it did"
    )
    parser.add_argument(
        "--without-times", action="store_true", help="leave out what the compiler took"
    )
    options = parser.parse_args(arguments)
    try:
        rows, remarks = write_csv(**vars(options))
    except ReportError as error:
        print(f"ptx-report: {error}", file=sys.stderr)
        return 1 if isinstance(error, NoKernelsError) else 2
    for remark in remarks:
        print(f"ptx-report: {remark}", file=sys.stderr)
    kernels = {row.key for row in rows if row.key}
    print(
        f"ptx-report: kernels: {len(kernels)}, rows: {len(rows)}, {_spill_counts(rows)}: "
        f"{options.csv}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
