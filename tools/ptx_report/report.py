"""The rows of a report with what is known about them: parameters, occupancy, a filter."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, get_type_hints

from codegen.core import packs, slices
from codegen.core.expressions import BOOL, DTYPE, FLOAT, INT, Kind
from codegen.core.home import GENERATED
from codegen.core.manifest import Kernel
from codegen.core.ptxas_rows import ReportError, Row, read_csv, read_json
from codegen.core.where import Where
from codegen.ptxas import inputs
from codegen.ptxas.events import Statistics
from codegen.ptxas.fingerprints import Manifest

from . import tables, templates
from .binary import containers, reader
from .demangle import demangle
from .diff import told_apart
from .joining import group
from .objects import with_machine_code
from .occupancy import Occupancy, highest, occupancy, reserved
from .tables import Table

STANDARD_INPUT = "standard input"  # the name among the files
_SAVED = {".csv": read_csv, ".json": read_json}  # readers of earlier reports

_TEXT = Kind("text")
_OF_TYPE = {int | None: INT, float | None: FLOAT}
COLUMN_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("spilled", "complete"), BOOL),
    **{
        name: _OF_TYPE[kind]
        for name, kind in get_type_hints(Row).items()
        if kind in _OF_TYPE and name != "line"
    },
    "spill_bytes": INT,
    "occupancy": FLOAT,
    **dict.fromkeys(("kernel_config", "symbol", "source", "arch", "kind", "function"), _TEXT),
    **dict.fromkeys(("family", "target", "template"), _TEXT),
}
# Names that the headings of tables have for some of them.
HEADINGS = {
    "regs": "used_registers",
    "registers": "used_registers",
    "spills": "spill_bytes",
    "stack": "stack_frame",
    "bar": "barriers",
    "ms": "compile_time_ms",
    "kernel": "kernel_config",
}
_COLUMNS = tuple(COLUMN_KINDS)
COLUMN_KINDS.update({heading: COLUMN_KINDS[name] for heading, name in HEADINGS.items()})


@dataclass
class Report:
    """Rows, and what was read to get them."""

    rows: list[Row]
    statistics: Statistics = field(default_factory=Statistics)
    inputs: list[str] = field(default_factory=list)  # the user's names
    files: list[str] = field(default_factory=list)  # all that was read for them
    manifest: Manifest | None = None
    absent: list[Row] = field(default_factory=list)  # kernels of the manifest without a row
    is_committed: bool = False  # baselines of a revision, of several compilers
    left_out: list[Row] = field(default_factory=list)  # rows that a filter left out

    def hold_against(self, manifest: Manifest) -> None:
        """Takes a manifest, and notes which of its kernels are missing."""
        self.manifest = manifest
        self.rows = manifest.attributed(self.rows)
        families = {row.key.partition(".")[0] for row in self.rows if row.key}
        all_objects = all(row.kind == "object" for row in self.rows)
        self.absent = [
            Row(key, arch=arch)
            for key, arch in manifest.absent(self.rows)
            if not all_objects or key.partition(".")[0] in families  # a library is one family's
        ]

    def parameters(self, row: Row) -> Mapping[str, Any]:
        """Returns the configuration of our kernel; an empty one for a foreign kernel."""
        kernel = self._known(row)
        return kernel.parameters if kernel else {}

    def derived(self, row: Row) -> Mapping[str, Any]:
        """Returns the derived values of our kernel; none for a foreign kernel."""
        kernel = self._known(row)
        return kernel.derived if kernel else {}

    def predicted(self, row: Row) -> Mapping[str, Any]:
        """Returns the predictions of our kernel; none for a foreign kernel."""
        kernel = self._known(row)
        return (kernel.predicted if kernel else None) or {}

    def _known(self, row: Row) -> Kernel | None:
        return self.manifest.kernels.get(row.key) if self.manifest and row.key else None

    def parameter_names(self) -> list[str]:
        """Names of all parameters of the rows, in the order of their specs."""
        names: dict[str, None] = {}
        for row in self.rows:
            names.update(dict.fromkeys(self.parameters(row)))
        return list(names)

    def function(self, row: Row) -> str | None:
        """Returns what tells the kernels of a configuration apart, if it has more than one: the
        name, and those of a template's arguments that differ. A filter changes no name."""
        if row.key is None:
            return None
        return told_apart(row, self._kernels.get((row.key, group(row)), []))

    @cached_property
    def _kernels(self) -> dict[Hashable, list[Row]]:
        found: dict[Hashable, list[Row]] = {}
        for row in (*self.rows, *self.left_out):
            found.setdefault((row.key, group(row)), []).append(row)
        return found

    def occupancy(self, row: Row) -> Occupancy | None:
        """Returns the occupancy by ptxas's figures and a block's threads and shared memory: the
        spec's derived values `threads` and `smem_bytes`, or its `launch`. None if one of them is
        unknown, and for the other kernels of a configuration, which its header launches."""
        kernel = self._known(row)
        if kernel is None or row.used_registers is None or row.kind not in ("kernel", "object"):
            return None
        if not self._is_main(row):
            return None
        if row.kind == "object" and row.barriers is None:  # a log says them if there are any
            return None
        threads = kernel.derived.get("threads", kernel.threads)
        if not isinstance(threads, int) or not threads:
            return None
        shared = static(row) + int(kernel.derived.get("smem_bytes", kernel.shared_memory))
        return occupancy(row.arch, row.used_registers, threads, shared, row.barriers or 0)

    def _is_main(self, row: Row) -> bool:
        """Returns whether a spec's block is a kernel's: of a configuration's only kernel, else of
        the one that is named after its target, such as `flash_forward_sm90a`."""
        names = {other.kernel for other in self._kernels.get((row.key, group(row)), [])}
        if len(names) > 1:
            ending = f"_{row.kernel_config.split('.')[1]}"
            names = {name for name in names if name.endswith(ending)}
        return names == {row.kernel}

    def highest_occupancy(self, row: Row) -> Occupancy | None:
        """Returns the most that a kernel's occupancy can be, if a block's threads are unknown."""
        if row.used_registers is None or row.kind not in ("kernel", "object"):
            return None
        if self.occupancy(row) is not None:
            return None
        return highest(row.arch, row.used_registers, static(row), row.barriers or 0)

    def where(self, text: str) -> Report:
        """Returns the rows for which an expression holds, over parameters, derived values, columns.

        A row that lacks a value which the expression needs does not match. Raises ReportError.
        """
        parameters: dict[str, Kind] = {}
        for row in self.rows:
            for known in (self.parameters(row), self.derived(row)):
                parameters.update({name: kind_of(value) for name, value in known.items()})
        where = Where(
            text,
            {None: {**COLUMN_KINDS, **parameters}},
            lambda what: ReportError(f'--where "{text}"{what}'),
        )

        def holds(row: Row) -> bool:
            return where.matches(None, row.kernel_config, self.values(row))

        rows: list[Row] = []
        left_out = [*self.left_out]
        for row in self.rows:
            (rows if holds(row) else left_out).append(row)
        absent = [row for row in self.absent if holds(row)]
        return replace(self, rows=rows, left_out=left_out, absent=absent)

    def values(self, row: Row) -> dict[str, Any]:
        """Returns what `where` knows of a row, by name."""
        values = self.columns(row)
        values.update((heading, values[n]) for heading, n in HEADINGS.items() if n in values)
        values.update(self.derived(row))
        values.update(self.parameters(row))
        return values

    def columns(self, row: Row) -> dict[str, Any]:
        """Returns the same without a column's other names, and without its configuration's
        parameters and derived values."""
        values: dict[str, Any] = {
            name: value for name in _COLUMNS if (value := getattr(row, name, None)) is not None
        }
        values["complete"] = row.incomplete is None
        if function := self.function(row):
            values["function"] = function
        if known := self.occupancy(row):
            values["occupancy"] = known.fraction
        if row.key:
            values["family"], values["target"], _ = row.key.split(".", 2)
        else:
            values["template"] = templates.template(row.kernel_config)
        return values


