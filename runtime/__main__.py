"""`kernelmint info`: what this installation has, what can run here, and why not."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Iterable
from typing import Any

import click

from codegen.core import home
from codegen.core.home import cache_folder
from codegen.core.manifest import Family
from codegen.core.packs import Pack
from codegen.core.verified import VerifiedError
from runtime import (
    KernelInfo,
    _native,
    devices,
    errors,
    listing,
    manifest,
    packs,
    pytorch,
    slices,
    verified,
)

if pytorch.IS_INSTALLED:
    import torch


def _version() -> str:
    try:
        return importlib.metadata.version("kernelmint")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch() -> dict[str, Any]:
    """Returns what depends on PyTorch; each value is None if PyTorch is not installed."""
    if not pytorch.IS_INSTALLED:
        return dict.fromkeys(("torch", "torch_cuda", "tensors", "threads"))
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "tensors": "DLPack exchange table" if _native.has_exchange_api() else "Python attributes",
        "threads": torch.get_num_threads(),
    }


def _cpu_isa() -> str:
    try:
        return _native.active_cpu_isa()
    except (errors.InvalidArgument, errors.TargetUnavailable) as error:
        return f"none: {error}"


def _verified(family: Family, target: str, infos: Iterable[KernelInfo]) -> dict[str, int]:
    """Counts the kernels that `kernelmint verify` found right as they are built here, by device.
    If the rows cannot be read, the one entry is the reason, with 0."""
    try:
        return verified.where(family, target, {info.key for info in infos if info.built})
    except (VerifiedError, errors.PackError) as error:
        return {str(error): 0}


def _slices(pack: Pack) -> dict[str, str | None]:
    """Returns the folder of each slice that is here, and None for the others of a pack."""
    here = {part.slice_name: str(part.folder) for part in slices.here(pack)}
    return {part.name: here.get(part.name) for part in pack.slices}


def collect() -> dict[str, Any]:
    """Collects everything that `info` shows, as plain data."""
    targets = []
    for family in manifest.families():
        for target in family.targets:
            infos = listing.kernels(family.name, target.name)
            targets.append(
                {
                    "family": family.name,
                    "target": target.name,
                    "generated": len(infos),
                    "built": sum(info.built for info in infos),
                    "available": sum(info.available for info in infos),
                    "verified": _verified(family, target.name, infos),
                    "reason": next((info.reason for info in infos if info.reason), None),
                }
            )
    return {
        "kernelmint": _version(),
        "python": platform.python_version(),
        **_torch(),
        "extension": _native.__file__,
        "abi": _native.abi,
        "compiler": _native.compiler,
        "cpu_isa": _cpu_isa(),
        "devices": [dataclasses.asdict(device) for device in devices.properties()],
        "packs": [
            {
                "name": pack.name,
                "distribution": pack.distribution,
                "folder": str(pack.folder),
                "fingerprint": pack.fingerprint,
                "families": list(pack.families),
                "architectures": list(pack.architectures),
                "cpu_isas": list(pack.isas),
                "slices": _slices(pack),
                "settings": dict(pack.settings),
                "changed_sources": packs.changed_sources(pack, home.ROOT)
                if home.IN_CHECKOUT and pack.name == "kernelmint"
                else [],
            }
            for pack in packs.all_packs()
        ],
        "cache": str(cache_folder()),
        "faults": [fault.reason for fault in packs.faults()],
        "targets": targets,
    }


def show(facts: dict[str, Any]) -> None:
    """Prints the facts that `collect` returns, for people."""
    rows = [
        ("kernelmint", facts["kernelmint"]),
        ("extension", facts["extension"]),
        ("built", f"{facts['compiler']}; ABI of packs {facts['abi']}"),
        ("python", facts["python"]),
    ]
    if facts["torch"] is None:
        rows += [
            ("PyTorch", "not installed: kernels can be listed and built, not called"),
            ("CPU", facts["cpu_isa"]),
        ]
    else:
        rows += [
            ("torch", f"{facts['torch']}, CUDA {facts['torch_cuda'] or 'none'}"),
            ("tensors by", facts["tensors"]),
            ("CPU", f"{facts['cpu_isa']}; {facts['threads']} threads"),
        ]
    rows += [
        (f"GPU {device.index}", str(device))
        for device in (devices.Properties(**d) for d in facts["devices"])
    ]
    if not facts["devices"]:
        rows.append(("GPUs", "none" if facts["torch"] else "unknown: PyTorch finds them"))
    for pack in facts["packs"]:
        settings = pack["settings"]
        compiler = settings.get("c++", "unknown compiler")
        cuda = (
            f"nvcc {settings.get('nvcc', 'unknown')}, for {', '.join(pack['architectures'])}"
            if pack["architectures"]
            else f"nvcc {settings.get('nvcc', 'unknown')}, in slices"
            if pack["slices"]
            else "without CUDA"
        )
        debug = "; debug" if settings.get("debug") == "ON" else ""
        rows += [
            ("pack", f"{pack['name']} ({pack['distribution'] or 'loaded'}), {pack['folder']}"),
            ("", f"{compiler}, for {', '.join(pack['cpu_isas'])}; {cuda}{debug}"),
            ("", f"build {pack['fingerprint']}"),
            *(("", f"slice {n}: {place or 'not here'}") for n, place in pack["slices"].items()),
            *(
                ("", f"{name}: {value.strip()}")
                for name, value in settings.items()
                if value.strip()
            ),
            *(("", f"changed since: {name}") for name in pack["changed_sources"]),
        ]
    rows.append(("cache", f"{facts['cache']}, of what is built on demand: `kernelmint cache`"))
    rows += [("unusable", reason) for reason in facts["faults"]]
    for name, value in rows:
        click.echo(f"{name:<12}{value}")
    wide = max([16, *(len(row["family"]) for row in facts["targets"])]) + 2
    click.echo(f"\n{'family':<{wide}}{'target':<10}{'generated':>9}{'built':>8}{'available':>11}")
    for row in facts["targets"]:
        click.echo(
            f"{row['family']:<{wide}}{row['target']:<10}{row['generated']:>9}{row['built']:>8}"
            f"{row['available']:>11}{'  ' + row['reason'] if row['reason'] else ''}"
        )
        for device, count in row["verified"].items():
            click.echo(f"{'':<{wide + 10}}{count:>9} verified on {device}")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Shows kernels by key."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(as_json: bool) -> None:
    """Shows versions, devices, targets, counts and reasons.

    \b
    Examples:
      kernelmint info
      kernelmint info --json
    """
    if as_json:
        click.echo(json.dumps(collect(), indent=1))
    else:
        show(collect())


if __name__ == "__main__":
    main(prog_name="python -m runtime")
