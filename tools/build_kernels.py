"""The command `kernelmint build`: it builds kernels into the cache, here or on a cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from codegen import completion, options
from codegen.core.home import cache_folder
from codegen.core.packs import Pack
from codegen.core.words import counted
from runtime import loading
from runtime.errors import (
    BuildError,
    InvalidArgument,
    KernelNotFound,
    PackError,
    TargetUnavailable,
)
from runtime.kernel_info import KernelInfo
from runtime.ondemand import kernels as on_demand

from .cluster import check_ray
from .cluster.errors import ClusterError, LostError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("specs", default="kernel_specs", shell_complete=completion.families)
@options.where("kernels")
@options.set_name("Of which set.", default="default", show_default=True)
@click.option(
    "--key", "keys", multiple=True, metavar="KEY", shell_complete=completion.keys,
    help="These kernels, in a set or not; repeated.",
)  # fmt: skip
@click.option(
    "--architecture", "architectures", multiple=True, type=options.Architectures(),
    help="What CUDA kernels are compiled for, such as 90a; repeated. Default: the GPUs here.",
)  # fmt: skip
@click.option(
    "--cache", "folder", type=click.Path(path_type=Path), metavar="DIR",
    help="The cache, to be shipped or shared. Default: KERNELMINT_CACHE_DIR.",
)  # fmt: skip
@click.option(
    "--profile", "traces", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Compile all of them, and put the compilers' time traces into DIR, for `kernelmint "
    "build-profile DIR`.",
)  # fmt: skip
@click.option(
    "--ray", "address", metavar="ADDRESS",
    help="Build on the nodes of a Ray cluster: HOST:PORT, or auto.",
)  # fmt: skip
def main(
    specs: str,
    where: str | None,
    set_name: str,
    keys: tuple[str, ...],
    architectures: tuple[tuple[str, ...], ...],
    folder: Path | None,
    traces: Path | None,
    address: str | None,
) -> None:
    """Builds kernels of SPECS, a folder of specs or the name of a family, into the cache.

    \b
    Examples:
      kernelmint build my_kernels/kernel_specs --where \"target == 'cpu'\"
      kernelmint build my_family --key my_family.cpu.f32
      kernelmint build kernel_specs --architecture 90a --cache shipped
      kernelmint build flash_decode --where "d_head == 128" --architecture 90 --profile traces
      kernelmint build kernel_specs --set tune --architecture 90a --ray head:6379
    """
    if folder is not None:
        os.environ["KERNELMINT_CACHE_DIR"] = str(folder)
    if specs == "kernel_specs" and not Path(specs).is_dir():
        raise click.UsageError(
            "no folder kernel_specs here: `kernelmint new FAMILY` starts one, or name another "
            "folder of specs, or an installed family"
        )
    if traces is not None:
        if address is not None:
            raise click.UsageError("pass --profile or --ray, not both")
        try:
            traces.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"--profile {traces}: {error.strerror}") from None
    begin = time.monotonic()
    try:
        named = [*itertools.chain(*architectures)] or None
        if address is None:
            built = loading.build(
                specs, where, set_name=set_name, keys=keys or None, architectures=named,
                traces=traces,
            )  # fmt: skip
        else:
            built = _built_on_nodes(
                address, *loading.chosen(specs, where, set_name, keys or None, named), named
            )
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    except (BuildError, ClusterError, KernelNotFound, PackError, TargetUnavailable) as error:
        raise click.ClickException(str(error)) from None
    width = max(len(info.key) for info in built)
    for info in built:
        used = "" if info.registers is None else f"  {info.registers:4} regs, {info.spills} spilled"
        click.echo(f"{info.key:<{width}}{used}".rstrip())
    seconds = time.monotonic() - begin
    where_to = folder or cache_folder()
    click.echo(f"{counted(len(built), 'kernel')} in {where_to}, {seconds:.1f} s", err=True)


def _built_on_nodes(
    address: str, names: Sequence[str], keys: Sequence[str], architectures: Sequence[str] | None
) -> list[KernelInfo]:
    """Builds kernels on a cluster; returns them. Raises ClusterError if one does not compile, after
    the others are built."""
    check_ray(address)
    from .cluster import builds
    from .cluster.nodes import Cluster
    from .cluster.progress import Told
    from .cluster.work import of_families

    requests = {key: on_demand.request(key, architectures) for key in dict.fromkeys(keys)}
    cluster = Cluster(address, of_families(names, requests))
    cluster.look()
    built: dict[str, Pack] = {}
    failed = 0
    with (
        Told("built", "kernels", len(requests), cluster) as told,
        contextlib.closing(builds.build(cluster, [*requests.values()])) as results,
    ):
        for key, result in results:
            if isinstance(result, LostError):
                told.lost(result)
            elif isinstance(result, BuildError):
                failed += 1
                told.failed(str(result))
            else:
                built[key] = on_demand.opened(requests[key], result)
                told.done()
    infos = loading.add(names, built)
    if failed:
        raise ClusterError(f"{counted(failed, 'kernel')} of {len(requests)} failed")
    return infos


if __name__ == "__main__":
    main(prog_name="kernelmint build")
