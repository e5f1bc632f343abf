"""CUDA files compiled by several toolkits: kernels of specs, `.cu` files, and the compile commands
of any project."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from codegen.build import compile_logged, jobs
from codegen.build.toolkits import Toolkit
from codegen.core import machine_code
from codegen.core.architectures import of_target, spelt
from codegen.core.ptxas_rows import ReportError, Row
from codegen.core.words import one_line
from codegen.ptxas.events import Statistics
from codegen.ptxas.inputs import OBJECT_LOG, read_log

from .binary import reader
from .objects import with_machine_code

FAILED = "does not compile: "
# Options of compile commands that name outputs, with the word that follows, and without.
_OUTPUTS = frozenset(("-o", "--output-file", "-MF", "-MT", "-MQ", "--dependency-output"))
_DEPENDENCIES = frozenset(("-MD", "-MMD", "-MP", "-M", "-MM", "-c", "--compile"))


class Unit(NamedTuple):
    """A file to compile: nvcc's options and the folder that it runs in."""

    name: str  # a kernel's key; or the file, as its project names it
    source: Path
    folder: Path
    options: tuple[str, ...]
    archs: tuple[str | None, ...] = (None,)  # sm_90a; None if they are not known before


@dataclass(frozen=True)
class Variant:
    """A toolkit and options of ptxas: a column."""

    label: str
    toolkit: Toolkit
    options: tuple[str, ...] = ()

    @property
    def toolchain(self) -> str:
        """Returns the compiler as rows name it."""
        return " ".join(("nvcc", self.toolkit.version, *self.options))


@dataclass
class Compiled:
    """Rows that a variant made of the units, in the units' order; a unit that does not compile is
    an incomplete row."""

    variant: Variant
    units: dict[str, list[Row]] = field(default_factory=dict)
    codes: dict[tuple[str, str], str] = field(default_factory=dict)  # hashes by key, architecture
    seconds: float = 0.0  # compilers' time

    @property
    def rows(self) -> list[Row]:
        """Returns all rows."""
        return [row for rows in self.units.values() for row in rows]


# Rows, the hashes of kernels' code, and seconds.
_Result = tuple[list[Row], dict[tuple[str, str], str], float]


def of_commands(path: Path) -> Iterator[Unit]:
    """Yields the files that nvcc compiles by a compile_commands.json. Raises ReportError."""
    try:
        for entry in json.loads(path.read_text(encoding="utf-8")):
            words = entry.get("arguments") or shlex.split(entry["command"])
            at = next((i for i, word in enumerate(words) if Path(word).stem == "nvcc"), None)
            if at is not None:
                folder = path.parent / entry["directory"]
                source = Path(os.path.abspath(folder / entry["file"]))
                yield Unit(entry["file"], source, folder, _options(words[at + 1 :], source, folder))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path}: not a compile_commands.json ({error!r:.100})") from None


def _options(words: Sequence[str], source: Path, folder: Path) -> tuple[str, ...]:
    """Returns the options of a command without its source, its outputs and its dependencies."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _OUTPUTS:
            next(rest, None)
        elif word in ("-dc", "--device-c"):
            options.append("-rdc=true")
        elif word not in _DEPENDENCIES and os.path.abspath(folder / word) != str(source):
            options.append(word)
    return tuple(options)


@contextmanager
def reported() -> Iterator[None]:
    """Raises ReportError for the runtime's errors of specs and keys."""
    from runtime.errors import BuildError, InvalidArgument, KernelNotFound, PackError

    try:
        yield
    except (BuildError, InvalidArgument, KernelNotFound, PackError) as error:
        raise ReportError(str(error)) from None


@reported()
def of_keys(
    keys: Sequence[str], architectures: Sequence[str], work: Path
) -> Callable[[Variant], list[Unit]]:
    """Returns the units of kernels, for a variant: the commands that build them on demand; keys of
    targets that none of the architectures suits are left out. Raises ReportError."""
    from runtime import ondemand  # PyTorch's import takes seconds
    from runtime.ondemand import compilers
    from runtime.ondemand.commands import Commands
    from runtime.ondemand.emit import Generated, Spec
    from runtime.ondemand.specs import Source

    specs: dict[str, tuple[Source, Spec]] = {}
    kernels: list[tuple[str, tuple[str, ...], Source, Generated]] = []
    numbers = sorted({named.capability for name in architectures if (named := spelt(name))})
    for key in keys:
        family, name, _ = f"{key}..".split(".", 2)
        target = of_target(name)
        archs = tuple(str(target.on(n)) for n in numbers if target.suits(n)) if target else ()
        if not archs:
            continue
        if family not in specs:
            source = ondemand.source_of(family)
            assert source is not None  # loaded
            specs[family] = source, Spec(source)
        source, spec = specs[family]
        generated = spec.kernel(key)
        generated.write(work / key)
        kernels.append((key, archs, source, generated))

    @reported()
    def units(variant: Variant) -> list[Unit]:
        own = variant.toolkit.command
        return [
            Unit(key, file, work / key, _options(words, file, work / key), code)
            for key, archs, source, generated in kernels
            for code in [tuple(f"sm_{arch}" for arch in archs)]
            for unit in Commands(generated.family, source, compilers.cuda(archs, own)).units
            if unit.log is not None
            for words in [("-lineinfo", *unit.command[len(own) :])]  # faults name their lines
            for file in [work / key / words[words.index("-c") + 1]]
        ]

    return units


