"""Limits of a multiprocessor of each compute capability, as far as they decide what can be
launched.

The figures are those of the CUDA C++ Programming Guide's "Technical Specifications per Compute
Capability". Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.core.architectures import Architecture

THREADS = 1024  # the most of a block, on every capability
REGISTERS = 65536  # 32-bit, of a multiprocessor and the most of a block
REGISTERS_THREAD = 255  # the most of a thread


@dataclass(frozen=True)
class Limits:
    """The resources of a multiprocessor."""

    warps: int
    blocks: int
    shared_memory: int  # bytes
    shared_memory_block: int  # bytes, the most that a block may opt in to
    barriers: int | None  # None: CUDA's occupancy calculator knows no such limit here


# By capability, 80 for 8.0.
LIMITS = {
    80: Limits(64, 32, 164 << 10, 163 << 10, None),
    86: Limits(48, 16, 100 << 10, 99 << 10, None),
    87: Limits(48, 16, 164 << 10, 163 << 10, None),
    89: Limits(48, 24, 100 << 10, 99 << 10, None),
    90: Limits(64, 32, 228 << 10, 227 << 10, 64),
    100: Limits(64, 32, 228 << 10, 227 << 10, 64),
    103: Limits(64, 32, 228 << 10, 227 << 10, 64),
    120: Limits(48, 24, 100 << 10, 99 << 10, 24),
    121: Limits(48, 24, 100 << 10, 99 << 10, 24),
}


def capabilities(architecture: Architecture) -> tuple[int, ...]:
    """Returns the known capabilities that a target named after an architecture runs on."""
    return tuple(filter(architecture.suits, LIMITS))


def shown(capability: int) -> str:
    """Returns a capability as people write it: 8.0 for 80."""
    return f"{capability // 10}.{capability % 10}"
