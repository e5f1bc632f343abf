"""The data files of packs: the kernels that were generated, and what ptxas made of them."""

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
    """The resources that ptxas gave a kernel: registers a thread, bytes spilled; the most over
    architectures."""

    registers: int
    spills: int


def check_checkout(package: Path) -> None:
    """Raises ImportError if the checkout that `package` lies in is not what was installed from it.

    This is for the source tree's `runtime` beside an installed extension.
    """
    checkout = package.parent
    pack = next((pack for pack in packs.all_packs() if pack.name == "kernelmint"), None)
    if pack is None:  # it clashes with another pack: a call of its kernels raises that
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
    """Yields the families of all usable packs, without those whose files turn out to be damaged."""
    for name in packs.families():
        try:
            resources(packs.of(name))
            whole = family(name)
        except PackError as error:
            packs.refuse(name, str(error))
            continue
        yield whole


def family(name: str) -> Family:
    """Returns the family of that name, which is known to be there: its pack's kernels, and those
    that were built singly."""
    return _merged(name, packs.of(name), packs.singles(name))


def kernel(name: str, key: str) -> tuple[Family, Target, list[manifest.Kernel]] | None:
    """Returns the family, which is known to be there, the target and the kernel of a key; None
    if no pack lists it."""
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
    whole = _merged(name, pack, singles)
    return {k.key: (whole, target, [k]) for target in whole.targets for k in target.kernels}


@functools.lru_cache(maxsize=256)
def _merged(name: str, pack: Pack, singles: tuple[Pack, ...]) -> Family:
    whole = of_pack(pack, name)
    targets = {target.name: target for target in whole.targets}
    for single in singles:
        for target in of_pack(single, name).targets:
            earlier = targets.get(target.name, target)
            kernels = {kernel.key: kernel for kernel in (*earlier.kernels, *target.kernels)}
            targets[target.name] = replace(earlier, kernels=tuple(kernels.values()))
    return replace(whole, targets=tuple(targets.values()))


def check_same_family(name: str, earlier: Pack, new: Pack) -> None:
    """Raises BuildError if two packs disagree about a family's arguments, symbols, parameters or
    trace."""
    for what in ("arguments", "symbols", "parameters", "trace"):
        if getattr(of_pack(earlier, name), what) != getattr(of_pack(new, name), what):
            raise BuildError(
                f"the {what} of {name} are not those of {earlier}: rebuild that pack, or start "
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
    """Returns a pack's ptxas.csv, by key; empty if it has no CUDA kernels."""
    path = pack.ptxas
    by_key: dict[str, Resources] = {}
    if not path.exists():
        return by_key
    with _readable(pack, path):
        rows = read_csv(path)
    for row in rows:
        if row.used_registers:
            most = by_key.get(row.kernel_config, Resources(0, 0))
            spills = (row.spill_stores or 0) + (row.spill_loads or 0)
            by_key[row.kernel_config] = Resources(
                max(row.used_registers, most.registers), max(spills, most.spills)
            )
    return by_key
