"""Packs: folders of compiled kernels, found without loading any of them.

A pack's folder holds

    pack.json           its name, its families, their targets and sources
    manifest.json       codegen's record of the generated kernels
    ptxas.csv           ptxas's figures of the CUDA kernels
    <family>.so         a library for each family
    python/<family>.py  the generated class of the family's kernels
    kernel_specs/       the specs with their headers, fronts and references; an editable install
                        names the folder where they are written instead
    slices/<slice>/     a slice: its pack.json, ptxas.csv and libraries (docs/slices.md)

A slice holds the CUDA kernels of a pack for one architecture, in libraries of their own. It lies in
its pack's folder, in another distribution, or in the cache (codegen/core/slices.py).

An installed distribution names its packs in the entry points `kernelmint.packs`: `my_pack =
"my_package._pack"` is the folder my_package/_pack beside the distribution. Nothing is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codegen.core import architectures, as_json
from codegen.core.as_json import left_out, named

if TYPE_CHECKING:
    from codegen.core.manifest import Family

GROUP = "kernelmint.packs"
PACK_JSON = "pack.json"
SLICES = "slices"  # the folder of a pack's slices
MANIFEST = "manifest.json"
FORMAT = 1  # version of pack.json
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_FILE = re.compile(r"[\w.+-]*\Z")  # a wheel's name


class PackError(ImportError):
    """A pack cannot be used; the message names it, why, and what to do."""


@dataclass(frozen=True)
class Front:
    """A function that a family offers Python beyond its kernels, and the module that defines it."""

    family: str
    module: str  # within the pack's specs: "kernel_specs.attention.front"
    function: str


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice that a pack's build made.

    Attributes:
        name: "sm90", after the compute capability.
        architectures: as a pack's: "90a".
        targets: as a pack's.
        distribution: the distribution that installs it, "my-kernels-sm90".
        wheel: the file of that distribution.
        sha256: the hash of that file, which makes it the pack's whoever keeps it.
        size: the bytes of that file.

    The last four are "" and 0 in a pack from which nothing was split.
    """

    name: str
    architectures: tuple[str, ...]
    targets: tuple[str, ...]
    distribution: str = left_out("")
    wheel: str = left_out("")
    sha256: str = left_out("")
    size: int = left_out(0)


@dataclass(frozen=True, kw_only=True, eq=False)  # one object a pack: keys of caches
class PackJson:
    """The contents of pack.json.

    Attributes:
        format: FORMAT.
        name: its name, as its author chose it.
        fingerprint: the hash of all inputs of its libraries, which hold it.
        operators: the schemas of each family's operators: the operator that returns the outputs
            and, if there is one, the operator that writes into tensors passed by name.
        on_host: the families with inputs that are on the host, whatever the target.
        fronts: the families' public functions.
        spec_folders: the folders of specs, by name, as seen from the pack's.
        abi: the version of the ABI between libraries and runtime.
        generated: the fingerprint of each family's generated code.
        settings: compilers and flags.
        architectures: the architectures of the CUDA kernels: "80", "90a".
        isas: the instruction sets that the CPU kernels were compiled for.
        targets: the built targets, as "family.target".
        sources: the hash of each source, by its path in the project that built the pack.
        slices: the slices that the build made.
        slice_name: the name of the slice that this is; "" for a pack.
    """

    format: int = FORMAT
    name: str
    fingerprint: str
    operators: Mapping[str, tuple[str, ...]]
    on_host: tuple[str, ...]
    fronts: tuple[Front, ...]
    spec_folders: Mapping[str, str] = named("specs")
    abi: int
    generated: Mapping[str, str]
    settings: Mapping[str, str]
    architectures: tuple[str, ...]
    isas: tuple[str, ...]
    targets: tuple[str, ...]
    sources: Mapping[str, str]
    slices: tuple[Slice, ...] = left_out(())
    slice_name: str = left_out("")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack(PackJson):
    """A pack whose pack.json was read.

    Attributes:
        folder: the folder of its files.
        distribution: the distribution that installed it, "my-kernels 0.1"; None if its folder was
            named.
    """

    folder: Path
    distribution: str | None

    @property
    def specs(self) -> dict[str, Path]:
        """Returns the folders of specs, by name."""
        return {name: self.folder / place for name, place in self.spec_folders.items()}

    @property
    def families(self) -> tuple[str, ...]:
        """Returns the families that the pack holds."""
        return tuple(self.generated)

    @property
    def names(self) -> dict[str, str]:
        """Returns the names that no other pack may have: its families and their operators, each as
        messages say."""
        operators = {
            text.partition("(")[0]: family
            for family, schemas in self.operators.items()
            for text in schemas
        }
        return {
            name: f"the family {name}" if name == family else f"the operator {name} of {family}"
            for name, family in operators.items()
        }

    @property
    def manifest(self) -> Path:
        """Returns the pack's manifest.json."""
        return self.folder / MANIFEST

    @property
    def ptxas(self) -> Path:
        """Returns the pack's ptxas.csv."""
        return self.folder / "ptxas.csv"

    def library(self, family: str) -> Path:
        """Returns the shared library of a family."""
        return self.folder / f"{family}.so"

    def face(self, family: str) -> Path:
        """Returns the generated Python module of a family."""
        return self.folder / "python" / f"{family}.py"

    def __str__(self) -> str:
        """Returns the pack for messages: ``pack my_kernels (my-kernels 0.1,
        /…/my_kernels/_pack)``."""
        name = f"{self.name}, slice {self.slice_name}" if self.slice_name else self.name
        return describe(name, self.folder, self.distribution)


