"""A comparison of two wheels: machine code of GPUs by kernel, then of the host, then files."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from codegen.build.dist_info import BILL
from codegen.core import architectures, machine_code
from codegen.core.packs import PACK_JSON
from codegen.core.ptxas_rows import ReportError, Row

from ..ptx_report.binary import reader
from ..ptx_report.diff import ALL_LABELS, figure
from ..ptx_report.joining import pairs
from . import reasons
from .functions import Difference, Functions, Image
from .reasons import DEVICE, HOST, Reason
from .wheel import Wheel

# Files that record a build; what they say is compared as reasons.
_RECORDS = (PACK_JSON, "ptxas.csv", "RECORD", "WHEEL", Path(BILL).name)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a GPU that differs.

    Attributes:
        name: its key, or its name.
        arch: "sm_90a".
        difference: "registers 40 -> 42, code bytes 640 -> 768".
    """

    name: str
    arch: str
    difference: str


@dataclass(frozen=True)
class Library:
    """A library whose code for the host differs.

    Attributes:
        name: its file in the wheel.
        sections: those that differ: ".text".
        target: the CPU target that it holds, as "family.cpu"; None without one.
        functions: the number of functions in either library.
        differing_functions: those that differ; none where only data or other code does.
        compilers: those that the wheel's library names, and the other's, if they differ.
    """

    name: str
    sections: tuple[str, ...]
    target: str | None
    functions: int
    differing_functions: tuple[Difference, ...]
    compilers: tuple[tuple[str, ...], tuple[str, ...]] | None


@dataclass(frozen=True)
class Comparison:
    """The differences between a wheel and another.

    Attributes:
        is_identical: whether their files have the same bytes.
        kernels: the number of kernels of GPUs that were compared, one for each architecture.
        differing_kernels: those that differ.
        libraries: the number of libraries that were compared.
        differing_libraries: those whose code for the host differs.
        files: how the other files differ, by name, without records of the build.
        records: the records that differ, and the libraries with other bytes but the same code.
        reasons: the differences between their builds.
    """

    is_identical: bool
    kernels: int
    differing_kernels: tuple[Kernel, ...]
    libraries: int
    differing_libraries: tuple[Library, ...]
    files: dict[str, str]
    records: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def is_same(self) -> bool:
        """Returns whether they hold the same code and files, records of the build aside."""
        return not (self.differing_kernels or self.differing_libraries or self.files)

    def why(self, code: str) -> list[Reason]:
        """Returns the reasons that may change the code of DEVICE or HOST."""
        return [reason for reason in self.reasons if code in reason.decides]

    @cached_property
    def unexplained(self) -> list[str]:
        """Returns the kinds of code that differ without a reason."""
        differing = {DEVICE: self.differing_kernels, HOST: self.differing_libraries}
        return [code for code, parts in differing.items() if parts and not self.why(code)]


def compare(wheel: Wheel, other: Wheel, build: Path | None = None) -> Comparison:
    """Compares a wheel with another. Raises ReportError.

    Args:
        wheel: the wheel.
        other: the other one.
        build: the folder in which `other` was built, whose libraries are not stripped of names.
    """
    if wheel.sha256 == other.sha256:
        kernels = sum(row.kind != "ptx" for row in reader.read(wheel.path))
        return Comparison(True, kernels, (), len(wheel.libraries), (), {}, (), ())
    with TemporaryDirectory() as work:
        count, differing = _device(wheel, other, Path(work))
    libraries = [name for name in wheel.libraries if name in other.names]
    of_host = tuple(_host(wheel, other, libraries, build))
    files = dict(_files(wheel, other))
    records = [name for name in files if Path(name).name in _RECORDS]
    if not (differing or of_host):
        records += [name for name in libraries if wheel.read(name) != other.read(name)]
    return Comparison(
        False,
        count,
        tuple(differing),
        len(libraries),
        of_host,
        {name: how for name, how in files.items() if name not in records},
        tuple(records),
        tuple(reasons.between(wheel, other)),
    )