def static(row: Row) -> int:
    """Returns the bytes of shared memory that a kernel declares."""
    return max((row.smem or 0) - (reserved(row.arch) if row.kind == "object" else 0), 0)


def project_manifest() -> Path | None:
    """Returns the manifest of the project around the working directory."""
    folder = Path.cwd()
    files = (place / "generated/manifest.json" for place in (folder, *folder.parents))
    return next((file for file in files if file.exists()), None)


def held_against(report: Report, manifest: Path | None) -> Report:
    """Returns the report with the manifest that a user named, else its own, else that of the
    project around the working directory, else this checkout's."""
    if manifest is None and report.manifest is None:
        checkout = GENERATED / "manifest.json"
        manifest = project_manifest() or (checkout if checkout.exists() else None)
    if manifest is not None:
        report.hold_against(Manifest(manifest))
    return report


def kind_of(value: object) -> Kind:
    """Returns the kind that a parameter's or derived value's value has in expressions."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT
    if isinstance(value, float):
        return FLOAT
    return Kind("text", (*(DTYPE.values or ()), str(value)))


def read(paths: Sequence[str], machine_code: bool = False) -> Report:
    """Reads logs, gzip, binaries, folders of either, CSV reports, and `-` for standard input.

    Rows come in the order of the logs; foreign kernels get their demangled names. Raises
    ReportError.

    Args:
        paths: what the user named.
        machine_code: whether the machine code of objects is read.
    """
    report = Report([])
    read: list[Sequence[Row]] = []
    for name in paths:
        report.inputs.append(STANDARD_INPUT if name == "-" else name)
        rows = _read_one(name, report.statistics, report.files, machine_code)
        if machine_code and all(row.unwritten is None for row in rows):
            raise ReportError(
                f"--sass: no machine code in {report.inputs[-1]}: logs and PTX hold none: give a "
                ".o, .so or .cubin, or --installed"
            )
        read.append(rows)
    report.rows = named(_told_apart(paths, read))
    return report


def _told_apart(inputs: Sequence[str], read: Sequence[Sequence[Row]]) -> list[Row]:
    """Returns the rows of all inputs. Binaries of several inputs that have one name get the
    shortest ends of their paths that differ."""
    of_name: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)  # paths' parts, by input
    for text, rows in zip(inputs, read, strict=True):
        if Path(text).suffix not in _SAVED:
            for name in {row.source or "" for row in rows if row.kind in ("object", "ptx")}:
                of_name[name][text] = _parts(Path(text), name)
    names: dict[tuple[str, str | None], str] = {}
    for name, of_inputs in of_name.items():
        paths = {*of_inputs.values()}
        if len(paths) > 1:
            sizes = (n for n in count(1) if len({path[-n:] for path in paths}) == len(paths))
            size = next(sizes)
            names |= {(text, name): str(Path(*path[-size:])) for text, path in of_inputs.items()}
    return [
        row._replace(source=end) if (end := names.get((text, row.source))) else row
        for text, rows in zip(inputs, read, strict=True)
        for row in rows
    ]


def _parts(path: Path, name: str) -> tuple[str, ...]:
    """Returns the parts of a binary's path. Its name is relative to the folder or the wheel that
    was read; else it is the file that was read, or a member of that archive."""
    is_within = path.is_dir() or not name.startswith(path.name)
    return Path(os.path.abspath(path if is_within else path.parent), name).parts


def named(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows, the foreign ones with their demangled names."""
    names = demangle(row.symbol for row in rows if row.key is None and row.name is None)
    return [
        row._replace(name=names[row.symbol]) if row.key is None and row.name is None else row
        for row in rows
    ]


