"""Packs: folders of compiled kernels, found without loading any of them.

A pack's folder holds

    pack.json           what it is: its name, its families, what they were built for and of
    manifest.json       what codegen generated
    ptxas.csv           what ptxas made of the CUDA kernels
    <family>.so         a library for each family
    python/<family>.py  the generated class of the family's kernels
    kernel_specs/       the specs with their headers, fronts and references; an editable install
                        names the folder where they are written instead

An installed distribution names its packs in the entry points `kernelmint.packs`: `my_pack =
"my_package._pack"` is the folder my_package/_pack beside the distribution. Nothing is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codegen.manifest import Family

GROUP = "kernelmint.packs"
RECORD = "pack.json"
MANIFEST = "manifest.json"
FORMAT = 1  # of pack.json
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class PackError(ImportError):
    """A pack cannot be used; the message names it, why, and what to do."""


@dataclass(frozen=True)
class Front:
    """What a family offers Python beyond its kernels: a function, and the module it is in."""

    family: str
    module: str  # within the pack's specs: "kernel_specs.flash_forward.front"
    function: str


@dataclass(frozen=True, eq=False)  # one object a pack: keys of caches
class Pack:
    """A pack whose pack.json was read.

    Attributes:
        name: its name, as its author chose it.
        folder: where its files are.
        distribution: what installed it, "my-kernels 0.1"; None where it was named by its folder.
        fingerprint: the hash of all that its libraries are made of; each holds it too.
        abi: the version of the ABI between libraries and runtime.
        generated: the fingerprint of each family's generated code.
        targets: what was built, as "family.target".
        architectures: what the CUDA kernels were compiled for: "80", "90a".
        isas: the instruction sets that the CPU kernels were compiled for.
        settings: compilers and flags.
        sources: the hash of each source, by its path in the project that built the pack.
        operators: the schemas of each family's operators: the one that returns the outputs and,
            where there are any, the one that writes into tensors passed by name.
        on_host: the families with inputs that are on the host, whatever the target.
        fronts: the families' public functions.
        specs: the folders of specs, by name.
    """

    name: str
    folder: Path
    distribution: str | None
    fingerprint: str
    abi: int
    generated: Mapping[str, str]
    targets: frozenset[str]
    architectures: tuple[str, ...]
    isas: tuple[str, ...]
    settings: Mapping[str, str]
    sources: Mapping[str, str]
    operators: Mapping[str, tuple[str, ...]]
    on_host: frozenset[str]
    fronts: tuple[Front, ...]
    specs: Mapping[str, Path]

    @property
    def families(self) -> tuple[str, ...]:
        """The families it holds."""
        return tuple(self.generated)

    @property
    def manifest(self) -> Path:
        """Its manifest.json."""
        return self.folder / MANIFEST

    @property
    def ptxas(self) -> Path:
        """Its ptxas.csv."""
        return self.folder / "ptxas.csv"

    def library(self, family: str) -> Path:
        """The shared library of a family."""
        return self.folder / f"{family}.so"

    def face(self, family: str) -> Path:
        """The generated Python module of a family."""
        return self.folder / "python" / f"{family}.py"

    def __str__(self) -> str:
        """For messages: ``pack my_kernels (my-kernels 0.1, /…/my_kernels/_pack)``."""
        return describe(self.name, self.folder, self.distribution)


@dataclass(frozen=True)
class Fault:
    """A pack that cannot be used, and why."""

    name: str
    folder: Path
    distribution: str | None
    families: tuple[str, ...]  # as far as known
    reason: str  # names the pack


def describe(name: str, folder: Path, distribution: str | None) -> str:
    """How messages name a pack."""
    return f"pack {name} ({f'{distribution}, ' if distribution else ''}{folder})"


def read(folder: Path, distribution: str | None = None, name: str | None = None) -> Pack:
    """The pack in a folder. Raises PackError where its pack.json is not one that a build writes.

    `name` is what messages call it before its own name is known.
    """
    path = folder / RECORD
    what = describe(name or folder.name, folder, distribution)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise PackError(
                f"{what}: its {RECORD} has format {str(data['format'])[:20]!a}, but this "
                f"Kernelmint reads format {FORMAT}: upgrade the older of the two"
            )
        if not NAME.match(data["name"]):
            raise ValueError(f"the name {data['name']!a:.60}")
        return Pack(
            name=data["name"],
            folder=folder,
            distribution=distribution,
            fingerprint=str(data["fingerprint"]),
            abi=int(data["abi"]),
            generated={str(f): str(h) for f, h in data["generated"].items()},
            targets=frozenset(map(str, data["targets"])),
            architectures=tuple(map(str, data["architectures"])),
            isas=tuple(map(str, data["isas"])),
            settings={str(k): str(v) for k, v in data["settings"].items()},
            sources={str(k): str(v) for k, v in data["sources"].items()},
            operators={str(f): tuple(map(str, texts)) for f, texts in data["operators"].items()},
            on_host=frozenset(map(str, data["on_host"])),
            fronts=tuple(Front(**front) for front in data["fronts"]),
            specs={str(k): folder / str(v) for k, v in data["specs"].items()},
        )
    except FileNotFoundError:
        raise PackError(f"{what}: there is no {path}: reinstall it") from None
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise PackError(
            f"{what}: {path} is damaged ({type(error).__name__}: {error}): reinstall it"
        ) from None


def record(
    *,
    name: str,
    families: Sequence[Family],
    fingerprint: str,
    abi: int,
    targets: Sequence[str],
    architectures: Sequence[str],
    isas: Sequence[str],
    settings: Mapping[str, str],
    sources: Mapping[str, str],
    specs: Mapping[str, str],
) -> dict[str, Any]:
    """What `read` reads, of a pack with these of a manifest's families; the rest as in Pack."""
    return {
        "format": FORMAT,
        "name": name,
        "fingerprint": fingerprint,
        "operators": {family.name: family.operators for family in families},
        "on_host": [f.name for f in families if any(tensor.on_host for tensor in f.tensors)],
        "fronts": [
            {"family": family.name, "module": front.module, "function": front.function}
            for family in families
            for front in family.fronts
        ],
        "specs": dict(specs),
        "abi": abi,
        "generated": {family.name: family.fingerprint for family in families},
        "settings": dict(settings),
        "architectures": list(architectures),
        "isas": list(isas),
        "targets": list(targets),
        "sources": dict(sources),
    }


