"""Sizes of what a build made, by slice, family and kind; and the budgets that hold for them.

    python codegen/build/sizes.py WHEEL

exits with 1, and a line for each offence, if the wheel is over a budget of the pyproject.toml in
the current folder:

    [tool.kernelmint.budget]
    wheel_mb = 100                      # the file of a wheel; of each part, if it will be split
    slice_mb = { sm80 = 30, sm90 = 60 } # a slice's files, unpacked; a number: each slice's
    family_mb = 20                      # libraries of a family, unpacked, all slices together
    kernel_kb = 800                     # machine code of a kernel for an architecture, as stored

1 MB is a million bytes. `kernelmint sizes --check` also holds kernel_kb, and slice_mb of what a
slice would have in a wheel without slices: it reads machine code. Standard library only.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if __name__ == "__main__":  # it is run by its path; modules of its folder are not packages
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from codegen.core.elf import ALLOC, MAGIC, NOBITS, Elf, ElfError
from codegen.core.packs import PACK_JSON

BASE = "base"  # the name for parts of no slice
DEVICE, HOST, DATA = "device code", "host code", "data"
HEADERS = "(headers of device code)"  # beside kernels
_EXECUTABLE = 4  # the flag of sections of machine code
_KINDS = {".py": "Python", ".yaml": "specs", ".h": "specs", ".cuh": "specs"}
_UNITS = {"wheel_mb": 10**6, "slice_mb": 10**6, "family_mb": 10**6, "kernel_kb": 10**3}
BUDGET = "tool.kernelmint.budget"


class SizesError(ValueError):
    """Something that cannot be measured, or a budget that cannot be read."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file, unpacked.

    Attributes:
        file: the file within its wheel or folder.
        slice: the slice's name; BASE for the others.
        family: the family whose library it is; "" for none.
        kind: DEVICE, HOST, DATA, …
        size: bytes.
        kernel: the kernel that they are the code of; "" if they are of none.
    """

    file: str
    slice: str
    family: str
    kind: str
    size: int
    kernel: str = ""


Read = Callable[[], bytes]


def files_of(place: Path) -> dict[str, tuple[int, Read]]:
    """Returns the sizes of the files of a wheel, a folder or one file, and how each is read. Raises
    SizesError."""
    if place.is_dir():
        below = sorted(path for path in place.rglob("*") if path.is_file())
        return {
            path.relative_to(place).as_posix(): (path.stat().st_size, path.read_bytes)
            for path in below
        }
    try:
        if not zipfile.is_zipfile(place):
            return {place.name: (place.stat().st_size, place.read_bytes)}
        archive = zipfile.ZipFile(place)
    except (OSError, zipfile.BadZipFile) as error:
        raise SizesError(f"{place}: {error}") from None
    return {
        info.filename: (info.file_size, _reader(archive, info.filename))
        for info in archive.infolist()
        if not info.is_dir()
    }


def _reader(archive: zipfile.ZipFile, name: str) -> Read:
    return lambda: archive.read(name)


def parts_of(place: Path) -> list[Part]:
    """Returns the parts of a wheel, a folder or one file; the device code of a library is one part.
    Raises SizesError."""
    files = files_of(place)
    slices: dict[str, str] = {}  # by folders of packs and slices
    for name, (_, read) in files.items():
        path = PurePosixPath(name)
        if path.name == PACK_JSON:
            slices[str(path.parent)] = _slice_name(place, name, read)
    parts: list[Part] = []
    for name, (size, read) in files.items():
        folder = str(PurePosixPath(name).parent)
        part_of = slices.get(folder, BASE)
        if ".so" not in PurePosixPath(name).suffixes:
            parts.append(Part(name, part_of, "", _kind(name), size))
            continue
        family = PurePosixPath(name).stem if folder in slices else ""
        content = read()
        if content[:4] != MAGIC:
            parts.append(Part(name, part_of, family, DATA, size))
            continue
        try:
            parts += [Part(name, part_of, family, *kind) for kind in _of_library(content)]
        except ElfError as error:
            raise SizesError(f"{place}: {name}: {error}") from None
    return parts


def _slice_name(place: Path, name: str, read: Read) -> str:
    try:
        described = json.loads(read())
        return str(described.get("slice_name") or BASE)
    except (ValueError, AttributeError) as error:
        raise SizesError(f"{place}: {name} is damaged: {error}") from None


def _kind(name: str) -> str:
    path = PurePosixPath(name)
    if any(part.endswith(".dist-info") for part in path.parts):
        return "metadata"
    return _KINDS.get(path.suffix, DATA)


def _of_library(content: bytes) -> Iterator[tuple[str, int]]:
    """Yields the kinds of a library's bytes, and how many. Raises ElfError."""
    sizes: dict[str, int] = defaultdict(int)
    for section in Elf(content).sections:
        if section.kind != NOBITS and section.flags & ALLOC:
            if section.name == ".nv_fatbin":
                sizes[DEVICE] += section.size
            else:
                sizes[HOST if section.flags & _EXECUTABLE else DATA] += section.size
    rest = len(content) - sum(sizes.values())
    yield from sizes.items()
    if rest > 0:
        yield "symbols and padding", rest