def _read_one(
    name: str, statistics: Statistics, files: list[str], machine_code: bool
) -> Sequence[Row]:
    if name == "-":
        files.append(STANDARD_INPUT)
        return list(inputs.read_standard_input(statistics))
    path = Path(name)
    logs: list[Path] = []
    if path.is_dir():
        logs = inputs.log_files(path)
        if rows := _read_logs(logs, path, statistics, files):
            return rows
    elif not path.exists():
        raise ReportError(f"{path}: no such file or folder")
    elif read_saved := _SAVED.get(path.suffix):
        files.append(name)
        return read_saved(path)
    elif not containers.is_binary(path):
        return _read_logs([path], None, statistics, files)
    files.append(name)
    if not (rows := reader.read(path)) and not logs:
        raise ReportError(
            f"{path}: no log in it: looked for *{inputs.OBJECT_LOG}, *.log and *.txt, and for "
            "CUDA's code in *.so, *.o, *.a, *.cubin, *.fatbin and *.ptx"
            if path.is_dir()
            else f"{path}: no kernel in it: neither a cubin nor PTX"
        )
    rows = _completed(rows, path, files)
    return with_machine_code(rows, [path]) if machine_code else rows


def _completed(rows: Sequence[Row], path: Path, files: list[str]) -> list[Row]:
    """Returns the rows of a binary, or of those in a folder, with what the tables of the packs that
    hold them say."""
    of_source = {
        source: tables.of_library(path / (source or "") if path.is_dir() else path)
        for source in dict.fromkeys(row.source for row in rows)
    }
    read = {table: Table(table) for table in dict.fromkeys(of_source.values()) if table is not None}
    files += map(str, read)
    return [
        row if (table := of_source[row.source]) is None else read[table].completed(row)
        for row in rows
    ]


