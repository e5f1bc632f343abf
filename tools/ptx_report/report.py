"""The rows of a report with what is known about them: parameters, occupancy, a filter."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
        name, and those of a template's arguments that differ."""
        if row.key is None:
            return None
        return told_apart(row, self._kernels.get((row.key, group(row)), []))

    @cached_property
    def _kernels(self) -> dict[Hashable, list[Row]]:
        found: dict[Hashable, list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.key, group(row)), []).append(row)
        return found

    def occupancy(self, row: Row) -> Occupancy | None:
        """Returns the occupancy by ptxas's figures and a block's threads and shared memory: the
        spec's derived values `threads` and `smem_bytes`, or its `launch`. None if one of them is
        unknown."""
        kernel = self._known(row)
        if kernel is None or row.used_registers is None or row.kind not in ("kernel", "object"):
            return None
        if row.kind == "object" and row.barriers is None:  # a log says them if there are any
            return None
        threads = kernel.derived.get("threads", kernel.threads)
        if not isinstance(threads, int) or not threads:
            return None
        shared = static(row) + int(kernel.derived.get("smem_bytes", kernel.shared_memory))
        return occupancy(row.arch, row.used_registers, threads, shared, row.barriers or 0)

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

        rows = [row for row in self.rows if holds(row)]
        return replace(self, rows=rows, absent=[row for row in self.absent if holds(row)])

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
    if machine_code and not any(containers.is_binary(Path(name)) for name in paths):
        raise ReportError(
            "--sass: none of the inputs is an object, and logs hold no machine code: give a .o, "
            ".so or .cubin, or --installed"
        )
    report = Report([])
    for name in paths:
        report.inputs.append(STANDARD_INPUT if name == "-" else name)
        report.rows += _read_one(name, report.statistics, report.files, machine_code)
    report.rows = named(report.rows)
    return report


def named(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows, the foreign ones with their demangled names."""
    names = demangle(row.symbol for row in rows if row.key is None and row.name is None)
    return [
        row._replace(name=names[row.symbol]) if row.key is None and row.name is None else row
        for row in rows
    ]


def _read_one(
    name: str, statistics: Statistics, files: list[str], machine_code: bool
) -> Iterable[Row]:
    if name == "-":
        files.append(STANDARD_INPUT)
        return list(inputs.read_standard_input(statistics))
    path = Path(name)
    if path.is_dir():
        logs = inputs.log_files(path)
        if rows := _read_logs(logs, path, statistics, files):
            return rows
        files.append(name)
        if not (rows := reader.read(path)) and not logs:
            raise ReportError(
                f"{path}: no log in it: looked for *{inputs.OBJECT_LOG}, *.log and *.txt, and for "
                "CUDA's code in *.so, *.o, *.a, *.cubin, *.fatbin and *.ptx"
            )
        return rows
    if not path.exists():
        raise ReportError(f"{path}: no such file or folder")
    read_saved = {".csv": read_csv, ".json": read_json}.get(path.suffix)
    if read_saved is None and not containers.is_binary(path):
        return _read_logs([path], None, statistics, files)
    files.append(name)
    if read_saved is not None:
        return read_saved(path)
    if not (rows := reader.read(path)):
        raise ReportError(f"{path}: no kernel in it: neither a cubin nor PTX")
    if (table := tables.of_library(path)) is not None:
        files.append(str(table))
        rows = Table(table).completed(rows)
    return with_machine_code(rows, [path]) if machine_code else rows


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
            rows += table.completed(inputs.read_log(log, source, statistics))
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
