"""The command `kernelmint cache`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from codegen import options
from codegen.core import manifest, packs
from codegen.core.words import counted
from runtime import listing
from runtime import slices as here
from runtime.errors import (
    BuildError,
    InvalidArgument,
    PackError,
)
from runtime.ondemand import kernels as on_demand
from runtime.ondemand import slices
from runtime.ondemand.cache import Usage, is_whole
from runtime.ondemand.shared import PLACE, of_environment
from runtime.packs import all_packs


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Shows kernels that were built on demand, and fetches slices."""


@main.command()
@click.argument("pack")
@click.option(
    "--slice", "names", multiple=True, metavar="NAME",
    help="This slice, such as sm90; repeated. Default: those of the GPUs here.",
)  # fmt: skip
@click.option(
    "--from", "store", envvar=here.VARIABLE, required=True, metavar="STORE",
    help="A folder or an address, as `kernelmint split --store` lays it out. Default: "
    f"{here.VARIABLE}.",
)  # fmt: skip
@click.option(
    "--to", "mirror", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Copy them into DIR, a store for machines without a network, not into the cache.",
)  # fmt: skip
def fetch(pack: str, names: tuple[str, ...], store: str, mirror: Path | None) -> None:
    """Fetches slices of PACK, whose hashes it names, into the cache.

    \b
    Examples:
      kernelmint fetch my_kernels --slice sm90 --from https://example.org/slices
      kernelmint fetch my_kernels --slice sm80 --slice sm90 --from /mnt/slices --to mirror
    """
    known = {each.name: each for each in all_packs()}
    try:
        listing.check_name("pack", pack, [*known])
        for part in here.chosen(known[pack], names):
            if mirror is not None:
                place = slices.copy(part, store, mirror)
            else:
                place = slices.fetch(known[pack], part, store).folder
            click.echo(f"slice {part.name} of {pack}: {part.size / 1e6:.2f} MB, {place}")
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    except BuildError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.option(
    "--prune", type=options.Size(),
    help="Remove what was unused for the longest time, until no more than SIZE is left; 0: all.",
)  # fmt: skip
@click.option(
    "--older-than", type=options.Duration("d"),
    help="Remove what was not used for so long: 12h, 30d, or a number of days.",
)  # fmt: skip
@click.option(
    "--shared", "is_shared", is_flag=True,
    help="The cache that KERNELMINT_SHARED_CACHE names: its files and their bytes.",
)  # fmt: skip
def cache(as_json: bool, prune: int | None, older_than: float | None, is_shared: bool) -> None:
    """Lists what was built on demand, the last used first, or removes it.

    \b
    Examples:
      kernelmint cache
      kernelmint cache --prune 2G --older-than 30d
      kernelmint cache --shared --prune 20G
    """
    most = 2**63 if prune is None else prune
    oldest = 0.0 if older_than is None else time.time() - older_than
    removes = prune is not None or older_than is not None
    if is_shared:
        _show_shared(as_json, (most, oldest) if removes else None)
        return
    store = on_demand.cache()
    if removes:
        removed = store.prune(most, oldest)
        freed = sum(usage.size for usage in removed)
        click.echo(
            f"removed {counted(len(removed), 'pack')}, {freed / 1e6:.1f} MB, from {store.folder}"
        )
        return
    usages = store.packs()
    entries = [_entry(usage) for usage in usages]
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["used"]))
        runs_on = ", ".join(entry["built_for"]) or "no kernels"
        click.echo(f"{used}  {entry['size'] / 1e6:6.2f} MB  {entry['key']}  ({runs_on})")
    total = sum(usage.size for usage in usages)
    click.echo(f"{counted(len(usages), 'pack')}, {total / 1e6:.1f} MB, in {store.folder}")


def _show_shared(as_json: bool, limits: tuple[int, float] | None) -> None:
    """Lists the files of the shared cache, or removes those beyond limits."""
    try:
        shared = of_environment()
        if shared is None:
            raise click.UsageError(f"--shared: {PLACE} names no shared cache")
        place, items = shared.settings.place, shared.evict(*limits) if limits else shared.usages()
    except BuildError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{PLACE}: {error}") from None
    total = f"{counted(len(items), 'file')}, {sum(item.size for item in items) / 1e6:.1f} MB"
    if limits:
        click.echo(f"removed {total}, from {place}")
    elif as_json:
        click.echo(json.dumps([asdict(item) for item in items], indent=1))
    else:
        for item in items:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used))
            click.echo(f"{used}  {item.size / 1e6:6.2f} MB  {item.name}")
        click.echo(f"{total}, in {place}")


def _entry(usage: Usage) -> dict[str, Any]:
    """Returns a pack, as --json prints it."""
    key, built_for = _built(usage.folder)
    return {
        "key": key,
        "built_for": built_for,
        "size": usage.size,
        "used": usage.used,
        "folder": str(usage.folder),
    }


def _built(folder: Path) -> tuple[str, list[str]]:
    if not is_whole(folder):
        return "damaged: built anew when it is asked for", []
    try:
        pack = packs.read(folder)
        if pack.slice_name:
            return f"{pack.name}, slice {pack.slice_name}", [f"sm_{a}" for a in pack.architectures]
        (family,) = manifest.read(folder / packs.MANIFEST).families
    except (ValueError, PackError):  # a pack of another form
        return "built by another version of Kernelmint, which alone uses it", []
    keys = [kernel.key for target in family.targets for kernel in target.kernels]
    built_for = [*pack.isas, *(f"sm_{name}" for name in pack.architectures)]
    return keys[0] if built_for else family.name, built_for


if __name__ == "__main__":
    main(prog_name="python -m runtime.ondemand")
