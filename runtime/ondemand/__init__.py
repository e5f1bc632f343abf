"""Kernels that are built when they are first asked for, from specs on disk, into a cache.

Here is whether that is asked for; `kernels` does it, and is imported when it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from runtime.ondemand.specs import Source

sources: dict[str, Source] = {}  # of the families that `runtime.load` brought


def wanted(family: str, build: bool | None) -> bool:
    """Whether a kernel of a family that is not built is to be built.

    `build` is what the caller says; None leaves it to `load` and to KERNELMINT_BUILD.
    """
    if build is not None:
        return build
    return family in sources or (_setting() != "" and _has_source(family))


def _setting() -> str:
    value = os.environ.get("KERNELMINT_BUILD", "")
    if value not in ("", "missing", "always"):
        raise InvalidArgument(f"KERNELMINT_BUILD={value}: expected `missing`, `always`, or nothing")
    return value


def always(family: str) -> bool:
    """Whether KERNELMINT_BUILD says to build a family's kernels from its spec as it is now, also
    those that a pack holds."""
    return _setting() == "always" and _has_source(family)


def _has_source(family: str) -> bool:
    from runtime.ondemand import kernels

    return kernels.source_of(family) is not None
