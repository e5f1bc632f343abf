"""Theoretical occupancy: how many warps of a kernel a multiprocessor holds, and what limits it.

The limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; the rounding is that of CUDA's own calculator, cuda_occupancy.h, with which the tests
compare every row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WARP = 32
REGISTERS = 65536  # 32-bit, of a multiprocessor and the most of a block; in four equal partitions
_PARTITIONS = 4
_REGISTER_UNIT = 256  # registers of a warp are rounded up to it
_SHARED_UNIT = 128  # bytes
_RESERVED = 1024  # bytes of shared memory that the driver takes for each block
_MOST_THREADS = 1024  # of a block


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds."""

    warps: int
    blocks: int
    shared_memory: int  # bytes
    shared_memory_block: int  # bytes, the most that a block may opt in to
    barriers: int | None  # None: CUDA's calculator knows no such limit here


LIMITS = {
    (8, 0): Limits(64, 32, 164 << 10, 163 << 10, None),
    (8, 6): Limits(48, 16, 100 << 10, 99 << 10, None),
    (8, 9): Limits(48, 24, 100 << 10, 99 << 10, None),
    (9, 0): Limits(64, 32, 228 << 10, 227 << 10, 64),
    (10, 0): Limits(64, 32, 228 << 10, 227 << 10, 64),
    (12, 0): Limits(48, 24, 100 << 10, 99 << 10, 24),
}


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of a multiprocessor."""

    blocks: int
    warps: int
    fraction: float  # of the warps that it can hold
    limiters: tuple[str, ...]  # of: registers, warps, shared memory, barriers, blocks

    def __str__(self) -> str:
        return f"{self.fraction:.0%} ({' and '.join(self.limiters)})"


def capability(arch: str | None) -> tuple[int, int] | None:
    """Compute capability of an architecture such as sm_90a, None where it is not one."""
    match = re.fullmatch(r"(?:sm_)?(\d+)(\d)[a-z]?", arch or "")
    return (int(match[1]), int(match[2])) if match else None


def occupancy(
    arch: str | None, registers: int, threads: int, shared_memory: int, barriers: int = 0
) -> Occupancy | None:
    """Occupancy of a kernel; None for an architecture that is not in `LIMITS`.

    Args:
        arch: as in a log, sm_90a.
        registers: per thread.
        threads: of a block.
        shared_memory: bytes of a block, static and dynamic, without what the driver reserves.
        barriers: named barriers of a block.
    """
    limits = LIMITS.get(capability(arch) or (0, 0))
    if limits is None or threads < 1:
        return None
    warps = -(-threads // WARP)
    per_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    rounded = -(-warps // _PARTITIONS) * _PARTITIONS
    shared = -(-(shared_memory + _RESERVED) // _SHARED_UNIT) * _SHARED_UNIT
    blocks = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if threads > _MOST_THREADS:
        blocks["warps"] = 0
    if registers > 255 or per_warp * rounded > REGISTERS:
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
