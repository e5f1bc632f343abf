"""Lists of families, targets and kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable

from codegen.core.manifest import Family
from codegen.core.packs import Pack
from codegen.core.where import of_manifests
from codegen.core.words import did_you_mean
from runtime import manifest, packs
from runtime.errors import InvalidArgument, PackError, shown, unexpected
from runtime.kernel_info import KernelInfo, infos


def families() -> list[str]:
    """Returns the families of all packs that can be used."""
    return packs.families()


def targets() -> list[str]:
    """Returns the targets of these families."""
    names = (target.name for family in manifest.families() for target in family.targets)
    return list(dict.fromkeys(names))


def kernels(
    family: str | None = None,
    target: str | None = None,
    where: str | Callable[[KernelInfo], bool] | None = None,
) -> list[KernelInfo]:
    """Returns the kernels that were generated, in the manifest's order, built or not.

    Args:
        family: only this family's kernels.
        target: only this target's kernels.
        where: an expression over parameters, derived values, `family` and `target`, such as
            ``"B_r == 64 and dtype == 'bf16'"``, or a function of a KernelInfo. A kernel that lacks
            a name the expression uses does not match. The language is that of the specs and of
            `kernelmint list --where` (docs/adding_a_family.md).

    Raises:
        InvalidArgument: an unknown family, target or name, or a malformed expression.
        PackError: no family is named, and a pack cannot be used: the message names each such pack.
            The families of the others can be listed by name.
    """
    infos_found = listed(family, target)
    if family is None and packs.faults():
        raise PackError("\n".join(dict.fromkeys(fault.reason for fault in packs.faults())))
    if where is None:
        return infos_found
    if callable(where):
        return [info for info in infos_found if _holds(where(info))]
    matches = _filter(where, {(info.family, info.target) for info in infos_found})
    return [info for info in infos_found if matches(info)]


def listed(family: str | None, target: str | None) -> list[KernelInfo]:
    """Returns the kernels of one family, or of all that can be used."""
    chosen = manifest.families() if family is None else [known_family(family)]
    if family is not None:
        manifest.resources(packs.of(family))  # a damaged pack lists no kernels
    check_target(target)
    return list(infos(chosen, target))


def known_family(name: str) -> Family:
    """Returns the family of that name. Raises InvalidArgument if there is none, PackError if its
    pack cannot be used."""
    if not isinstance(name, str) or packs.owner(name) is None:
        check_name("family", name, families())
    return manifest.family(name)


def _holds(answer: object) -> bool:
    try:
        return bool(answer)
    except Exception as error:
        raise InvalidArgument(
            f"where: the function returned a {type(answer).__name__}, expected a bool ({error})"
        ) from None


def _filter(text: str, among: set[tuple[str, str]]) -> Callable[[KernelInfo], bool]:
    """Returns a filter that knows the names of these targets, given as (family, target)."""
    if not isinstance(text, str):
        raise unexpected("where", text, "an expression or a function")
    matches = of_manifests(
        text,
        [
            (family, target)
            for family in manifest.families()
            for target in family.targets
            if not among or (family.name, target.name) in among
        ],
        lambda what: InvalidArgument(f"where: {shown(text)}{what}"),
    )
    return lambda info: matches(info.key, {**info.parameters, **info.derived})


def check_target(name: object) -> None:
    """Raises InvalidArgument if no family has a target of that name; None names nothing."""
    if name is not None:  # reads all families
        check_name("target", name, targets())


def check_name(what: str, name: object, names: list[str]) -> None:
    """Raises InvalidArgument for a name that is not one of `names`; None names nothing."""
    if name is None:
        return
    if not isinstance(name, str):
        raise unexpected(what, name, f"one of {', '.join(names)}")
    if name in names:
        return
    meant = did_you_mean(name, names, list_few=False)
    raise InvalidArgument(f"unknown {what}: {shown(name)}{meant}; known: {', '.join(names)}")


def plain_short(text: str) -> str:
    """Returns a short form as it is compared: case, spaces and the order of its features do not
    count."""
    head, _, features = "".join(text.lower().split()).partition(":")
    return f"{head}:{'+'.join(sorted(features.split('+')))}"


@functools.cache
def short_forms() -> dict[str, list[str]]:
    """Returns the keys of each short form."""
    keys: dict[str, list[str]] = {}
    for info in infos(manifest.families()):
        if info.short is not None:
            keys.setdefault(plain_short(info.short), []).append(info.key)
    return keys


def add_single(key: str, single: Pack) -> None:
    """Adds a kernel that was built singly: `kernel` takes it instead of an installed one.

    Raises BuildError if its family's arguments differ from those of its pack.
    """
    family = key.partition(".")[0]
    manifest.check_same_family(family, packs.of(family), single)
    packs.add_single(family, key, single)
    short_forms.cache_clear()
