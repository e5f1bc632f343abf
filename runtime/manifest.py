"""What was generated and what ptxas made of it: the data files of packs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codegen.core import manifest
from codegen.core.manifest import Family, Target
from codegen.core.packs import Pack, PackError
from codegen.core.ptxas_rows import ReportError, read_csv
from runtime import packs
from runtime.errors import BuildError

REBUILD = "pip install ."
REGENERATE = f"kernelmint regenerate && {REBUILD}"


@dataclass(frozen=True)
class Resources:
    """What ptxas gave a kernel: registers a thread, bytes spilled; the most over architectures."""

    registers: int
    spills: int


def check_checkout(package: Path) -> None:
    """ImportError if the checkout that `package` lies in is not what was installed from it.

    For the source tree's `runtime` beside an installed extension.
    """
    checkout = package.parent
    pack = next((pack for pack in packs.all_packs() if pack.name == "kernelmint"), None)
    if pack is None:  # another one clashes with it, which is said when its kernels are asked for
        return
    generated = checkout / "generated/manifest.json"
    with _readable(pack, generated):
        fingerprints = manifest.LazyFamilies(generated).fingerprints
    changed = packs.changed_sources(pack, checkout)
    if fingerprints != pack.generated:
        what = f"{generated} is not what {pack} was built from"
    elif changed:
        what = f"{packs.first_of(changed, checkout)} changed since {pack} was built"
    else:
        return
    raise ImportError(f"{what}: run `make build` (or `{REBUILD}`) in {checkout}")


@functools.cache
def _families(pack: Pack) -> manifest.LazyFamilies:
    path = pack.manifest
    with _readable(pack, path):
        families = manifest.LazyFamilies(path)
    for name, fingerprint in families.fingerprints.items():
        expected = pack.generated.get(name)
        if fingerprint != expected:
            raise PackError(
                f"{pack}: {path} is of the generated code {fingerprint} of {name}, "
                f"but the pack was built from {expected}: reinstall it"
            )
    return families


def families() -> Iterator[Family]:
    """The families of all usable packs; without those whose files turn out to be damaged."""
    for name in packs.families():
        try:
            resources(packs.of(name))
            found = family(name)
        except PackError as error:
            packs.refuse(name, str(error))
            continue
        yield found


def family(name: str) -> Family:
    """The family of that name, which is known to be there: its pack's kernels, and those that were
    built by themselves."""
    return _merged(name, packs.of(name), packs.singles(name))


def kernel(name: str, key: str) -> tuple[Family, Target, list[manifest.Kernel]] | None:
    """The family, which is known to be there, the target and the kernel of a key; None if no pack
    lists it."""
    return _by_key(name, packs.of(name), packs.singles(name)).get(key)


def of_pack(pack: Pack, name: str) -> Family:
    """Returns a family as a pack's manifest has it."""
    families = _families(pack)
    with _readable(pack, pack.manifest):
        return families[name]


@functools.lru_cache(maxsize=256)
def _by_key(
    name: str, pack: Pack, singles: tuple[Pack, ...]
) -> dict[str, tuple[Family, Target, list[manifest.Kernel]]]:
    found = _merged(name, pack, singles)
    return {k.key: (found, target, [k]) for target in found.targets for k in target.kernels}


@functools.lru_cache(maxsize=256)
def _merged(name: str, pack: Pack, singles: tuple[Pack, ...]) -> Family:
    found = of_pack(pack, name)
    targets = {target.name: target for target in found.targets}
    for single in singles:
        for target in of_pack(single, name).targets:
            known = targets.get(target.name, target)
            kernels = {kernel.key: kernel for kernel in (*known.kernels, *target.kernels)}
            targets[target.name] = replace(known, kernels=tuple(kernels.values()))
    return replace(found, targets=tuple(targets.values()))


def check_same_family(name: str, known: Pack, new: Pack) -> None:
    """BuildError if two packs disagree about a family: what it takes, returns and traces."""
    for what in ("arguments", "symbols", "parameters", "trace"):
        if getattr(of_pack(known, name), what) != getattr(of_pack(new, name), what):
            raise BuildError(
                f"the {what} of {name} are not those of {known}: rebuild that pack, or start "
                "Python anew if it is of a folder that was loaded"
            )


@contextlib.contextmanager
def _readable(pack: Pack, path: Path) -> Iterator[None]:
    """Raises PackError if the file at `path` is absent, or not what a build writes there."""
    try:
        yield
    except FileNotFoundError:
        raise PackError(f"{pack}: there is no {path}: reinstall it") from None
    except PackError:
        raise
    except (OSError, ValueError, RecursionError, LookupError, TypeError, ReportError) as error:
        raise PackError(
            f"{pack}: {path} is damaged ({type(error).__name__}: {error}): reinstall it"
        ) from None


@functools.cache
def resources(pack: Pack) -> dict[str, Resources]:
    """A pack's ptxas.csv, by key; empty if it has no CUDA kernels."""
    path = pack.ptxas
    found: dict[str, Resources] = {}
    if not path.exists():
        return found
    with _readable(pack, path):
        rows = read_csv(path)
    for row in rows:
        if row.used_registers:
            most = found.get(row.kernel_config, Resources(0, 0))
            spills = (row.spill_stores or 0) + (row.spill_loads or 0)
            found[row.kernel_config] = Resources(
                max(row.used_registers, most.registers), max(spills, most.spills)
            )
    return found