def totals(parts: Iterable[Part], by: str) -> list[tuple[str, int]]:
    """Returns the bytes of each slice, family, kind, file or kernel, the most first."""
    sizes: dict[str, int] = defaultdict(int)
    for part in parts:
        sizes[getattr(part, by)] += part.size
    return sorted(((n, s) for n, s in sizes.items() if n), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True)
class Budgets:
    """The limits of a pyproject.toml, in bytes: of each thing of a name, of all others by ""."""

    file: Path
    limits: Mapping[str, Mapping[str, int]]

    def over(self, name: str, sizes: Iterable[tuple[str, int]], what: str) -> Iterator[str]:
        """Yields the sizes that are over the budget of that name; `what` they are of."""
        limits = self.limits.get(name, {})
        unit = _UNITS[name]
        for own, size in sizes:
            most = limits.get(own, limits.get(""))
            if most is not None and size > most:
                suffix = "MB" if unit == 10**6 else "kB"
                yield (
                    f"{what}{own}: {size / unit:,.2f} {suffix}, the budget is {most / unit:g} "
                    f"({self.file}: {BUDGET}.{name})"
                )


def budgets_of(file: Path) -> Budgets:
    """Returns the budgets of a pyproject.toml; none if there is no such file. Raises
    SizesError."""
    try:
        project: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Budgets(file, {})
    except (OSError, ValueError) as error:
        raise SizesError(f"{file}: {error}") from None
    table = project.get("tool", {}).get("kernelmint", {}).get("budget", {})
    limits = {}
    for name, value in table.items():
        if name not in _UNITS:
            raise SizesError(f"{file}: {BUDGET}.{name}: expected one of {', '.join(_UNITS)}")
        named = value if isinstance(value, dict) else {"": value}
        for own, most in named.items():
            if isinstance(most, bool) or not isinstance(most, int | float):
                place = f"{BUDGET}.{name}.{own}".rstrip(".")
                raise SizesError(f"{file}: {place}: got {most!r:.60}, expected a number")
        limits[name] = {own: round(most * _UNITS[name]) for own, most in named.items()}
    return Budgets(file, limits)


def is_split_later(parts: Sequence[Part], place: Path) -> bool:
    """Returns whether a wheel holds both a base and its slices, to be split."""
    names = {part.slice for part in parts if part.file.endswith(PACK_JSON)}
    return place.suffix == ".whl" and BASE in names and len(names) > 1


def over_budget(place: Path, parts: Sequence[Part], budgets: Budgets) -> list[str]:
    """Returns the lines of what is over budget in a wheel, a folder or a file."""
    lines: list[str] = []
    if place.suffix == ".whl" and not is_split_later(parts, place):
        lines += budgets.over("wheel_mb", [(place.name, place.stat().st_size)], "wheel ")
    slices = [(name, size) for name, size in totals(parts, "slice") if name != BASE]
    lines += budgets.over("slice_mb", slices, f"{place.name}: slice ")
    lines += budgets.over("family_mb", totals(parts, "family"), f"{place.name}: family ")
    kernels = [(name, size) for name, size in totals(parts, "kernel") if name != HEADERS]
    lines += budgets.over("kernel_kb", kernels, f"{place.name}: kernel ")
    return lines


def main(arguments: list[str]) -> int:
    """Runs the command."""
    wheel = Path(arguments[0])
    try:
        budgets = budgets_of(Path("pyproject.toml"))
        lines = over_budget(wheel, parts_of(wheel), budgets) if budgets.limits else []
    except SizesError as error:
        lines = [str(error)]
    for line in lines:
        print(f"Kernelmint: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
