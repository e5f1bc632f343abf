"""Which kernels of flash_forward a tool works on: `--kernel`, `--where`, or the variable KERNELS.

KERNELS is `all` (what it is where it is not set), `prog` and `prog_all` (the sets progression and
progression_all of the specs), the name of any other set such as `tune`, or `64,32`: the kernels
with B_r = 64 and B_c = 32.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import runtime
from runtime import KernelInfo
from runtime.ondemand import kernels as on_demand

VARIABLE = "KERNELS"
FAMILY = "flash_forward"
_SHORT_NAMES = {"prog": "progression", "prog_all": "progression_all"}


@dataclass(frozen=True)
class Selected:
    """The kernels chosen, in the manifest's order."""

    description: str
    kernels: list[KernelInfo]


def select(kernel: str | None = None, where: str | None = None) -> Selected:
    """The kernels of flash_forward that a user asked for. A kernel that is named, and those of a
    set, are built where no pack holds them.

    Args:
        kernel: one kernel, by key or short form; KERNELS and `where` are not looked at then.
        where: an expression over parameters and derived values, within what KERNELS selects.

    Raises:
        ValueError: KERNELS says nothing known, the kernel is of another family, or nothing built
            is left; with what to do.
        KernelNotFound, TargetUnavailable, BuildError: as `runtime.kernel`.
    """
    if kernel is not None:
        info = runtime.kernel(kernel, build=True).info
        if info.family != FAMILY:
            raise ValueError(f"{info.key}: got a kernel of {info.family}, expected one of {FAMILY}")
        return Selected(info.key, [info])
    word = os.environ.get(VARIABLE, "all")
    blocks = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", word)
    if blocks is None and word != "all":
        return Selected(f"set {_SHORT_NAMES.get(word, word)}", of_set(word, where))
    built = [info for info in runtime.kernels(FAMILY, where=where) if info.built]
    description = "all"
    if blocks is not None:
        B_r, B_c = map(int, blocks.groups())
        description = f"B_r {B_r}, B_c {B_c}"
        built = [k for k in built if (k.parameters["B_r"], k.parameters["B_c"]) == (B_r, B_c)]
    if not built:
        filtered = f" with {where}" if where else ""
        raise ValueError(
            f"{VARIABLE}={word}: no kernel of it{filtered} is in this build; `kernelmint info` "
            "says what is built"
        )
    return Selected(description, built)


def of_set(word: str, where: str | None = None) -> list[KernelInfo]:
    """The kernels of a set that can run here, in its order; those that no pack holds are built.

    Raises:
        ValueError: there is no such set, or none of its kernels runs here.
        BuildError: the specs are wrong, or one does not compile.
    """
    keys = on_demand.runnable(keys_of_set(word, where))
    known = {info.key: info for info in runtime.kernels(FAMILY) if info.built and info.available}
    if lacking := [key for key in keys if key not in known]:
        known |= {info.key: info for info in runtime.build(FAMILY, keys=lacking)}
    return [known[key] for key in keys]


def keys_of_set(word: str, where: str | None = None) -> list[str]:
    """The keys of flash_forward's kernels in a set, over all targets, in its order.

    Raises:
        ValueError: no target has such a set, or `where` leaves none of it.
        BuildError: the specs are wrong.
    """
    try:
        return on_demand.keys([FAMILY], _SHORT_NAMES.get(word, word), where)
    except ValueError as error:
        raise ValueError(
            f"{word}: {error}; it is all, prog, prog_all, tune, another set's name, or "
            "B_r,B_c such as 64,32"
        ) from None