@dataclass(frozen=True)
class Fault:
    """A pack that cannot be used, and why."""

    name: str
    folder: Path
    distribution: str | None
    families: tuple[str, ...]  # a pack's name, if it is known
    reason: str  # names the pack


def describe(name: str, folder: Path, distribution: str | None) -> str:
    """Returns a pack's name in messages."""
    return f"pack {name} ({f'{distribution}, ' if distribution else ''}{folder})"


def read(folder: Path, distribution: str | None = None, name: str | None = None) -> Pack:
    """Reads the pack in a folder. Raises PackError if its pack.json does not have the form that a
    build writes.

    `name` is the pack's name in messages before its own name is known.
    """
    path = folder / PACK_JSON
    what = describe(name or folder.name, folder, distribution)
    try:
        data = as_json.parse(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise PackError(
                f"{what}: its {PACK_JSON} has format {str(data.get('format'))[:20]!a}, but this "
                f"Kernelmint reads format {FORMAT}: upgrade the older of the two"
            )
        described = as_json.read(PackJson, data)
        _check(described)
    except FileNotFoundError:
        raise PackError(f"{what}: there is no {path}: reinstall it") from None
    except (OSError, ValueError) as error:
        raise PackError(f"{what}: {path} is damaged ({error}): reinstall it") from None
    return Pack(**vars(described), folder=folder, distribution=distribution)


def _check(described: PackJson) -> None:
    """Raises ValueError for invalid names, and for operators that do not belong to a family."""
    for name in (described.name, *described.generated):
        if not NAME.match(name):
            raise ValueError(f"the name {name!a:.60}: expected lower-case letters, digits and _")
    for part in described.slices:
        if architectures.of_target(part.name) is None or not _FILE.match(part.wheel):
            raise ValueError(f"the slice {part.name!a:.60} of {part.wheel!a:.60}")
    for architecture in described.architectures:
        if architectures.parse(architecture) is None:
            raise ValueError(
                f"architectures: got {architecture!a:.60}, expected names such as 80, 90a or 100f"
            )
    if described.operators.keys() != described.generated.keys():
        raise ValueError(
            f"operators: got those of {', '.join(described.operators)}, expected those of "
            f"{', '.join(described.generated)}"
        )
    for family, schemas in described.operators.items():
        names = [text.partition("(")[0] for text in schemas]
        if names not in ([family], [family, f"{family}_out"]):
            raise ValueError(f"operators.{family}: got {', '.join(names)!a:.60}")


def write(folder: Path, families: Sequence[Family], **others: Any) -> None:
    """Writes the file that `read` reads, of a pack with these of a manifest's families; `others`
    are the other members of PackJson."""
    described = PackJson(
        operators={family.name: family.operators for family in families},
        on_host=tuple(f.name for f in families if any(t.on_host for t in f.tensors)),
        fronts=tuple(
            Front(family=family.name, module=front.module, function=front.function)
            for family in families
            for front in family.fronts
        ),
        generated={family.name: family.fingerprint for family in families},
        **others,
    )
    (folder / PACK_JSON).write_text(json.dumps(as_json.form(described), indent=1) + "\n")


def installed() -> tuple[list[Pack], list[Fault]]:
    """Returns the packs of the installed distributions, and the unusable ones: those that cannot be
    read, and all packs that share a name or a family."""
    packs: list[Pack] = []
    faults: list[Fault] = []
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda e: e.name):
        assert entry.dist is not None  # it was found in one
        folder = _folder(entry.value, entry.dist)
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


def _folder(module: str, distribution: importlib.metadata.Distribution) -> Path:
    """Returns the folder of a pack's module: beside the distribution, or, of an editable install
    that rebuilds, where its finder says."""
    folder = Path(str(distribution.locate_file(module.replace(".", "/")))).absolute()
    if not folder.is_dir():
        top, *rest = module.split(".")
        spec = importlib.util.find_spec(top)
        for place in (spec.submodule_search_locations if spec else None) or []:
            if (built := Path(place, *rest)).is_dir():
                return built.absolute()
    return folder


def _clash(pack: Pack, packs: list[Pack]) -> str | None:
    alike = [other for other in packs if other.name == pack.name]
    if len(alike) > 1:
        return (
            f"the name {pack.name} is that of {' and of '.join(map(str, alike))}: uninstall or "
            f"rename one; until then neither pack is used"
        )
    for name, what in pack.names.items():
        owners = [other for other in packs if name in other.names]
        if len(owners) > 1:
            if all(other.names[name] == what for other in owners):
                clash = f"{what} is in {' and in '.join(map(str, owners))}"
            else:
                names = " and ".join(f"{other.names[name]} in {other}" for other in owners)
                clash = f"{names} have one name"
            return (
                f"{clash}: uninstall one, or rename the family in one; until then neither pack is "
                "used"
            )
    return None