def installed() -> tuple[list[Pack], list[Fault]]:
    """The packs of the installed distributions, and those that cannot be used: what cannot be read,
    and packs of one name or that hold one family, all of them."""
    packs: list[Pack] = []
    faults: list[Fault] = []
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda e: e.name):
        assert entry.dist is not None  # it was found in one
        folder = Path(str(entry.dist.locate_file(entry.value.replace(".", "/")))).absolute()
        about = entry.dist.metadata  # once: each access parses the file
        distribution = f"{about['Name']} {about['Version']}"
        try:
            packs.append(read(folder, distribution, entry.name))
        except PackError as error:
            faults.append(Fault(entry.name, folder, distribution, (), str(error)))
    usable = []
    for pack in packs:
        if reason := _clash(pack, packs):
            faults.append(Fault(pack.name, pack.folder, pack.distribution, pack.families, reason))
        else:
            usable.append(pack)
    return usable, faults


def _clash(pack: Pack, packs: list[Pack]) -> str | None:
    alike = [other for other in packs if other.name == pack.name]
    if len(alike) > 1:
        return (
            f"the name {pack.name} is that of {' and of '.join(map(str, alike))}: uninstall or "
            f"rename one; until then neither pack is used"
        )
    for family in pack.families:
        owners = [other for other in packs if family in other.families]
        if len(owners) > 1:
            return (
                f"the family {family} is in {' and in '.join(map(str, owners))}: uninstall one, or "
                f"rename the family in one; until then neither pack is used"
            )
    return None