def compiled(
    variants: Sequence[Variant],
    units: Callable[[Variant], Sequence[Unit]],
    instructions: bool,
    progress: Callable[[str], None],
) -> list[Compiled]:
    """Compiles the units by each variant, as many at a time as the machine bears.

    Args:
        variants: the toolkits.
        units: of a variant.
        instructions: whether they are read for registers that nothing writes.
        progress: takes a line after each compilation.

    Raises:
        ReportError: an object cannot be read. A unit that does not compile is a row.
    """
    try:
        most = jobs.jobs()
    except ValueError as error:
        raise ReportError(str(error)) from None
    results = [Compiled(variant) for variant in variants]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(most) as pool:
        pending: dict[Future[_Result], tuple[Compiled, Unit]] = {}
        for result in results:
            for unit in units(result.variant):
                result.units.setdefault(unit.name, [])
                folder = Path(work, str(len(pending)))
                job = pool.submit(_compile, unit, result.variant, folder, instructions)
                pending[job] = result, unit
        try:
            for count, job in enumerate(as_completed(pending), 1):
                result, unit = pending[job]
                rows, codes, seconds = job.result()
                result.units[unit.name] += rows
                result.codes |= codes
                result.seconds += seconds
                outcome = next((row.incomplete for row in rows if row.incomplete), None)
                progress(
                    f"[{count}/{len(pending)}] {result.variant.label}  {unit.name}  "
                    f"{outcome or f'{seconds:.1f} s'}"
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _compile(unit: Unit, variant: Variant, work: Path, instructions: bool) -> _Result:
    """Returns the rows of a unit, its kernels' codes, and the seconds that nvcc took."""
    work.mkdir()
    item = work / "unit.o"
    extra = ("-Xptxas=-v", *(f"-Xptxas={option}" for option in variant.options))
    files = ("-c", str(unit.source), "-o", str(item))
    command = [*variant.toolkit.command, *unit.options, *extra, *files]
    launcher = [sys.executable, compile_logged.__file__, "--log-dir", str(work), "--target", "cuda"]
    done = subprocess.run(
        [*launcher, "--", *command], cwd=unit.folder, capture_output=True, check=False
    )
    log = work / f"{unit.source.name}.cuda{OBJECT_LOG}"
    if done.returncode and len(unit.archs) > 1:  # some of them may compile
        return _apart(unit, variant, work, instructions)
    if done.returncode:
        error = FAILED + _first_error(log.read_text(errors="replace") if log.exists() else "")
        return [Row(unit.name, arch=arch, incomplete=error) for arch in unit.archs], {}, 0.0
    seconds = json.loads(log.with_name(f"{unit.source.name}.cuda.cost.json").read_text())["seconds"]
    of_log = list(read_log(log, unit.name, Statistics()))
    if len(unit.archs) > 1 and not all(row.arch for row in of_log):  # whose are device functions?
        return _apart(unit, variant, work, instructions)
    sizes = {(row.symbol, row.arch): row for row in reader.read(item)}
    rows = []
    for row in of_log:
        other = sizes.get((row.symbol, row.arch), row)
        key = unit.name if row.key is None and unit.archs != (None,) else None
        rows.append(
            row._replace(
                arch=row.arch or unit.archs[0], toolchain=variant.toolchain,
                code_bytes=other.code_bytes, machine_code=other.machine_code, object_key=key,
            )
        )  # fmt: skip
    if instructions and rows:
        rows = with_machine_code(rows, [item])
    keys = {row.symbol: row.key for row in rows if row.kind == "kernel"}
    codes = machine_code.of_cuda_kernels(item, keys.get)
    return rows, {(key, f"sm_{number}"): code for (key, number), code in codes.items()}, seconds


def _apart(unit: Unit, variant: Variant, work: Path, instructions: bool) -> _Result:
    """Returns the result of a unit that is compiled for each of its architectures by itself."""
    rows: list[Row] = []
    codes: dict[tuple[str, str], str] = {}
    seconds = 0.0
    for arch in unit.archs:
        others = tuple(f"code=[{other}]" for other in unit.archs if other != arch)
        options = tuple(option for option in unit.options if not option.endswith(others))
        alone = unit._replace(options=options, archs=(arch,))
        result = _compile(alone, variant, work / str(arch), instructions)
        rows += result[0]
        codes |= result[1]
        seconds += result[2]
    return rows, codes, seconds


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line or "fatal" in line), None)
    return one_line(first or (lines[-1] if lines else "nvcc says nothing"))
