"""How fast ptx-report's parser is: MB/s on one core.

    python -m tools.bench_ptx_report [--gigabytes 1]

Generates a log of the given size in a temporary folder, twice: nothing but ptxas's lines, and a
`pip install -v` log with a command line of two kilobytes before each object. Parses both, and
prints the rate and the memory that it took.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import click

from codegen.ptxas.events import Statistics
from codegen.ptxas.inputs import read_log


def _record(index: int) -> str:
    """A record as ptxas 13.0 prints it, with a symbol of its own."""
    tokens = f"bf16_d{64 << index % 3}_r{64 + index % 4 * 16}_c{index}_w4_async_swz_q0_k2_v2_opt"
    symbol = (
        "_ZN10kernelmint13flash_forward18flash_forward_sm80INS_7configs13flash_forward4sm80"
        f"{len(tokens)}{tokens}EEEvNT_4ArgsE"
    )
    spills = 8 * (index % 5 // 4)
    stack = f", {spills} bytes cumulative stack size" if spills else ""
    spilled = f"{spills} bytes spill stores, {spills} bytes spill loads"
    return (
        f"ptxas info    : Compiling entry function '{symbol}' for 'sm_80'\n"
        f"ptxas info    : Function properties for {symbol}\n"
        f"    {spills} bytes stack frame, {spilled}\n"
        f"ptxas info    : Used {96 + index % 160} registers, used 1 barriers{stack}, "
        "16384 bytes smem, 392 bytes cmem[0]\n"
        f"ptxas info    : Compile time = {index % 1000}.{index % 997:03d} ms\n"
    )


def _write(path: Path, size: int, verbose: bool) -> int:
    """Writes a log of about `size` bytes; returns how many kernels it holds."""
    command = "/usr/local/cuda/bin/nvcc " + "-I/usr/include/some/long/folder/of/headers " * 40
    kernels = written = 0
    with path.open("w") as out:
        while written < size:
            if verbose:
                step = f"[{kernels}/9999] {command} -c kernel_{kernels}.cu -o kernel_{kernels}.o"
                written += out.write(f"{step}\nptxas info    : 0 bytes gmem\n")
            written += out.write(_record(kernels))
            kernels += 1
    return kernels


def _parse(path: Path) -> tuple[int, float, float]:
    """Rows, seconds of one core, and MiB at most; for a process of its own."""
    start = time.process_time()
    rows = sum(1 for _ in read_log(path, path.name, Statistics()))
    seconds = time.process_time() - start
    return rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@click.command()
@click.option("--gigabytes", default=1.0, help="Size of each generated log.")
def main(gigabytes: float) -> None:
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


if __name__ == "__main__":
    main()
