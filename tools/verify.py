"""Each kernel against its family's reference, in a process that may die; the results are kept.

    kernelmint verify [FAMILY|PACK] [--kernel KEY] [--where EXPR] [--sanitize] [--timeout SECONDS]

A kernel's calls and their right results are those of sanity-check (tools/problem.py). The results
are written beside the baselines, `kernel_specs/<family>/<target>.verified.csv`, one row for each
kernel, architecture, toolchain and device, with the hash of the kernel's machine code, and travels
with the specs. `kernelmint info` counts them, and KERNELMINT_REQUIRE=verified refuses a kernel
whose machine code was not verified as right. A kernel of which nothing was compared gets no row.
Exits with 1 if a kernel is not right, or if none was compared.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import click
import torch

import runtime
from codegen import completion, options
from codegen.core import verified
from codegen.core.ptxas_rows import ReportError
from codegen.core.verified import RIGHT, Row, VerifiedError
from codegen.core.words import counted, one_line
from codegen.ptxas.files import write_text
from runtime import KernelInfo, devices, manifest, ondemand, packs, slices
from runtime import verified as found_before
from runtime.ondemand import kernels as on_demand

from .cluster import check_ray
from .cluster.errors import ClusterError, LostError
from .cluster.node import Work, know
from .families import all_named
from .families import know as know_key
from .problem import NoProblemError
from .process import NoAnswerError, NotStartedError, Process
from .race_check import CHECKERS, find_sanitizer, run_under
from .sanity_check import check, selected_of, unchecked, why_not_compared
from .selection import keys_of_set

NOT_COMPARED = "not compared"
_REFUSALS = (runtime.BuildError, runtime.KernelNotFound, runtime.TargetUnavailable)


def verify(key: str, seed: int) -> str:
    """Returns "right", or a description of a kernel's errors on the cases of its family; or why
    nothing was compared."""
    info = runtime.kernel(key).info
    differences = check(info, counting=False, seed=seed)
    wrong = [d for d in differences if not d.passed]
    if info.is_cuda:
        torch.cuda.synchronize()
    if not differences:
        return f"{NOT_COMPARED}: {why_not_compared(info)}"
    return f"wrong: {wrong[0]}" if wrong else RIGHT


def serve(pipe: Connection, folders: Sequence[str], seed: int) -> None:
    """Runs in the process: verifies the kernels that it is sent."""
    for folder in folders:
        runtime.load(folder)
    pipe.send("ready")
    while True:
        key = pipe.recv()
        try:
            pipe.send((verify(key, seed), False))
        except Exception as error:  # an error of CUDA, for one, which stays in its process
            pipe.send((f"failed: {type(error).__name__}: {error}", True))


def _verified(process: Process, key: str, timeout: float) -> str:
    """Returns the result of `verify` in a process, or how the kernel ended the process."""
    if not process.is_alive():
        process.stop()
    try:
        process.send(key)
        outcome, is_broken = process.receive(timeout)
    except NotStartedError as error:
        raise click.ClickException(str(error)) from None
    except NoAnswerError as error:
        return f"failed: {error}"
    if is_broken:
        process.stop()
    return str(outcome)


def sanitized(sanitizer: str, info: KernelInfo, tool: str) -> str:
    """Returns "right", or the findings of a tool of compute-sanitizer on a kernel."""
    done = run_under(sanitizer, tool, [f"--kernel={info.key}"])
    if done.returncode == 0 and info.key in done.stdout.splitlines():
        return RIGHT
    lines = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    findings = " ".join(line.strip("= ") for line in (lines[1:4] or done.stdout.splitlines()[-3:]))
    return f"wrong: {tool}: {findings}"


def _row(info: KernelInfo, process: Process, timeout: float, sanitizer: str | None) -> Row:
    """Returns the row of a kernel that runs here."""
    index = torch.cuda.current_device() if devices.has_cuda() else 0
    code = found_before.code_of(info, index)
    if code is None:
        raise click.ClickException(
            f"{info.key}: its device code is compressed, so that it cannot be "
            "compared: build it without --compress-mode (CUDAFLAGS)"
        )
    checks, outcome = ["reference"], _verified(process, info.key, timeout)
    if sanitizer is not None and info.is_cuda:
        for tool in CHECKERS:
            if outcome == RIGHT:
                checks.append(tool)
                outcome = sanitized(sanitizer, info, tool)
    pack = slices.of(info.family, info.key)
    device = torch.device("cuda", index) if info.is_cuda else torch.device("cpu")
    return Row(
        kernel_config=info.key,
        arch=code[0],
        toolchain=f"nvcc {pack.settings['nvcc']}" if info.is_cuda else pack.settings["c++"],
        code=code[1],
        device=devices.name(device),
        checks=" ".join(checks),
        outcome=one_line(outcome),
    )


@dataclass(frozen=True)
class Order:
    """The order of a kernel's verification on a node."""

    key: str
    timeout: float
    seed: int
    sanitize: bool


