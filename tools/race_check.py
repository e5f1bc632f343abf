"""CUDA kernels of flash_forward under compute-sanitizer, on shapes that reach every tail.

    python -m tools.race_check [--tool racecheck]... [--where EXPR]

The variable KERNELS selects kernels, too (tools/selection.py).

Runs NVIDIA's four checkers (memcheck, racecheck, initcheck, synccheck) over each attention kernel
on small, awkward shapes, and exits with 1 where one of them reports an error. It needs a GPU and
compute-sanitizer, which comes with the CUDA toolkit. Minutes: racecheck slows a kernel a thousand
times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click
import torch

import runtime
from tools.selection import select

CHECKERS = ("memcheck", "racecheck", "initcheck", "synccheck")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# seq_len_q, seq_len_k, heads, key/value heads: one row; tails in both; more keys than queries and
# fewer; several blocks of each.
SHAPES = ((1, 1, 2, 2), (7, 100, 4, 1), (130, 65, 2, 1), (257, 321, 2, 2))


def run_kernels(where: str | None) -> None:
    """Launch every available CUDA kernel of flash_forward on each shape, with and without lse."""
    generator = torch.Generator().manual_seed(0)
    for info in select(where=where).kernels:
        if not (info.is_cuda and info.available):
            continue
        kernel = runtime.kernel(info.key)
        for seq_len_q, seq_len_k, heads, kv_heads in SHAPES:
            q, k, v = (
                # Copied from the host, so that initcheck sees what is initialised and what is not.
                torch.randn(1, length, n, info.parameters["d_head"], generator=generator)
                .to(DTYPES[info.parameters["dtype"]])
                .cuda()
                for length, n in (
                    (seq_len_q, heads),
                    (seq_len_k, kv_heads),
                    (seq_len_k, kv_heads),
                )
            )
            kernel(q, k, v, return_lse=seq_len_q % 2 == 1)
        torch.cuda.synchronize()
        print(info.key, flush=True)


@click.command()
@click.option("--tool", "tools", multiple=True, type=click.Choice(CHECKERS), default=CHECKERS)
@click.option("--where", help="Only kernels for which this expression holds.")
@click.option("--bare", is_flag=True, help="Run the kernels without a checker.")
def main(tools: tuple[str, ...], where: str | None, bare: bool) -> None:
    """Run the checkers over every CUDA kernel of this build."""
    if bare:
        run_kernels(where)
        return
    try:
        kernels = [k for k in select(where=where).kernels if k.is_cuda]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    runnable = sum(k.available for k in kernels)
    if not runnable:
        reason = kernels[0].reason if kernels else "none is in this build"
        raise click.ClickException(f"no CUDA kernel can run here: {reason}")
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise click.ClickException(
            "compute-sanitizer is not on PATH; it is in the CUDA toolkit's bin folder"
        )
    failed = []
    for tool in tools:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "99"]
        command += ["--kernel-name", "kernel_substring=kernelmint"]
        command += [sys.executable, "-m", "tools.race_check", "--bare"]
        command += ["--where", where] if where else []
        done = subprocess.run(
            command,
            # One allocation a tensor: what lies beside one is not another's memory.
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        ran = sum(line.startswith("flash_forward.") for line in done.stdout.splitlines())
        clean = done.returncode == 0 and ran == runnable
        print(
            f"{tool:10} {'clean' if clean else 'FAILED'}: {ran} of {runnable} kernels", flush=True
        )
        if not clean:
            failed.append(tool)
            print(done.stdout[-4000:])
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
