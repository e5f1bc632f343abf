"""Measure block-sparse attention against dense HSTU attention, and both against their floors.

kernelmint bench block_sparse [--length 1024 ...] [--json FILE]

All in one run, on the same inputs. Beside each time stands its floor: the larger of the bytes that
must move over the bandwidth that a copy reaches here, and of the operations over the vendor's rate
for the unit that does them. Times are medians, ± how far their interval reaches.
"""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from kernelmint.tools.bench.measure import Measured, measure
from kernelmint.tools.output_file import OutputFile, write

from codegen import options

from ..block_sparse import reference as block_sparse
from .implementations import UnavailableError, implementation_of

# Rates of an H200 (NVIDIA's data sheet, dense), FLOP/s; three TF32 products make one of fp32.
RATES = {"ieee": 67e12, "tf32x3": 494.5e12 / 3, "tf32": 494.5e12, "bf16": 989e12}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
_MOST_DENSE_BYTES = 40e9  # a dense attention matrix beyond this is not formed


@dataclass(frozen=True)
class Shape:
    """A problem: q, k [B, T, H, A], v, u [B, T, H, L]."""

    B: int
    T: int
    H: int
    A: int
    L: int
    block_size: int = 32
    block_count: int = 4

    @property
    def rows(self) -> int:
        """Queries, over all heads."""
        return self.B * self.T * self.H

    def sparse_flops(self) -> float:
        """Of both branches, each row attending to what it sees."""
        BS, S = self.block_size, self.block_count
        blocks = sum((t + 1) // BS for t in range(self.T)) / self.T
        keys = sum(min(t // BS, S - 1) * BS + t % BS + 1 for t in range(self.T)) / self.T
        return 2.0 * self.rows * (blocks + keys) * (self.A + self.L)

    def dense_flops(self) -> float:
        """Of causal attention."""
        return self.rows * (self.T + 1.0) * (self.A + self.L)

    def sparse_bytes(self) -> float:
        """Each input read once, each output written once."""
        return self.rows * (4.0 * (2 * self.A + 3 * self.L + 1) + 8 * self.block_count)

    def dense_bytes(self, element: int) -> float:
        """Likewise, of q, k, v and o."""
        return 2.0 * element * self.rows * (self.A + self.L)


@dataclass(frozen=True)
class Contender:
    """Something to time, and what it cannot be faster than."""

    name: str
    call: Callable[[], Any]
    flops: float
    bytes: float
    rate: float

    def floor(self, bandwidth: float) -> tuple[float, str]:
        """Milliseconds, and what sets them."""
        moving, computing = self.bytes / bandwidth, self.flops / self.rate
        return (1e3 * moving, "bytes") if moving > computing else (1e3 * computing, "FLOP")


def run(shapes: list[Shape], seconds: float, without: tuple[str, ...]) -> list[dict[str, Any]]:
    """Times every contender on every shape, but those whose names contain one of `without`; the
    figures. Needs a CUDA device."""
    bandwidth = copy_bandwidth()
    click.echo(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a copy moves "
        f"{bandwidth / 1e12:.2f} TB/s"
    )
    figures = []
    for shape in shapes:
        click.echo(
            f"\nB {shape.B}, T {shape.T}, H {shape.H}, A {shape.A}, L {shape.L}, "
            f"block {shape.block_size}, S {shape.block_count}"
        )
        click.echo(f"{'':<34}{'ms':>9}{'':8}{'floor':>9}  {'bound':<7}{'x floor':>8}")
        for contender in contenders(shape):
            if any(part in contender.name for part in without):
                continue
            try:
                measured, graph = time_call(contender.call, seconds)
            except torch.OutOfMemoryError:
                click.echo(f"{contender.name:<34}{'out of memory':>26}")
                torch.cuda.empty_cache()
                continue
            floor, bound = contender.floor(bandwidth)
            milliseconds = measured.seconds("").scaled(1e3)
            figures.append({
                "name": contender.name, "shape": asdict(shape),
                "milliseconds": asdict(milliseconds), "floor": floor, "bound": bound,
                "graph": graph,  # timed as the replay of a CUDA graph
                "clocks": {name: asdict(spread) for name, spread in measured.clocks.items()},
            })  # fmt: skip
            click.echo(
                f"{contender.name:<34}{milliseconds.median:>9.4f} ±{milliseconds.reach:.4f}"
                f"{floor:>9.4f}  {bound:<7}{milliseconds.median / floor:>8.1f}"
                f"{'' if graph else '  (no graph)'}"
            )
        torch.cuda.empty_cache()
    return figures


def contenders(shape: Shape) -> list[Contender]:
    """What can run here: generated kernels, Triton, PyTorch; sparse, then dense."""
    g = torch.Generator(device="cuda").manual_seed(42)

    def normal(*extents: int) -> torch.Tensor:
        return torch.randn(*extents, generator=g, device="cuda")

    B, T, H, A, L = shape.B, shape.T, shape.H, shape.A, shape.L
    q, k = normal(B, T, H, A), normal(B, T, H, A)
    v, u, gate = normal(B, T, H, L), normal(B, T, H, L), normal(B, T, H)
    options = {"block_count": shape.block_count, "block_size": shape.block_size}
    found = []

    def add_sparse(name: str, dot: str, attention: Callable[..., Any]) -> None:
        call = partial(attention, q, k, v, u, gate, **options)
        found.append(Contender(name, call, shape.sparse_flops(), shape.sparse_bytes(), RATES[dot]))

    for target in ("sm80", "triton"):
        for precision in ("tf32x3", "bf16"):
            try:
                implementation = implementation_of(target, "cuda", precision)
                implementation.attention(q, k, v, u, gate, **options, mode="fixed")
            except UnavailableError as error:
                click.echo(f"{target} {precision}: {error}", err=True)
                continue
            name = f"sparse, {implementation.title}, {precision}"
            add_sparse(name, precision, implementation.attention)
    add_sparse("sparse, PyTorch eager", "ieee", block_sparse.block_sparse_attention)
    compiled: Any = torch.compile(block_sparse.block_sparse_attention, dynamic=False)
    add_sparse("sparse, torch.compile", "ieee", compiled)

    low = [x.bfloat16() for x in (q, k, v)]

    def add_dense(name: str, dot: str, element: int, call: Callable[[], Any]) -> None:
        found.append(
            Contender(name, call, shape.dense_flops(), shape.dense_bytes(element), RATES[dot])
        )

    dense_attention = importlib.import_module(
        "..block_sparse.triton_kernels", __package__
    ).dense_attention

    add_dense("dense, Triton, bf16 tensors", "bf16", 2, lambda: dense_attention(*low, dot="bf16"))
    for dot in ("bf16", "tf32", "tf32x3"):
        add_dense(f"dense, Triton, {dot}", dot, 4, partial(dense_attention, q, k, v, dot=dot))
    if 4.0 * B * H * T * T <= _MOST_DENSE_BYTES:
        add_dense("dense, PyTorch, fp32", "ieee", 4, lambda: dense_pytorch(q, k, v))
        add_dense("dense, PyTorch, bf16 tensors", "bf16", 2, lambda: dense_pytorch(*low))
    return found


def dense_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Dense causal HSTU attention: o = sum over j <= t of SiLU(q·k_j) / T v_j, [B, T, H, L]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = F.silu(q @ k.transpose(2, 3)).tril_() / q.shape[2]
    return (weights @ v).transpose(1, 2)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy on the device."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    # A kernel's copy: that of the driver, which a captured copy becomes, is slower here.
    measured, _ = time_call(lambda: torch.neg(source, out=target), 0.2)
    return float(2 * source.numel() * 4 / measured.seconds("").median)


def time_call(call: Callable[[], Any], seconds: float) -> tuple[Measured, bool]:
    """What was measured of the only contender, "", and whether a CUDA graph was replayed.

    The second-level cache is overwritten before each call. A replay leaves out the gaps between
    launches, which a short call from Python would be made of; what cannot be captured (a call that
    waits for the device) is called as it is.
    """
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    runnable, graph = call, False
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            call()
        runnable, graph = captured.replay, True
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
    return measure({"": runnable}, torch.device("cuda"), seconds), graph


@click.command("block_sparse", help=__doc__)
@click.option(
    "--length", "lengths", type=int, multiple=True, default=LENGTHS, show_default=True,
    help="Tokens of a sequence; may be repeated.",
)  # fmt: skip
@click.option("--batch", default=16, show_default=True, help="Sequences.")
@click.option("--heads", default=8, show_default=True, help="Heads.")
@click.option("--dims", default="32x64,64x64", show_default=True, help="A x L, comma-separated.")
@click.option(
    "--seconds",
    type=options.Duration("s"),
    default=0.3,
    show_default=True,
    help="Time for each figure.",
)
@click.option("--without", multiple=True, help="Leave out contenders whose name contains this.")
@click.option("--json", "json_file", type=OutputFile(), help="Write the figures as JSON.")
def main(
    lengths: tuple[int, ...],
    batch: int,
    heads: int,
    dims: str,
    seconds: float,
    without: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """The command line of `run`."""
    if not torch.cuda.is_available():
        raise click.UsageError("this benchmark needs a CUDA device")
    sizes = [pair.split("x") for pair in dims.split(",")]
    shapes = [Shape(batch, T, heads, int(A), int(L)) for A, L in sizes for T in lengths]
    figures = run(shapes, seconds, without)
    if json_file is not None:
        machine = {"device": torch.cuda.get_device_name(), "host": platform.machine()}
        report = {"machine": machine, "figures": figures}
        write(json_file, json.dumps(report, indent=1) + "\n")
