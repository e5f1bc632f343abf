"""What a shell completes: the keys, families and targets of the tree here and of the installed
packs, as their manifests list them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from codegen import packs, staleness


def keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The keys that begin so."""
    found = (kernel["key"] for _, target in _targets() for kernel in target["kernels"])
    return sorted({key for key in found if key.startswith(incomplete)})


def families(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The families that begin so."""
    return sorted({family for family, _ in _targets() if family.startswith(incomplete)})


def targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The targets that begin so."""
    return sorted({t["name"] for _, t in _targets() if t["name"].startswith(incomplete)})


def _targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """All targets, each with its family's name."""
    for folder in (Path("generated"), *(pack.folder for pack in packs.installed()[0])):
        for family in staleness.read_manifest(folder).get("families", []):
            for target in family["targets"]:
                yield family["name"], target