_process: Process | None = None  # a node's process keeps it from job to job


def _rows(
    kernels: Sequence[KernelInfo], timeout: float, seed: int, sanitize: bool
) -> Iterator[Row]:
    """Yields the rows of kernels that run here."""
    sanitizer = find_sanitizer() if sanitize else None
    folders = {str(source.folder) for source in ondemand.sources.values()}
    process = Process(serve, sorted(folders), seed)
    try:
        for info in kernels:
            yield _row(info, process, timeout, sanitizer)
    finally:
        process.stop()


def _runnable(name: str | None, kernel: str | None, where: str | None) -> list[KernelInfo]:
    """Returns the kernels of a command line that run here."""
    selected = [
        one for family in _families(name) for one in selected_of(family, kernel, where).values()
    ]
    kernels = [info for selection in selected for info in selection.kernels if info.available]
    if not kernels:
        reasons = [
            info.reason for selection in selected for info in selection.kernels if info.reason
        ]
        raise click.ClickException(f"nothing can run here: {reasons[0]}")
    return kernels


def on_node(work: Work, orders: Sequence[Order]) -> list[tuple[float, Row | str]]:
    """Returns the seconds and the rows of kernels, built if the node's packs and cache lack them;
    for a kernel that does not run on the node, or is not built there, why not."""
    global _process
    folders = know(work)
    results: list[tuple[float, Row | str]] = []
    for order in orders:
        begin = time.monotonic()
        if _process is None:
            _process = Process(serve, folders, order.seed)
        try:
            info = runtime.kernel(order.key, build=True).info
            sanitizer = find_sanitizer() if order.sanitize else None
            row: Row | str = info.reason or _row(info, _process, order.timeout, sanitizer)
        except (click.ClickException, ValueError, KeyError, *_REFUSALS) as error:
            row = f"{order.key}: {error} (on {platform.node()})"
        results.append((time.monotonic() - begin, row))
    return results


def _keys(name: str | None, kernel: str | None, where: str | None) -> list[str]:
    """Returns the keys that nodes verify: a kernel's, those of the default sets of specs, or those
    of the built kernels, which need not run here."""
    if kernel is not None:
        know_key(kernel)
        return [kernel]
    names = [n for family in _families(name) for n in (all_named(family) if family else [])]
    keys: list[str] = []
    for family in names or packs.families():
        if manifest.family(family).reference is not None:
            own = family in ondemand.sources
            keys += (
                keys_of_set(family, "default", where)
                if own
                else [info.key for info in runtime.kernels(family, where=where) if info.built]
            )
    if not keys:
        raise ValueError("no kernel is selected of a family that names a reference")
    return keys


def _rows_of_nodes(
    address: str, keys: Sequence[str], timeout: float, seed: int, sanitize: bool
) -> Iterator[Row]:
    """Yields the rows of kernels that nodes verify. Raises ClusterError if some have none."""
    check_ray(address)
    from .cluster.nodes import Cluster
    from .cluster.progress import Told
    from .cluster.queue import Queue, Seconds
    from .cluster.work import of_families

    families = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    cluster = Cluster(address, of_families(families, keys))
    nodes = cluster.look()
    of_cpu = [key for key in keys if key.split(".")[1] == "cpu"]
    of_cuda = [key for key in keys if key not in set(of_cpu)]
    if of_cuda and not any(node.gpus for node in nodes.values()):
        text = f"{counted(len(of_cuda), 'kernel')} left out: no node has a GPU"
        if not of_cpu:
            raise ClusterError(f"--ray {address}: {text}")
        click.echo(text, err=True)
        of_cuda = []
    seconds = Seconds(on_demand.cache().writable(), "verifications")
    total, without = len(of_cpu) + len(of_cuda), 0
    with Told("verified", "kernels", total, cluster) as told:
        for gpus, chosen in enumerate((of_cpu, of_cuda)):
            queue = Queue(chosen, seconds)
            order = functools.partial(Order, timeout=timeout, seed=seed, sanitize=sanitize)
            jobs = cluster.run(queue, f"{__package__}.verify:on_node", order, gpus=gpus)
            with contextlib.closing(jobs) as results:
                for key, result in results:
                    if isinstance(result, LostError):
                        told.lost(result)
                    elif isinstance(result, Row):
                        told.done()
                        yield result
                    else:
                        without += 1
                        told.failed(str(result) if key in str(result) else f"{key}: {result}")
            seconds.note(queue.measured)
    if without:
        raise ClusterError(f"{counted(without, 'kernel')} of {total} got no row")


