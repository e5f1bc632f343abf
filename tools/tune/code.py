"""The identity of a built kernel: its machine code, its compiler, and ptxas's figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from codegen.core import machine_code
from codegen.core.packs import Pack
from codegen.core.ptxas_rows import read_csv

from ..ptx_report.gate import over_budget
from .errors import TuningError

# Sections of a cubin: instructions, constants, needs of a launch (registers, parameters), initial
# values; not the names and lines of its sources.
_DEVICE = (".text", ".nv.constant", ".nv.info", ".nv.global")


def code_hash(pack: Pack, family: str) -> str:
    """Returns the hash of the machine code of a pack of one kernel: ptxas's code, and the host's or
    the CPU's part.

    Other text of the library, such as the hash of its sources, does not count. Raises TuningError
    if the device's code is compressed.
    """
    path = pack.library(family)
    library = path.read_bytes()
    digest = hashlib.sha256()
    for part in machine_code.host(library, (pack.fingerprint, *pack.generated.values())):
        digest.update(part)
    cubins = list(machine_code.cubins(library))
    if not cubins and machine_code.FATBIN in dict(machine_code.sections(library)):
        # nvcc 13.0 compresses them if it is asked to
        raise TuningError(
            f"{path}: its device code is compressed, so that it cannot be compared: "
            "build it without --compress-mode (CUDAFLAGS)"
        )
    for cubin in cubins:
        for kind, part in machine_code.sections(cubin):
            if kind.startswith(_DEVICE):
                digest.update(part)
    return digest.hexdigest()[:16]


def toolchain(pack: Pack) -> str:
    """Returns the compiler of a pack's kernels: ``nvcc 13.0.88``."""
    name = "nvcc" if "nvcc" in pack.settings else "c++"
    return f"{name} {pack.settings[name]}"


def offence(pack: Pack, key: str, budget: Mapping[str, int]) -> str | None:
    """Returns why ptxas's figures rule a kernel out: spills or more beyond its target's budget, or
    a note of C75xx, which says that wgmma is serialised. None for an admissible kernel."""
    if not pack.ptxas.exists():  # on the CPU
        return None
    target = key.rpartition(".")[0]
    for row in read_csv(pack.ptxas):
        if row.kernel_config == key or row.kind != "kernel":  # also functions that it calls
            for reason in over_budget(row, {"c75": 0, **budget}, target):
                return f"ptxas: {reason}"
    return None
