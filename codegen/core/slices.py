"""The slices of a pack that are installed: in its folder, or by distributions of their own.

Such a distribution names its slices in the entry points `kernelmint.slices`: `my_pack.sm90 =
my_pack_sm90` is the folder my_pack_sm90 beside the distribution. Nothing is imported. Standard
library only.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from codegen.core import packs
from codegen.core.packs import SLICES, Pack, PackError, Slice

GROUP = "kernelmint.slices"


def places(pack: Pack, part: Slice) -> list[tuple[Path, str | None]]:
    """Returns the folders in which a slice may be installed, each with its distribution."""
    entries = importlib.metadata.entry_points(group=GROUP, name=f"{pack.name}.{part.name}")
    installed: list[tuple[Path, str | None]] = [
        (pack.folder / SLICES / part.name, pack.distribution)
    ]
    for entry in entries:
        assert entry.dist is not None  # it was found in one
        folder = Path(str(entry.dist.locate_file(entry.value.replace(".", "/")))).absolute()
        about = entry.dist.metadata
        installed.append((folder, f"{about['Name']} {about['Version']}"))
    return installed


def read(pack: Pack, part: Slice, folder: Path, distribution: str | None = None) -> Pack:
    """Reads a pack's slice in a folder. Raises PackError if it is damaged, or not of that pack's
    build."""
    slice_pack = packs.read(folder, distribution, part.name)
    if (slice_pack.name, slice_pack.slice_name) != (pack.name, part.name):
        raise PackError(f"{slice_pack}: expected slice {part.name} of pack {pack.name}")
    if slice_pack.fingerprint != pack.fingerprint:
        raise PackError(
            f"{slice_pack}: it is of the build {slice_pack.fingerprint}, but {pack} is of "
            f"{pack.fingerprint}: install both of one version"
        )
    return slice_pack


def installed(pack: Pack) -> tuple[list[Pack], dict[str, str]]:
    """Returns the installed slices of a pack, and why others cannot be used, by name."""
    usable: list[Pack] = []
    faults: dict[str, str] = {}
    for part in pack.slices:
        for folder, distribution in places(pack, part):
            if not folder.exists():
                continue
            try:
                usable.append(read(pack, part, folder, distribution))
            except PackError as error:
                faults[part.name] = str(error)
            else:
                faults.pop(part.name, None)
                break
    return usable, faults
