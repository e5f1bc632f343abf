"""The kernels here that `kernelmint verify` found right."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from pathlib import Path

from codegen.core import machine_code, verified
from codegen.core.manifest import Family
from codegen.core.packs import Pack, PackError
from codegen.core.ptxas_rows import ReportError, read_csv
from codegen.core.verified import Row, VerifiedError
from runtime import _native, devices, manifest, packs, slices
from runtime.errors import InvalidArgument, TargetUnavailable, unlisted
from runtime.kernel_info import KernelInfo

VARIABLE = "KERNELMINT_REQUIRE"


def file_of(family: Family, target: str) -> Path:
    """Returns the file of a target's rows: it lies beside the spec."""
    root, _, folder = family.spec_folder.partition("/")
    return packs.of(family.name).specs[root] / folder / verified.name_of(target)


@functools.cache
def _rows(path: Path) -> dict[tuple[str, str, str], list[Row]]:
    """Returns the rows of a file, by key, architecture and code."""
    rows: dict[tuple[str, str, str], list[Row]] = {}
    for row in verified.read(path):
        rows.setdefault((row.kernel_config, row.arch, row.code), []).append(row)
    return rows


@functools.cache
def _cuda_codes(pack: Pack, family: str) -> dict[tuple[str, int], str]:
    try:
        keys = {row.symbol: row.key for row in read_csv(pack.ptxas) if row.kind == "kernel"}
    except (OSError, ReportError) as error:
        raise PackError(f"{pack}: {pack.ptxas}: {error}: reinstall it") from None
    return machine_code.of_cuda_kernels(pack.library(family), keys.get)


@functools.cache
def _cpu_code(pack: Pack, family: str) -> str:
    return machine_code.of_cpu_kernels(
        pack.library(family), (pack.fingerprint, *pack.generated.values())
    )


def code_of(info: KernelInfo, index: int = 0) -> tuple[str, str] | None:
    """Returns the architecture and the hash of the machine code that a kernel runs
    as on the CPU or on a CUDA device; None if nothing of it runs there, or its code is
    compressed."""
    pack = slices.of(info.family, info.key)
    if not info.is_cuda:
        return _native.active_cpu_isa(), _cpu_code(pack, info.family)
    here = devices.capability_of(index)
    codes = _cuda_codes(pack, info.family)
    fitting = [a for key, a in codes if key == info.key and a // 10 == here // 10 and a <= here]
    if not fitting:
        return None
    return f"sm_{max(fitting)}", codes[info.key, max(fitting)]


def rows_of(info: KernelInfo, index: int = 0) -> list[Row]:
    """Returns the rows of the very code that a kernel runs as on a device, wherever it was
    verified.

    Raises VerifiedError if the file of rows cannot be read.
    """
    code = code_of(info, index)
    path = file_of(manifest.family(info.family), info.target)
    return [] if code is None else _rows(path).get((info.key, *code), [])


def where(family: Family, target: str, keys: Collection[str]) -> dict[str, int]:
    """Counts the built kernels of a target that were found right as they are compiled here, by
    the devices that they were verified on. Raises VerifiedError, PackError."""
    right_keys: dict[str, set[str]] = {}
    for (key, arch, code), rows in _rows(file_of(family, target)).items():
        if key in keys and code == _code_for(slices.of(family.name, key), family.name, key, arch):
            for row in rows:
                if row.is_right:
                    right_keys.setdefault(row.device, set()).add(key)
    return {device: len(right) for device, right in sorted(right_keys.items())}


def _code_for(pack: Pack, family: str, key: str, arch: str) -> str | None:
    capability = arch.removeprefix("sm_")
    if capability == arch:
        return _cpu_code(pack, family)
    return _cuda_codes(pack, family).get((key, int(capability))) if capability.isdigit() else None


def require(info: KernelInfo) -> None:
    """Raises, with KERNELMINT_REQUIRE=verified, TargetUnavailable unless the kernel was found
    right, and never wrong, as the code that it runs as on each device here that can run it."""
    setting = os.environ.get(VARIABLE, "")
    if not setting:
        return
    if setting != "verified":
        raise InvalidArgument(unlisted(VARIABLE, setting, ["verified"]))
    indices = [0]
    if info.is_cuda:
        indices = [i for i in range(devices.count()) if not devices.why_unsuitable(info.target, i)]
    for index in indices:
        try:
            rows = rows_of(info, index)
        except VerifiedError as error:
            raise TargetUnavailable(f"{info.key}: {error}") from None
        where = devices.describe(index) if info.is_cuda else "this processor"
        wrong = next((row for row in rows if not row.is_right), None)
        if wrong is not None or not rows:
            what = (
                f"was found wrong on {wrong.device}: {wrong.outcome}"
                if wrong
                else (f"has not been verified as it is compiled here for {where}")
            )
            raise TargetUnavailable(
                f"{info.key} {what}, and {VARIABLE} is `verified`: `kernelmint verify "
                f"{info.family} --kernel {info.key}`, or choose another"
            )
