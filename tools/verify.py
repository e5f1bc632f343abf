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

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
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

from .problem import NoProblemError
from .process import NoAnswerError, NotStartedError, Process
from .race_check import CHECKERS, find_sanitizer, run_under
from .sanity_check import check, selected_of, unchecked, why_not_compared

NOT_COMPARED = "not compared"


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


def _rows(
    kernels: Sequence[KernelInfo], process: Process, timeout: float, sanitizer: str | None
) -> Iterator[Row]:
    index = torch.cuda.current_device() if devices.has_cuda() else 0
    for info in kernels:
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
        yield Row(
            kernel_config=info.key,
            arch=code[0],
            toolchain=f"nvcc {pack.settings['nvcc']}" if info.is_cuda else pack.settings["c++"],
            code=code[1],
            device=devices.name(device),
            checks=" ".join(checks),
            outcome=one_line(outcome),
        )


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
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    name: str | None,
    kernel: str | None,
    where: str | None,
    sanitize: bool,
    timeout: float,
    seed: int,
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
    """
    sanitizer = find_sanitizer() if sanitize else None
    try:
        selected = [
            one for family in _families(name) for one in selected_of(family, kernel, where).values()
        ]
        kernels = [info for selection in selected for info in selection.kernels if info.available]
        folders = {str(source.folder) for source in ondemand.sources.values()}
        process = Process(serve, sorted(folders), seed)
        if not kernels:
            reasons = [
                info.reason for selection in selected for info in selection.kernels if info.reason
            ]
            raise click.ClickException(f"nothing can run here: {reasons[0]}")
        rows = []
        try:
            for row in _rows(kernels, process, timeout, sanitizer):
                rows.append(row)
                click.echo(
                    f"{row.kernel_config}  {row.arch} {row.code}  {row.outcome}", err=as_json
                )
                if not dry_run and not _is_nothing(row):
                    _keep(row)
        finally:
            process.stop()
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