def _device(wheel: Wheel, other: Wheel, work: Path) -> tuple[int, list[Kernel]]:
    """Returns the number of kernels in either wheel, and the differing ones."""
    kernels = []
    changed = set()  # keys, by architecture
    unchanged: dict[tuple[str, str], tuple[str, int]] = {}
    joined = pairs(reader.read(wheel.path), reader.read(other.path))
    for old, new in joined:
        row = old or new
        assert row is not None
        name, arch = row.kernel_config, row.arch or ""
        if difference := _difference(old, new):
            changed.add((name, arch))
            function = f" ({row.kernel})" if row.key else ""
            kernels.append(Kernel(f"{name}{function}", arch, difference))
        elif row.key and (named := architectures.of_code(arch)):
            unchanged[name, arch] = row.key, named.capability
    before, after = (_codes(w, work) for w in (wheel, other))
    for (name, arch), of in unchanged.items():
        if (name, arch) not in changed and before.get(of) != after.get(of):
            kernels.append(Kernel(name, arch, "other constants or device functions"))
    return len(joined), kernels


def _difference(old: Row | None, new: Row | None) -> str | None:
    if old is None or new is None:
        return "only in the wheel" if old else "not in the wheel"
    if old.machine_code == new.machine_code and _figures(old) == _figures(new):
        return None
    changes = [
        f"{ALL_LABELS[name]} {before} -> {after}"
        for (name, before), (_, after) in zip(_figures(old), _figures(new), strict=True)
        if before != after
    ]
    return ", ".join(changes) or "other instructions"


def _figures(row: Row) -> list[tuple[str, int | None]]:
    return [(name, figure(row, name)) for name in ALL_LABELS if hasattr(row, name)]


def _codes(wheel: Wheel, work: Path) -> dict[tuple[str, int], str]:
    """Returns the hashes of kernels' code, constants and device functions included."""
    codes: dict[tuple[str, int], str] = {}
    for name in wheel.libraries:
        path = work / "library.so"
        path.write_bytes(wheel.read(name))
        with _named(wheel, name):
            codes |= machine_code.of_cuda_kernels(path, lambda symbol: Row(symbol).key)
    return codes


@contextmanager
def _named(wheel: Wheel, library: str) -> Iterator[None]:
    """Raises ReportError for a damaged library."""
    try:
        yield
    except (ValueError, IndexError, struct.error) as error:  # ElfError is a ValueError
        raise ReportError(f"{wheel.path}: {library}: {error}") from None


def _host(
    wheel: Wheel, other: Wheel, libraries: list[str], build: Path | None
) -> Iterator[Library]:
    """Yields the libraries whose code for the host differs."""
    for name in libraries:
        parts = [_sections(w, name) for w in (wheel, other)]
        sections = [
            s for s in dict.fromkeys((*parts[0], *parts[1])) if parts[0].get(s) != parts[1].get(s)
        ]
        if sections:
            target = f"{Path(name).name.partition('.')[0]}.cpu"
            is_held = any(target in pack.targets for pack in wheel.packs.values())
            old, new = (_image(w, name) for w in (wheel, other))
            with _named(other, name):
                functions = Functions(old, new, _names(new, name, build))
                differences = tuple(functions.differences())
                compilers = old.compilers, new.compilers
            yield Library(
                name,
                tuple(sections),
                target if is_held else None,
                functions.count(),
                differences,
                compilers if compilers[0] != compilers[1] else None,
            )


def _image(wheel: Wheel, name: str) -> Image:
    with _named(wheel, name):
        return Image(wheel.read(name))


def _names(image: Image, name: str, build: Path | None) -> Mapping[int, str]:
    """Returns the names of a library's functions by address: those of the library in its build's
    folder with the same code, or else its own, which are few if it is stripped."""
    for path in build.rglob(Path(name).name) if build is not None else ():
        built = Image(path.read_bytes())
        if built.code == image.code:
            return built.names()
    return image.names()


def _sections(wheel: Wheel, name: str) -> dict[str, str]:
    """Returns the hashes of a library's sections for the host, without the names of its build."""
    parts: dict[str, list[bytes]] = {}
    with _named(wheel, name):
        for section, content in machine_code.host_sections(wheel.read(name), wheel.identities):
            parts.setdefault(section, []).append(content)
    return {of: hashlib.sha256(b"".join(contents)).hexdigest() for of, contents in parts.items()}


def _files(wheel: Wheel, other: Wheel) -> Iterator[tuple[str, str]]:
    """Yields the files that differ, libraries aside, and how."""
    names = [set(wheel.names), set(other.names)]
    for name in sorted(names[0] | names[1]):
        if name not in names[1]:
            yield name, "only in the wheel"
        elif name not in names[0]:
            yield name, "not in the wheel"
        elif name not in wheel.libraries and wheel.read(name) != other.read(name):
            yield name, "other content"
