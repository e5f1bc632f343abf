"""Descriptions of kernels, with the reason why one cannot run here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from codegen.core.architectures import of_target
from codegen.core.manifest import Family, Target
from codegen.core.manifest import Kernel as Generated
from codegen.core.packs import Pack
from runtime import devices, manifest, ondemand, packs, pytorch, slices


@dataclass(frozen=True)
class KernelInfo:
    """The description of one kernel.

    Attributes:
        key: the kernel's name everywhere: `family.target.` and the tokens of its parameters.
        short: the short form, `(FP16, 128, 64, 64, 4): async+…`, if its target has one.
        family: the family, which says what is computed.
        target: the target, which says where it runs.
        parameters: the configuration, by name; dtypes as bf16, fp16, f32, ….
        derived: the values that the spec derives from the configuration (threads, …).
        is_cuda: whether the kernel takes CUDA tensors.
        built: whether the kernel's pack holds it.
        available: whether the kernel can run here, on this processor or on at least one of this
            machine's CUDA devices: it is built for them, or will be when it is first asked for.
        reason: why the kernel is not available; None if it is.
    """

    key: str
    short: str | None
    family: str
    target: str
    parameters: Mapping[str, Any]
    derived: Mapping[str, Any]
    is_cuda: bool
    built: bool
    available: bool
    reason: str | None
    _pack: Pack | None = field(default=None, repr=False, compare=False)

    @property
    def registers(self) -> int | None:
        """Returns the registers a thread, from ptxas; the most over the architectures.

        None on the CPU. Raises PackError if the pack's ptxas.csv is damaged.
        """
        return None if (used := self._resources) is None else used.registers

    @property
    def spills(self) -> int | None:
        """Returns the bytes that ptxas spilled, stores plus loads; None on the CPU. Raises as
        `registers`."""
        return None if (used := self._resources) is None else used.spills

    @property
    def _resources(self) -> manifest.Resources | None:
        return None if self._pack is None else manifest.resources(self._pack).get(self.key)


def why_not_built(family: Family, target: Target) -> str | None:
    """Returns why a pack holds none of a target's kernels, and what would build them; None if
    they are built, or their slice is fetched, when they are first asked for."""
    if ondemand.builds(family.name, None):
        from runtime.ondemand import kernels as on_demand

        return on_demand.why_not(target)
    pack = packs.of(family.name)
    if slices.is_fetched(pack, family.name, target.name):
        return None
    if why := slices.why_none(pack, family.name, target.name):
        return why
    rebuild = f"rebuild pack {pack.name} in its project, `{manifest.REBUILD}"
    if not target.is_cuda:
        return f"pack {pack.name} has no kernels of target {target.name}: {rebuild}`"
    if not pack.architectures:
        return (
            f"built without CUDA; {rebuild} -C cmake.define.KERNELMINT_CUDA=ON` "
            "(nvcc comes from PyPI if the machine has none)"
        )
    return (
        f"built for compute capability {', '.join(pack.architectures)} only; {rebuild} "
        f"-C cmake.define.CMAKE_CUDA_ARCHITECTURES={of_target(target.name)}`"
    )


def why_unavailable(pack: Pack, target: Target, shared_memory: int) -> str | None:
    """Returns why kernels that a pack holds, whose blocks take so much shared memory, run on
    none of this machine's devices, or None."""
    if not pytorch.IS_INSTALLED:
        return "PyTorch is not installed"
    if not target.is_cuda:
        return devices.why_no_isa(pack.isas)
    if why := devices.why_no_cuda():
        return why
    reasons = [
        devices.why_unavailable(target.name, pack.architectures, index)
        or devices.why_too_large(shared_memory, index)
        for index in range(devices.count())
    ]
    return None if None in reasons else reasons[0]


def _state(
    pack: Pack, family: Family, target: Target, kernel: Generated
) -> tuple[bool, str | None]:
    """Returns whether a kernel's pack holds its code, and why it cannot run here."""
    if f"{family.name}.{target.name}" not in pack.targets:
        return False, why_not_built(family, target)
    return True, why_unavailable(pack, target, kernel.shared_memory)


def infos(families: Iterable[Family], only_target: str | None = None) -> Iterator[KernelInfo]:
    """Yields the kernels of families, in the manifests' order."""
    for family in families:
        for target in family.targets:
            if only_target in (None, target.name):
                yield from infos_of(family, target, target.kernels)


def infos_of(
    family: Family,
    target: Target,
    kernels: Iterable[Generated],
    unasked: str | None = None,
) -> Iterator[KernelInfo]:
    """Yields the descriptions of a target's kernels, in the manifest's order.

    `unasked` says why they are not available. Without it the reason is looked up, which may start
    CUDA.
    """
    # By pack and shared memory: whether built, and why not available.
    states: dict[tuple[Pack, int], tuple[bool, str | None]] = {}
    held, singles = packs.of(family.name), packs.by_key(family.name)
    if held.slices and not unasked:
        held = slices.holder(held, family.name, target.name) or held
    for kernel in kernels:
        pack = singles.get(kernel.key, held)
        state = pack, kernel.shared_memory
        if state not in states:
            states[state] = (False, unasked) if unasked else _state(pack, family, target, kernel)
        built, reason = states[state]
        yield KernelInfo(
            key=kernel.key,
            short=kernel.short,
            family=family.name,
            target=target.name,
            parameters=kernel.parameters,
            derived=kernel.derived,
            is_cuda=target.is_cuda,
            built=built,
            available=reason is None,
            reason=reason,
            _pack=pack,
        )
