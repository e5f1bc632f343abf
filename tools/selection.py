"""The kernels of a family that a tool works on: `--kernel`, `--where`, or the variable KERNELS.

KERNELS is `all` (as if it were not set), or the name of a set such as `tune`, whose kernels are
built if no pack holds them. A family's tools.py may give further words a meaning, by `selected`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import click
import torch

import runtime
from runtime import KernelInfo, ondemand
from runtime.ondemand import kernels as on_demand

from .families import hook

VARIABLE = "KERNELS"


@dataclass(frozen=True)
class Selected:
    """The kernels chosen, in the manifest's order."""

    description: str
    kernels: list[KernelInfo]


def select(family: str, where: str | None = None) -> Selected:
    """Returns the kernels of a family that a user asked for. Kernels of a set, and of a folder of
    specs, are built if no pack holds them.

    Args:
        family: its name.
        where: an expression over parameters and derived values, within the selection of KERNELS.

    Raises:
        ValueError: KERNELS is unknown, or no built kernel is left; the message says what to do.
        KernelNotFound, TargetUnavailable, BuildError: as `runtime.kernel`.
    """
    word = os.environ.get(VARIABLE, "all")
    set_name, within = hook(family, "selected", lambda word: (word, None))(word)
    if set_name == "all" and family in ondemand.sources:
        set_name = "default"
    if set_name != "all":
        return Selected(f"set {set_name}", of_set(family, set_name, where))
    both = f"({within}) and ({where})" if within and where else within or where
    built = [info for info in runtime.kernels(family, where=both) if info.built]
    if not built:
        filtered = f" with {where}" if where else ""
        raise ValueError(
            f"{VARIABLE}={word}: no kernel of it{filtered} is in this build; `kernelmint info` "
            "says what is built"
        )
    return Selected(within or "all", built)


def for_device(
    family: str, target: str | None, where: str | None, set_name: str | None
) -> tuple[torch.device, list[KernelInfo]]:
    """Returns the device and the kernels to measure: the GPU if there is one, else the CPU, also
    for the target cpu. Kernels of a set are built if no pack holds them.

    Raises click.UsageError without such a kernel.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and target != "cpu" else "cpu")
    try:
        if set_name is None:
            infos = runtime.kernels(family, target, where)
        else:  # kernels of other targets need not be built
            parts = [f"({where})"] if where else []
            parts += [f"target == '{target}'"] if target else []
            infos = of_set(family, set_name, " and ".join(parts) or None)
    except (ValueError, KeyError, runtime.BuildError) as error:
        raise click.UsageError(str(error.args[0])) from None
    on_gpu = device.type == "cuda"
    return device, [info for info in infos if info.available and info.is_cuda == on_gpu]


def nothing_runs() -> click.UsageError:
    """Returns the error for a selection of which no kernel is left to measure."""
    return click.UsageError(
        "no built kernel of that kind runs here; `kernelmint info` says what there is"
    )


def of_set(family: str, set_name: str, where: str | None = None) -> list[KernelInfo]:
    """Returns the kernels of a set that can run here, in its order; those that no pack holds are
    built.

    Raises:
        ValueError: there is no such set, or none of its kernels runs here.
        BuildError: the specs are wrong, or one does not compile.
    """
    keys = on_demand.runnable(keys_of_set(family, set_name, where))
    by_key = {info.key: info for info in runtime.kernels(family) if info.built and info.available}
    if lacking := [key for key in keys if key not in by_key]:
        by_key |= {info.key: info for info in runtime.build(family, keys=lacking)}
    return [by_key[key] for key in keys]


def keys_of_set(family: str, set_name: str, where: str | None = None) -> list[str]:
    """Returns the keys of a family's kernels in a set, over all targets, in its order.

    Raises:
        ValueError: no target has such a set, or `where` leaves none of it.
        BuildError: the specs are wrong.
    """
    try:
        return on_demand.keys([family], set_name, where)
    except ValueError as error:
        raise ValueError(f"{set_name}: {error}") from None
