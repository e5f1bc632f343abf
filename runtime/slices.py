"""The slices of packs that are here, and the slice whose kernels this machine's devices run."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codegen.core import slices
from codegen.core.architectures import of_target
from codegen.core.home import cache_folder
from codegen.core.packs import SLICES, Pack, PackError, Slice
from runtime import _native, devices, packs
from runtime.errors import BuildError, InvalidArgument, unlisted

VARIABLE = "KERNELMINT_SLICE_STORE"  # names a store, from which missing slices are then fetched


@dataclass(frozen=True)
class _Here:
    """The slices of a pack that are here, the latest architecture first, and why others cannot be
    used, by name."""

    packs: tuple[Pack, ...]
    faults: Mapping[str, str]


@functools.cache
def _here(pack: Pack) -> _Here:
    usable, faults = slices.installed(pack)
    by_name = {part.slice_name: part for part in usable}
    for part in pack.slices:
        if part.name not in by_name and part.sha256:
            from runtime.ondemand import slices as fetched

            try:
                if (kept := fetched.find(pack, part)) is not None:
                    by_name[part.name] = kept
            except (BuildError, PackError) as error:
                faults[part.name] = str(error)
    return _Here(tuple(sorted(by_name.values(), key=_capability, reverse=True)), faults)


def _capability(part: Pack) -> int:
    named = of_target(part.slice_name)
    assert named is not None  # checked when its pack was read
    return named.capability


packs.when_changed(_here.cache_clear)


def here(pack: Pack) -> tuple[Pack, ...]:
    """Returns the slices of a pack that are installed or were fetched."""
    return _here(pack).packs if pack.slices else ()


def holder(pack: Pack, family: str, target: str) -> Pack | None:
    """Returns the slice that holds a target's kernels for the first device here that one runs on,
    or for any device if there is none; None if no slice does."""
    holding = [part for part in here(pack) if f"{family}.{target}" in part.targets]
    if holding and not devices.has_cuda():
        return holding[0]
    for index in range(devices.count() if holding else 0):
        for part in holding:
            if devices.why_unavailable(target, part.architectures, index) is None:
                return part
    return None


def of(family: str, key: str) -> Pack:
    """Returns the pack that holds a kernel of a family that is known to be there: a single
    kernel's, the slice for this machine, else the family's."""
    pack = packs.of(family, key)
    return (holder(pack, family, key.split(".")[1]) if pack.slices else None) or pack


def lacking(pack: Pack, family: str, target: str) -> list[Slice]:
    """Returns the slices that would hold a target's kernels for devices here, or for any device if
    there is none."""
    holding = [part for part in pack.slices if f"{family}.{target}" in part.targets]
    if not devices.has_cuda():
        return holding
    return [
        part
        for part in reversed(holding)  # the latest architecture first
        if any(
            devices.why_unavailable(target, part.architectures, index) is None
            for index in range(devices.count())
        )
    ]


def is_fetched(pack: Pack, family: str, target: str) -> bool:
    """Returns whether a target's slice is fetched when one of its kernels is first asked for."""
    is_asked_for = _native.is_set(VARIABLE) and devices.has_cuda()
    return is_asked_for and any(part.sha256 for part in lacking(pack, family, target))


def chosen(pack: Pack, names: Sequence[str]) -> list[Slice]:
    """Returns the slices of these names, or, without names, those for the devices here. Raises
    InvalidArgument."""
    known = {part.name: part for part in pack.slices if part.sha256}
    if not known:
        raise InvalidArgument(f"{pack} names no slices that can be fetched")
    for name in names:
        if name not in known:
            raise InvalidArgument(unlisted("slice", name, [*known]))
    parts = [known[name] for name in names]
    if not parts:
        targets = dict.fromkeys(target for part in pack.slices for target in part.targets)
        firsts = [lacking(pack, *target.split("."))[:1] for target in targets]
        parts = [*dict.fromkeys(part for first in firsts for part in first)]
        if not parts or not devices.has_cuda():
            raise InvalidArgument(
                f"no GPU here says which slice of {pack.name} to fetch: name one of "
                f"{', '.join(known)}"
            )
    return parts


def fetch(pack: Pack, family: str, target: str) -> None:
    """Fetches the slice that holds a target's kernels for the devices here, from the store that
    KERNELMINT_SLICE_STORE names. Raises BuildError."""
    from runtime.ondemand import slices as store

    part = next(part for part in lacking(pack, family, target) if part.sha256)
    store.fetch(pack, part, os.environ[VARIABLE])


def why_none(pack: Pack, family: str, target: str) -> str | None:
    """Returns why no slice here holds a target's kernels, and what to do; None if no slice of the
    pack has any."""
    holding = [part for part in pack.slices if f"{family}.{target}" in part.targets]
    if not holding:
        return None
    if devices.has_cuda():
        reasons = [devices.why_unsuitable(target, index) for index in range(devices.count())]
        if None not in reasons:
            return reasons[0]
    missing = lacking(pack, family, target)
    if not missing:
        names = ", ".join(part.name for part in holding)
        return f"{pack} has slices {names} of target {target}, and this machine's devices run none"
    return _advice(pack, missing)


def _advice(pack: Pack, missing: list[Slice]) -> str:
    """Says which slices are missing, where they were looked for, and how to have one."""
    part = missing[0]
    names = " or ".join(each.name for each in missing)
    looked = [str(pack.folder / SLICES), f"distributions with an entry point {slices.GROUP}"]
    if not part.sha256:
        return (
            f"slice {names} of pack {pack.name} is not here: looked in {' and in '.join(looked)}. "
            f"The pack's wheel holds its slices: reinstall {pack}"
        )
    looked.append(f"the cache {cache_folder()}")
    faults = [f" ({fault})" for each in missing if (fault := _here(pack).faults.get(each.name))]
    version = "" if pack.distribution is None else f"=={pack.distribution.rpartition(' ')[2]}"
    return (
        f"slice {names} of pack {pack.name} is not here{''.join(faults)}: looked in "
        f"{', in '.join(looked)}. `pip install {part.distribution}{version}` installs it; "
        f"`kernelmint fetch {pack.name} --slice {part.name} --from STORE` fetches it from a folder "
        f"or an address, and {VARIABLE}=STORE does so at the first call"
    )
