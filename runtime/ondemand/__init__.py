"""Kernels that are built when they are first asked for, from specs on disk, into a cache.

This module says whether a kernel is built, and from which specs. `kernels` builds it, and is
imported for that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runtime import _native, manifest, packs
from runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from codegen.core.packs import Pack
    from runtime.ondemand.specs import Source

sources: dict[str, Source] = {}  # specs of the families that `runtime.load` brought


def builds(family: str, build: bool | None) -> bool:
    """Returns whether a kernel of a family that is not built is to be built.

    `build` is what the caller says; None leaves it to `load` and to KERNELMINT_BUILD.
    """
    if build is not None:
        return build
    return family in sources or (_setting() != "" and source_of(family) is not None)


def _setting() -> str:
    if not _native.is_set("KERNELMINT_BUILD"):
        return ""
    value = os.environ["KERNELMINT_BUILD"]
    if value not in ("missing", "always"):
        raise InvalidArgument(f"KERNELMINT_BUILD={value}: expected `missing`, `always`, or nothing")
    return value


def always(family: str) -> bool:
    """Returns whether KERNELMINT_BUILD says to build a family's kernels from its spec as it is
    now, those of a pack included."""
    return _setting() == "always" and source_of(family) is not None


def source_of(family: str) -> Source | None:
    """Returns the spec that a family's kernels are built from; None if there is none."""
    pack = packs.owner(family)
    return None if pack is None else source_of_pack(family, pack)


def source_of_pack(family: str, pack: Pack) -> Source | None:
    """Returns the spec of a pack's family that its kernels are built from; None if there is
    none."""
    if family in sources:
        return sources[family]
    from runtime.ondemand import specs  # calls of kernels that are built do not need it

    return specs.of_pack(family, manifest.of_pack(pack, family).spec_folder, dict(pack.specs))
