"""Theoretical occupancy: how many warps of a kernel a multiprocessor holds, and what limits it.

The limits are codegen/core/hardware.py's; the rounding is that of CUDA's own calculator,
cuda_occupancy.h, with which the tests compare every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from codegen.core.architectures import of_code
from codegen.core.hardware import LIMITS, REGISTERS, REGISTERS_THREAD, THREADS

WARP = 32
_PARTITIONS = 4  # parts of a multiprocessor's registers
_REGISTER_UNIT = 256  # registers of a warp are rounded up to it
_SHARED_UNIT = 128  # bytes
_RESERVED = 1024  # bytes of shared memory that the driver takes for each block
_SHORT = {"registers": "regs", "shared memory": "smem", "barriers": "bar"}


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of a multiprocessor."""

    blocks: int
    warps: int
    fraction: float  # share of the warps that it can hold
    limiters: tuple[str, ...]  # some of registers, warps, shared memory, barriers, blocks

    def __str__(self) -> str:
        return f"{self.fraction:.0%} ({' and '.join(self.limiters)})"

    @property
    def short(self) -> str:
        """Returns the same for a narrow column: `25% regs smem`."""
        return " ".join([f"{self.fraction:.0%}", *(_SHORT.get(n, n) for n in self.limiters)])


def capability(arch: str | None) -> int | None:
    """Returns the compute capability of an architecture, 90 for sm_90a; None for other names."""
    named = of_code(arch or "")
    return named.capability if named else None


def reserved(arch: str | None) -> int:
    """Returns the bytes of the driver's that a binary counts among a block's shared memory."""
    return _RESERVED if (capability(arch) or 0) >= 90 else 0


def occupancy(
    arch: str | None, registers: int, threads: int, shared_memory: int, barriers: int = 0
) -> Occupancy | None:
    """Returns the occupancy of a kernel; None for an unknown architecture.

    Args:
        arch: as in a log, sm_90a.
        registers: per thread.
        threads: of a block.
        shared_memory: bytes of a block, static and dynamic, without what the driver reserves.
        barriers: named barriers of a block.
    """
    limits = LIMITS.get(capability(arch) or 0)
    if limits is None or threads < 1:
        return None
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    rounded = -(-warps // _PARTITIONS) * _PARTITIONS
    shared = -(-(shared_memory + _RESERVED) // _SHARED_UNIT) * _SHARED_UNIT
    blocks = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if threads > THREADS:
        blocks["warps"] = 0
    if registers > REGISTERS_THREAD or per_warp * rounded > REGISTERS:
        blocks["registers"] = 0
    elif registers:
        blocks["registers"] = REGISTERS // _PARTITIONS // per_warp * _PARTITIONS // warps
    fits = shared_memory <= limits.shared_memory_block
    blocks["shared memory"] = limits.shared_memory // shared if fits else 0
    if barriers and limits.barriers:
        blocks["barriers"] = limits.barriers // barriers
    resident = min(blocks.values())
    return Occupancy(
        resident,
        resident * warps,
        resident * warps / limits.warps,
        tuple(name for name, most in blocks.items() if most == resident),
    )


@lru_cache(1 << 12)
def highest(
    arch: str | None, registers: int, shared_memory: int, barriers: int
) -> Occupancy | None:
    """Returns the highest occupancy that a launch of a kernel can have, whatever its block's size
    is, and without shared memory that a launch asks for; None for an unknown architecture."""
    sizes = range(WARP, THREADS + 1, WARP)
    of_sizes = [occupancy(arch, registers, size, shared_memory, barriers) for size in sizes]
    return max(filter(None, of_sizes), key=lambda known: known.fraction, default=None)
