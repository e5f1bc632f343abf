"""The differences between the builds of two wheels, by their records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from codegen.build.dist_info import EPOCH, SETTING, VARIABLE
from codegen.core.packs import MANIFEST, PackJson

from .wheel import Wheel

DEVICE, HOST = "device", "host"
_BOTH = (DEVICE, HOST)
# Settings of pack.json that decide the host's code; others decide both.
_OF_HOST = ("c++", "c++ flags", "c++ of nvcc", "linker", "processor")
_GPU_SOURCES = (".cu", ".cuh")
_LONGEST = 40  # characters of a value that are shown


@dataclass(frozen=True)
class Reason:
    """A difference that may explain others.

    Attributes:
        what: "nvcc".
        of_wheel: its value in the wheel; None if the wheel's build had none.
        here: its value in the other wheel.
        decides: DEVICE and HOST, as far as it can change code.
    """

    what: str
    of_wheel: str | None
    here: str | None
    decides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.of_wheel)} -> {_shown(self.here)}"


def _shown(value: str | None) -> str:
    if value is None:
        return "absent"
    return f"{value[:_LONGEST]}…" if value[_LONGEST:] else value or "empty"


def between(wheel: Wheel, other: Wheel) -> list[Reason]:
    """Returns the differences of two builds, those that decide code first."""
    return sorted(
        [*_of_packs(wheel, other), *_of_bills(wheel, other)], key=lambda reason: not reason.decides
    )


def _differing(
    old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _of_packs(wheel: Wheel, other: Wheel) -> Iterator[Reason]:
    of_host = {*_OF_HOST, *(f"{isa} flags" for w in (wheel, other) for isa in w.isas)}
    for name, old, new in _differing(wheel.settings, other.settings):
        yield Reason(name, old, new, (HOST,) if name in of_host else _BOTH)
    for folder in wheel.packs.keys() & other.packs.keys():
        before, after = (_choices(w, folder) for w in (wheel, other))
        for name, old, new in _differing(before, after):
            yield Reason(name, old, new, (HOST,) if name == "instruction sets" else _BOTH)
        before, after = (_sources(w.packs[folder]) for w in (wheel, other))
        for name, old, new in _differing(before, after):
            yield Reason(name, old, new, (DEVICE,) if name.endswith(_GPU_SOURCES) else _BOTH)


def _choices(wheel: Wheel, folder: str) -> dict[str, str]:
    """Returns what a pack was built for."""
    pack = wheel.packs[folder]
    choices = {
        "architectures": " ".join(pack.architectures),
        "instruction sets": " ".join(pack.isas),
        "targets": " ".join(pack.targets),
        "slices split off": " ".join(slice_.name for slice_ in pack.slices if slice_.distribution),
    }
    try:
        selection = json.loads(wheel.read(f"{folder}{MANIFEST}"))["selection"]
    except (LookupError, TypeError, ValueError):
        return choices
    return {**choices, **{f"regenerate --{name}": str(value) for name, value in selection.items()}}


def _sources(pack: PackJson) -> dict[str, str]:
    return {
        **{f"source {name}": digest for name, digest in pack.sources.items()},
        **{f"generated code of {name}": digest for name, digest in pack.generated.items()},
    }


def _of_bills(wheel: Wheel, other: Wheel) -> Iterator[Reason]:
    old, new = wheel.build, other.build
    if bool(wheel.bill) != bool(other.bill):
        before, after = ("present" if w.bill else None for w in (wheel, other))
        yield Reason("bill of materials", before, after)
        return
    if old.revision != new.revision:
        yield Reason("revision of the sources", old.revision, new.revision)
    for name, before, after in _differing(old.properties, new.properties):
        short = name.removeprefix(VARIABLE).replace(SETTING, "-C ")
        decides = () if name == EPOCH else (HOST,) if short == "LDFLAGS" else _BOTH
        yield Reason("SOURCE_DATE_EPOCH" if name == EPOCH else short, before, after, decides)
    for name, before, after in _differing(old.tools, new.tools):
        if name not in wheel.settings:  # pack.json's are named already
            yield Reason(name, before, after)
    for name, before, after in _differing(old.packages, new.packages):
        yield Reason(f"package {name}", before, after)
