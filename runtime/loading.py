"""New kernels: packs and folders of specs are added, and kernels built from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from codegen.core.packs import Pack
from runtime import listing, manifest, packs, pytorch
from runtime.kernel_info import KernelInfo, infos

if pytorch.IS_INSTALLED:
    from runtime import finding, front, gradients
    from runtime.operators.definition import Callbacks, register


def offer(pack: Pack) -> None:
    """Registers the operators of a pack's families; there are none without PyTorch.

    Raises PackError for invalid schemas; nothing is registered then.
    """
    if pytorch.IS_INSTALLED:
        callbacks = Callbacks(finding.resolved, front.of_call, front.describe, gradients.of_call)
        register(pack, callbacks)


def load_pack(folder: str | os.PathLike[str]) -> Pack:
    """Adds the pack in a folder to those that are installed, for this process.

    Args:
        folder: a folder with a pack.json: `<package>/_pack` of a distribution.

    Returns:
        the pack; the same as before if it is known already.

    Raises:
        PackError: the pack cannot be used, or one of its families is in another pack. Nothing has
            changed then.
    """
    with packs.changing:
        pack = packs.readable(folder)
        if pack not in packs.all_packs():
            offer(pack)
            packs.register(pack)
            listing.short_forms.cache_clear()
    return pack


def load(folder: str | os.PathLike[str]) -> list[KernelInfo]:
    """Adds the families in a folder of specs, for this process: each kernel is built when it is
    first asked for, for the GPUs or the processor that are here, into the cache
    (docs/on_demand.md). Keys that are in no set of the specs can be asked for.

    Args:
        folder: a family's folder, a group's, or a folder of specs.

    Returns:
        the kernels of the default sets.

    Raises:
        BuildError: problems of the specs, each with its place.
        PackError: one of the families is in a pack of another project. Nothing has changed then.
    """
    from runtime.ondemand import kernels as on_demand  # importing its modules takes a while

    with packs.changing:
        before = packs.families()
        names = on_demand.load(folder)
        for name in names:
            if name not in before:
                offer(packs.of(name))
        listing.short_forms.cache_clear()
    return [info for name in names for info in infos([manifest.family(name)])]


def families(specs: str | os.PathLike[str]) -> list[str]:
    """Returns the names of the families that `build` takes, which are loaded."""
    from runtime.ondemand.specs import here

    if isinstance(specs, str) and packs.owner(specs) is not None:
        return [specs]
    if isinstance(specs, str) and os.sep not in specs and not os.path.isdir(specs):
        if (folder := here(specs)) is None:
            listing.check_name("family or folder", specs, packs.families())
        specs = folder or specs
    return list(dict.fromkeys(info.family for info in load(specs)))


def build(
    specs: str | os.PathLike[str],
    where: str | None = None,
    *,
    set_name: str = "default",
    keys: Sequence[str] | None = None,
    architectures: Sequence[str] | None = None,
    traces: str | os.PathLike[str] | None = None,
) -> list[KernelInfo]:
    """Builds kernels of a folder of specs into the cache, as many at a time as the machine bears.

    Args:
        specs: a folder, as `load` takes it, which is loaded; or the name of a family, known or in
            the current folder's kernel_specs.
        where: an expression over parameters, derived values, `family` and `target`: only kernels
            for which it holds.
        set_name: the set of each target.
        keys: the keys of other kernels instead, in a set or not.
        architectures: the architectures of CUDA kernels: "80", "90". Without them, those of the
            GPUs that are here; targets that no GPU runs are left out.
        traces: an existing folder for the compilers' time traces, which `kernelmint build-profile`
            ranks. All kernels are then compiled, in the cache or not.

    Returns:
        the kernels.

    Raises:
        BuildError: problems of the specs, or what a compiler refused.
        InvalidArgument: an unknown name, or nothing matches.
    """
    from runtime.ondemand import kernels as on_demand  # importing its modules takes a while

    names, keys = chosen(specs, where, set_name, keys, architectures)
    folder = None if traces is None else Path(traces)
    return add(names, on_demand.build(keys, architectures, traces=folder))


def chosen(
    specs: str | os.PathLike[str],
    where: str | None,
    set_name: str,
    keys: Sequence[str] | None,
    architectures: Sequence[str] | None,
) -> tuple[list[str], Sequence[str]]:
    """Returns the families that `build` takes, and the keys that it builds."""
    from runtime.ondemand import kernels as on_demand

    names = families(specs)
    if keys is None:
        keys = on_demand.keys(names, set_name, where)
        if architectures is None:
            keys = on_demand.runnable(keys)
    return names, keys


def add(names: Sequence[str], built: Mapping[str, Pack]) -> list[KernelInfo]:
    """Adds kernels that were built, by key, to their families; returns them."""
    for key, single in built.items():
        listing.add_single(key, single)
    return [info for info in infos(map(manifest.family, names)) if info.key in built]
