"""How fast ptx-report's parser is: MB/s on one core, and against a process per kernel.

    python -m tools.bench_ptx_report [--gigabytes 1]

Generates a log of the given size in a temporary folder, twice: nothing but ptxas's lines, and a
`pip install -v` log with a command line of two kilobytes before each object. Parses both, and
prints the rate and the memory that it took. Then parses a small log with this parser and with the
approach of the parser that this one replaces (regular expressions over the whole text, `c++filt`
started once for every kernel), on a log that both can read.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from codegen.ptxas.events import Statistics
from codegen.ptxas.inputs import read_log

_PIECE = 1 << 24


def _records(start: int) -> Iterator[str]:
    """Records as ptxas 13.0 prints them, with a symbol of their own each."""
    index = start
    while True:
        tokens = (
            f"bf16_d{64 << index % 3}_r{64 + index % 4 * 16}_c{index}_w4_async_swz_q0_k2_v2_opt"
        )
        symbol = (
            "_ZN10kernelmint13flash_forward18flash_forward_sm80INS_7configs13flash_forward4sm80"
            f"{len(tokens)}{tokens}EEEvNT_4ArgsE"
        )
        spills = 8 * (index % 5 // 4)
        stack = f", {spills} bytes cumulative stack size" if spills else ""
        spilled = f"{spills} bytes spill stores, {spills} bytes spill loads"
        yield (
            f"ptxas info    : Compiling entry function '{symbol}' for 'sm_80'\n"
            f"ptxas info    : Function properties for {symbol}\n"
            f"    {spills} bytes stack frame, {spilled}\n"
            f"ptxas info    : Used {96 + index % 160} registers, used 1 barriers{stack}, "
            "16384 bytes smem, 392 bytes cmem[0]\n"
            f"ptxas info    : Compile time = {index % 1000}.{index % 997:03d} ms\n"
        )
        index += 1


def _write(path: Path, size: int, verbose: bool) -> int:
    """Writes a log of about `size` bytes; returns how many kernels it holds."""
    kernels = 0
    records = _records(0)
    command = "/usr/local/cuda/bin/nvcc " + "-I/usr/include/some/long/folder/of/headers " * 40
    with path.open("w") as out:
        written = 0
        while written < size:
            parts: list[str] = []
            length = 0
            while length < _PIECE:
                if verbose:
                    edge = (
                        f"[{kernels}/9999] {command} -c kernel_{kernels}.cu -o kernel_{kernels}.o\n"
                    )
                    parts.append(edge)
                    parts.append("ptxas info    : 0 bytes gmem\n")
                    length += len(edge) + 30
                parts.append(next(records))
                length += len(parts[-1])
                kernels += 1
            out.write("".join(parts))
            written += length
    return kernels


def _parse(path: Path) -> tuple[int, float, float]:
    """Rows, seconds of one core, and MiB at most; for a process of its own."""
    start = time.process_time()
    rows = sum(1 for _ in read_log(path, path.name, Statistics()))
    seconds = time.process_time() - start
    return rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_OLD = re.compile(
    r"Compiling entry function '(?P<symbol>\S+)' for 'sm_\d+'\n"
    r".*Function properties for \S+\n"
    r"\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r".*Used (?P<registers>\d+) registers.*cmem\[0\]"
)


def _parse_with_a_process_a_kernel(path: Path) -> int:
    rows = 0
    for match in _OLD.finditer(path.read_text()):
        command = ["c++filt", match["symbol"]]
        name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        rows += bool(name) and int(match["registers"]) > 0
    return rows


@click.command()
@click.option("--gigabytes", default=1.0, help="Size of each generated log.")
@click.option("--kernels", default=2000, help="Kernels of the log for the comparison.")
def main(gigabytes: float, kernels: int) -> None:
    """Measure the parser."""
    with tempfile.TemporaryDirectory() as folder:
        for verbose, what in ((False, "ptxas's lines alone"), (True, "pip install -v")):
            path = Path(folder, "big.log")
            written = _write(path, int(gigabytes * 1e9), verbose)
            size = path.stat().st_size
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows, seconds, memory = pool.apply(_parse, (path,))
            click.echo(
                f"{what}: {size / 1e9:.2f} GB, {rows:,} rows (of {written:,}) in {seconds:.1f} s: "
                f"{size / 1e6 / seconds:.0f} MB/s, {rows / seconds:,.0f} kernels/s, "
                f"{memory:.0f} MiB of memory"
            )
            path.unlink()
        if shutil.which("c++filt") is None:
            raise click.ClickException("the comparison needs c++filt (binutils)")
        path = Path(folder, "small.log")
        records = _records(0)
        path.write_text("".join(next(records) for _ in range(kernels)))
        start = time.perf_counter()
        old_rows = _parse_with_a_process_a_kernel(path)
        old = time.perf_counter() - start
        start = time.perf_counter()
        new_rows = sum(1 for _ in read_log(path, path.name, Statistics()))
        new = time.perf_counter() - start
        click.echo(
            f"{kernels:,} kernels: a process a kernel {old:.2f} s ({old_rows} rows), "
            f"this parser {new * 1e3:.1f} ms ({new_rows} rows): {old / new:,.0f} times faster"
        )


if __name__ == "__main__":
    main()