def _read_logs(
    logs: Sequence[Path], folder: Path | None, statistics: Statistics, files: list[str]
) -> list[Row]:
    """Reads logs of one folder, each with what its build wrote beside it."""
    rows: list[Row] = []
    read: dict[Path, Table] = {}
    for log in logs:
        files.append(str(log))
        path = tables.of_log(log)
        if path is None:
            rows += inputs.read_log(log, inputs.source_name(log, folder), statistics)
            continue
        if path not in read:
            read[path] = Table(path)
            files.append(str(path))
        table, source = read[path], inputs.source_name(log.absolute(), tables.logs_of(path))
        if not table.is_left_over(log, source):
            rows += map(table.completed, inputs.read_log(log, source, statistics))
    return rows


def installed(machine_code: bool = False) -> Report:
    """Reads the tables of all installed packs and their slices, with their manifests. Raises
    ReportError.

    The packs are found without importing the runtime (and torch).

    Args:
        machine_code: whether the machine code of their libraries is read.
    """
    found, faults = packs.installed()
    if faults:
        raise ReportError("\n".join(fault.reason for fault in faults))
    if not found:
        raise ReportError("no pack is installed: run `make build` or `pip install .`")
    report = Report([], manifest=Manifest(*(pack.manifest for pack in found)))
    for pack in found:
        parts = [pack, *slices.installed(pack)[0]]
        own = [row for part in parts for row in _of_pack(part, machine_code)]
        architectures = [name for part in parts for name in part.architectures]
        missing = Manifest(pack.manifest).absent(own, architectures)
        report.rows += own
        report.absent += [Row(key, arch=arch) for key, arch in missing]
        report.inputs += map(str, parts)
        report.files += [str(part.ptxas) for part in parts]
    return report


def _of_pack(pack: packs.Pack, machine_code: bool) -> Sequence[Row]:
    """Returns the rows of a pack's or a slice's table. Raises ReportError."""
    if not pack.ptxas.is_file():
        raise ReportError(f"{pack.ptxas}: missing: reinstall {pack}")
    rows = named(read_csv(pack.ptxas))
    return _disassembled(rows, pack) if machine_code else rows


def _disassembled(rows: Sequence[Row], pack: packs.Pack) -> list[Row]:
    """Returns a pack's rows, with what its libraries' machine code shows."""
    families = sorted({row.key.partition(".")[0] for row in rows if row.key})
    return with_machine_code(rows, [pack.library(family) for family in families])
