"""Measures gradients of attention beside PyTorch's operators and FlashAttention-4, in one run."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from kernelmint.tools.bench import results
from kernelmint.tools.bench.measure import Call, measure
from kernelmint.tools.listing import print_table
from kernelmint.tools.output_file import OutputFile, write
from kernelmint.tools.selection import for_device
from rich.console import Console
from torch import Tensor

import runtime
from codegen import options

__all__ = ["CASES", "bench"]

# A random log-sum-exp would make probabilities far above 1, and gradients beyond fp16's range.
_CASE = {"B": 2, "Sq": 170, "H": 4, "Sk": 150, "Hk": 2}
CASES = ({"sizes": _CASE, "values": {"lse": (((6.0,) * 170,) * 4,) * 2}},)

_SIZES = {
    "cuda": ((16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384)),
    "cpu": ((1, 1024), (1, 2048), (1, 4096)),
}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class Problem:
    """A call: `batch` sequences of `seq_len` tokens."""

    dtype: str
    d_head: int
    causal: bool
    batch: int
    seq_len: int
    heads: int
    kv_heads: int

    @property
    def group(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads of {self.d_head}"
        return f"{self.dtype}, {heads}{', causal' if self.causal else ''}"

    @property
    def size(self) -> str:
        return f"{self.batch}x{self.seq_len}"

    @property
    def extent(self) -> int:
        return self.seq_len

    @property
    def operations(self) -> float:
        """Five products, of which the mask hides half."""
        scores = self.batch * self.heads * self.seq_len**2
        return 10 * scores * self.d_head / (2 if self.causal else 1)


class Operands:
    """A problem's tensors, dout, q, k, v [B, S, H, D], and the output and log-sum-exps to them."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem
        dtype = _DTYPES[problem.dtype]

        def random(heads: int) -> Tensor:
            shape = problem.batch, problem.seq_len, heads, problem.d_head
            return torch.randn(shape, device=device, dtype=dtype)

        self.dout, self.q = random(problem.heads), random(problem.heads)
        self.k, self.v = random(problem.kv_heads), random(problem.kv_heads)
        self.o, self.lse = runtime.attention(
            self.q, self.k, self.v, causal=problem.causal, return_lse=True
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.dout, self.q, self.k, self.v, self.o, self.lse


def _cudnn(operands: Operands) -> Call:
    problem, n = operands.problem, operands.problem.seq_len
    *heads_first, lse = operands.inputs
    tensors = [t.transpose(1, 2) for t in heads_first]
    unused = torch.zeros((), dtype=torch.int64, device=lse.device)
    more = (lse.unsqueeze(-1), unused, unused, None, None, None, n, n, 0.0, problem.causal)
    return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention_backward(*tensors, *more)


def _flash_attention_2(operands: Operands) -> Call:
    problem, n = operands.problem, operands.problem.seq_len
    unused = torch.empty(2, dtype=torch.uint64, device=operands.q.device)
    more = (None, None, n, n, 0.0, problem.causal, unused, unused[:0])
    return lambda: torch.ops.aten._flash_attention_backward(*operands.inputs, *more)


def _flash_attention_4(operands: Operands, deterministic: bool = False) -> Call | None:
    try:
        backward = importlib.import_module("flash_attn.cute.interface")._flash_attn_bwd
    except ImportError:
        return None
    dout, q, k, v, o, lse = operands.inputs
    given = {
        "dout": dout, "q": q, "k": k, "v": v, "out": o, "lse": lse,
        "softmax_scale": q.shape[-1] ** -0.5, "causal": operands.problem.causal,
        "deterministic": deterministic,
    }  # fmt: skip
    names = inspect.signature(backward).parameters
    return lambda: backward(**{n: value for n, value in given.items() if n in names})


def _pytorch_cpu(operands: Operands) -> Call | None:
    if operands.problem.heads != operands.problem.kv_heads:
        return None  # it knows no heads that share keys
    *heads_first, lse = operands.inputs
    tensors = [t.transpose(1, 2) for t in heads_first]
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return lambda: backward(*tensors, lse, 0.0, operands.problem.causal)


_OTHERS: dict[str, tuple[str, Callable[[Operands], Call | None]]] = {
    "PyTorch cuDNN": ("cuda", _cudnn),
    "PyTorch flash": ("cuda", _flash_attention_2),
    "FlashAttention-4": ("cuda", _flash_attention_4),
    "FlashAttention-4, deterministic": ("cuda", lambda o: _flash_attention_4(o, True)),
    "PyTorch": ("cpu", _pytorch_cpu),
}


def _agree(calls: dict[str, Call]) -> None:
    """Raises ClickException if a contender's gradients are not the first one's, to rounding."""
    first, *others = calls
    reference = calls[first]()
    for name in others:
        for one, other in zip(reference, calls[name](), strict=False):
            other = other if one.shape == other.shape else other.transpose(1, 2)
            error = (one.double() - other.double()).norm() / one.double().norm()
            if not math.isfinite(error) or error > 2e-2:
                raise click.ClickException(f"{name}: gradients differ from {first}'s by {error}")


@click.command("flash_backward", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", metavar="TARGET", help="The kernels of this target.")
@options.where("kernels")
@options.set_name("The kernels of this set, built if no pack has them.")
@click.option(
    "--d-head", "d_heads", type=int, multiple=True, default=(64, 128), show_default=True,
    help="Columns of a head; may be repeated.",
)  # fmt: skip
@click.option(
    "--kv-heads", type=int, help="Heads of keys and values (default: as many as of queries)."
)
@click.option(
    "--dtype", "dtypes", type=click.Choice(list(_DTYPES)), multiple=True,
    help="May be repeated (default: bf16, and f32 on a CPU).",
)  # fmt: skip
@click.option("--size", "only", metavar="SIZE", help="Only sizes that this expression matches.")
@click.option(
    "--beside", type=click.Choice(list(_OTHERS)), multiple=True,
    help="Only these contenders, repeatable (default: all that are there).",
)  # fmt: skip
@click.option(
    "--seconds", type=options.Duration("s"), default=0.2, show_default=True,
    help="Time for each figure.",
)  # fmt: skip
@click.option(
    "--processor-time", is_flag=True,
    help="On a CPU: one thread, and the processor's time, which leaves out other programs' turns.",
)  # fmt: skip
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures as JSON.")
def bench(
    target: str | None,
    where: str | None,
    set_name: str | None,
    d_heads: tuple[int, ...],
    kv_heads: int | None,
    dtypes: tuple[str, ...],
    only: str | None,
    beside: tuple[str, ...],
    seconds: float,
    processor_time: bool,
    json_file: Path | None,
) -> None:
    """Measure the median rates of the kernels of flash_backward and of other implementations, which
    take turns on the same memory: 2,048 = heads by columns, all passes of each.

    \b
    Examples:
      kernelmint bench flash_backward --target sm90a --d-head 128
      kernelmint bench flash_backward --target cpu --dtype bf16 --processor-time
    """
    device, kernels = for_device("flash_backward", target, where, set_name)
    console = Console(width=None if sys.stdout.isatty() else 250)
    rows: list[results.Row] = []
    on_cpu = device.type == "cpu"
    if processor_time:
        if not on_cpu:
            raise click.UsageError("--processor-time is for --target cpu")
        torch.set_num_threads(1)
    clock = time.process_time if processor_time else time.perf_counter
    dtypes = dtypes or (("f32", "bf16") if on_cpu else ("bf16",))
    for dtype, d_head, causal in itertools.product(dtypes, d_heads, (False, True)):
        heads = 8 if on_cpu else 2048 // d_head
        found: list[results.Row] = []
        for batch, seq_len in _SIZES[device.type]:
            problem = Problem(dtype, d_head, causal, batch, seq_len, heads, kv_heads or heads)
            if only is not None and not re.search(only, problem.size):
                continue
            found += _measured(problem, kernels, beside, device, seconds, clock)
        if found:
            print_table(console, results.table(found, "GFLOP/s" if on_cpu else "TFLOP/s"))
        rows += found
    if not rows:
        raise click.UsageError("no kernel and size that were asked for")
    if json_file is not None:
        write(json_file, results.json_text(rows, device))


def _measured(
    problem: Problem,
    kernels: list[runtime.KernelInfo],
    beside: tuple[str, ...],
    device: torch.device,
    seconds: float,
    clock: Callable[[], float],
) -> list[results.Row]:
    suiting = [
        info.key for info in kernels
        if all(info.parameters[n] == getattr(problem, n) for n in ("dtype", "d_head", "causal"))
    ]  # fmt: skip
    if not suiting:
        return []
    operands = Operands(problem, device)
    calls: dict[str, Call] = {}
    for key in suiting:
        kernel: Any = runtime.kernel(key)
        calls[key] = lambda kernel=kernel: kernel(*operands.inputs)
    for name, (place, make) in _OTHERS.items():
        asked = place == device.type and name in (beside or _OTHERS)
        if asked and (call := make(operands)) is not None:
            calls[name] = call
    _agree(calls)
    keys = {key: key for key in suiting}
    measured = measure(calls, device, seconds, clock)
    found: list[results.Row] = results.rows_of(problem, measured, keys)
    return found
