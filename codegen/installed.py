"""The contents of the installed packs, for `list` and `explain` of families that no specs at hand
have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codegen.core import manifest, packs
from codegen.core.manifest import Manifest
from codegen.core.packs import Fault, Pack
from codegen.core.problems import UsageError
from codegen.core.where import of_manifests, usage_error
from codegen.space import explain as explanation
from codegen.spec.load import load


def families() -> list[str]:
    """Returns the families of the installed packs."""
    return [family for pack in packs.installed()[0] for family in pack.families]


def entries(specs: Path, where: str | None) -> tuple[list[dict[str, Any]], list[Fault]]:
    """Returns the matching kernels of the packs' manifests, as `list --json` prints them, and the
    unusable packs. `specs` is the folder that was looked for first."""
    usable, faults = _packs(specs)
    kernels = [kernel for held in usable.values() for kernel in held.kernels]
    entries_: list[dict[str, Any]] = [
        {
            "key": kernel.key,
            **({"short": kernel.short} if kernel.short is not None else {}),
            "family": family.name,
            "target": target.name,
            "parameters": kernel.parameters,
            "derived": kernel.derived,
            **({"predicted": kernel.predicted} if kernel.predicted else {}),
        }
        for family, target, kernel in kernels
    ]
    if where is not None:
        targets = {(f.name, t.name): (f, t) for f, t, _ in kernels}
        matches = of_manifests(where, targets.values(), usage_error(where))
        entries_ = [e for e in entries_ if matches(e["key"], {**e["parameters"], **e["derived"]})]
    if not entries_:
        raise UsageError(f'no kernel of the installed packs matches --where "{where}"')
    return entries_, faults


def explain(key: str, specs: Path) -> explanation.Explanation:
    """Returns the explanation of a key, by the specs of the pack that holds its family."""
    family = key.partition(".")[0]
    usable, faults = _packs(specs)
    if reasons := dict.fromkeys(fault.reason for fault in faults if family in fault.families):
        raise UsageError("\n".join(reasons))
    owners = [pack for pack in usable if family in pack.families]
    among = owners or list(usable)  # a short form names no family; neither does a slip
    families = load([folder for pack in among for folder in pack.specs.values()])
    built = {key: file for pack in among for key, file in usable[pack].files.items()}
    return explanation.explain(key, families, built, among)


def _packs(specs: Path) -> tuple[dict[Pack, Manifest], list[Fault]]:
    """Returns the usable packs with their manifests, and the others. Raises UsageError without a
    usable pack."""
    candidates, faults = packs.installed()
    usable = {}
    for pack in candidates:
        try:
            usable[pack] = manifest.read(pack.manifest)
        except (OSError, ValueError) as error:
            reason = f"{pack}: {pack.manifest} is absent or damaged ({error}): reinstall it"
            faults.append(Fault(pack.name, pack.folder, pack.distribution, pack.families, reason))
    if not usable:
        reasons = dict.fromkeys(fault.reason for fault in faults)
        raise UsageError(
            "\n".join(
                [
                    f"there is no folder {specs} here, and no usable pack of kernels is "
                    "installed: go to a project's folder, name its specs with --specs DIR, or "
                    "install a pack",
                    *reasons,
                ]
            )
        )
    return usable, faults