def _families(name: str | None) -> list[str | None]:
    """Returns the families of a command line: for a pack, those that name a reference."""
    pack = next((pack for pack in packs.all_packs() if pack.name == name), None)
    if pack is None or name in packs.families():
        return [name]
    return [family for family in pack.families if manifest.family(family).reference is not None]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[FAMILY|PACK]", required=False, shell_complete=completion.families)
@click.option("--kernel", metavar="KEY", shell_complete=completion.keys, help="Only this kernel.")
@options.where("kernels")
@click.option("--sanitize", is_flag=True, help="CUDA kernels also under compute-sanitizer.")
@click.option(
    "--timeout",
    type=options.Duration("s"),
    default=300.0,
    show_default=True,
    help="Time for a kernel.",
)
@click.option("--seed", default=0, show_default=True, help="Of the inputs.")
@click.option(
    "--ray", "address", metavar="ADDRESS",
    help="Verify on the nodes of a Ray cluster: HOST:PORT, or auto.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    name: str | None,
    kernel: str | None,
    where: str | None,
    sanitize: bool,
    timeout: float,
    seed: int,
    address: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Verifies the built kernels of FAMILY or PACK (default: of all families with a reference) that
    can run here, each in a process that may die, and keeps the results beside their specs.

    `kernelmint verify FILE.whl` compares a wheel with what its sources give (with --help: how).

    \b
    Examples:
      kernelmint verify
      kernelmint verify my_kernels --timeout 10m --dry-run
      kernelmint verify my_kernels --ray head:6379
    """
    kernels: list[KernelInfo] = []
    rows: list[Row] = []
    lacking = ""
    try:
        if address is not None:
            results = _rows_of_nodes(address, _keys(name, kernel, where), timeout, seed, sanitize)
        else:
            kernels = _runnable(name, kernel, where)
            results = _rows(kernels, timeout, seed, sanitize)
        for row in results:
            rows.append(row)
            click.echo(f"{row.kernel_config}  {row.arch} {row.code}  {row.outcome}", err=as_json)
            if not dry_run and not _is_nothing(row):
                _keep(row)
    except ClusterError as error:
        if not rows:
            raise click.ClickException(str(error)) from None
        lacking = str(error)
    except (ValueError, KeyError, runtime.TargetUnavailable, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    except (NoProblemError, VerifiedError, ReportError) as error:
        raise click.ClickException(str(error)) from None
    others = sum(map(_is_nothing, rows))
    right = sum(row.is_right for row in rows)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        click.echo(
            f"{counted(right, 'kernel')} of {len(rows)} right"
            + (f"; {others} not compared, without a row" if others else "")
        )
    for family, infos in itertools.groupby(kernels, lambda info: info.family):
        if note := unchecked([*infos]):
            click.echo(f"{family}: {note}", err=as_json)
    if lacking:
        raise click.ClickException(lacking)
    sys.exit(right + others < len(rows) or others == len(rows))


def _is_nothing(row: Row) -> bool:
    """Returns whether nothing of a kernel was compared."""
    return row.outcome.startswith(NOT_COMPARED)


def _keep(row: Row) -> None:
    """Writes a row at once, so that later failures do not lose it."""
    family, target, _ = row.kernel_config.split(".", 2)
    path = found_before.file_of(manifest.family(family), target)
    write_text(path, verified.text(verified.merged(verified.read(path), [row])))


if __name__ == "__main__":
    main()
