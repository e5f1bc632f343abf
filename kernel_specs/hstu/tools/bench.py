"""Block-sparse attention beside dense HSTU attention, and both beside their floors.

A floor is the longer of two times: the bytes that must move at the rate that a copy reaches here,
and the operations at the vendor's rate of the unit that does them.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from kernelmint.tools.bench import Call, Contender, Inputs, Problem, Results, difference
from kernelmint.tools.bench.measure import captured, measure

from runtime import KernelInfo

from ..block_sparse import reference as block_sparse
from . import judge
from .implementations import UnavailableError, implementation_of

# Rates of an H200 (NVIDIA's data sheet, dense), FLOP/s; three TF32 products make one of fp32.
RATES = {"ieee": 67e12, "tf32x3": 494.5e12 / 3, "tf32": 494.5e12, "bf16": 989e12}
_MOST_DENSE_BYTES = 40e9  # a dense attention matrix beyond this is not formed
_CHECKED = 2048  # tokens of the last sequence, whose results depend on no later ones


@dataclass(frozen=True)
class Shape(Problem):
    """A call: q, k [B, T, H, A], v, u [B, T, H, L]."""

    unit: ClassVar[str] = "s"
    axis: ClassVar[str] = "tokens"
    graphs: ClassVar[bool] = True
    by_key: ClassVar[bool] = False

    B: int
    T: int
    H: int
    A: int
    L: int
    block_size: int = 32
    block_count: int = 4

    @property
    def group(self) -> str:
        """Returns all but the length."""
        sizes = f"B {self.B}, H {self.H}, A {self.A}, L {self.L}"
        return f"{sizes}, block {self.block_size}, S {self.block_count}"

    @property
    def size(self) -> str:
        """Returns the length."""
        return f"T {self.T}"

    @property
    def extent(self) -> float:
        """Returns the tokens of a sequence."""
        return self.T

    def suits(self, info: KernelInfo) -> bool:
        """Says yes: the front chooses a kernel."""
        return True

    def inputs(self, device: torch.device) -> Inputs:
        """Returns normally distributed tensors in fp32."""
        generator = torch.Generator(device).manual_seed(42)
        B, T, H, A, L = self.B, self.T, self.H, self.A, self.L
        shapes = {"q": (A,), "k": (A,), "v": (L,), "u": (L,), "g_cmp": ()}
        return {
            name: torch.randn(B, T, H, *last, generator=generator, device=device)
            for name, last in shapes.items()
        }

    def floors(self, bandwidth: float) -> dict[str, tuple[float, str]]:
        """Returns milliseconds and what sets them, of each function and kind of products."""
        limits = {}
        for dot, rate in RATES.items():
            for name, flops, moved in (
                (f"sparse, {dot}", self.sparse_flops(), self.sparse_bytes()),
                (f"dense, {dot}", self.dense_flops(), self.dense_bytes(4)),
                (f"dense, {dot} tensors", self.dense_flops(), self.dense_bytes(2)),
            ):
                if "tensors" not in name or dot == "bf16":
                    times = {"bytes": moved / bandwidth, "FLOP": flops / rate}
                    bound = max(times, key=times.__getitem__)
                    limits[name] = (1e3 * times[bound], bound)
        return limits

    def notes(self, device: torch.device) -> Mapping[str, str]:
        """Returns the floors, on a GPU."""
        if device.type != "cuda":
            return {}
        floors = self.floors(copy_bandwidth()).items()
        return {f"floor of {name}": f"{ms:.3f} ({bound})" for name, (ms, bound) in floors}

    @property
    def rows(self) -> int:
        """Counts the queries of all heads."""
        return self.B * self.T * self.H

    def sparse_flops(self) -> float:
        """Returns the operations of both branches, in which each row attends to what it sees."""
        BS, S = self.block_size, self.block_count
        blocks = sum((t + 1) // BS for t in range(self.T)) / self.T
        keys = sum(min(t // BS, S - 1) * BS + t % BS + 1 for t in range(self.T)) / self.T
        return 2.0 * self.rows * (blocks + keys) * (self.A + self.L)

    def dense_flops(self) -> float:
        """Returns the operations of causal attention."""
        return self.rows * (self.T + 1.0) * (self.A + self.L)

    def sparse_bytes(self) -> float:
        """Returns the bytes of each input and each output."""
        return self.rows * (4.0 * (2 * self.A + 3 * self.L + 1) + 8 * self.block_count)

    def dense_bytes(self, element: int) -> float:
        """Returns the bytes of q, k, v and o."""
        return 2.0 * element * self.rows * (self.A + self.L)


def problems(
    kernels: Sequence[KernelInfo],
    device: torch.device,
    *,
    length: Sequence[int] = (1024, 2048, 4096, 8192, 16384),
    batch: Sequence[int] = (16,),
    heads: Sequence[int] = (8,),
    dims: Sequence[str] = ("32x64", "64x64"),
) -> list[Problem]:
    """Returns sequences of several lengths; `dims` are A x L."""
    sizes = [tuple(map(int, pair.split("x"))) for pair in dims]
    return [Shape(B, T, H, *AL) for B, H, AL, T in itertools.product(batch, heads, sizes, length)]


def _part(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return tuple(tensor[-1:, :_CHECKED].contiguous() for tensor in inputs.values())


def _judge_sparse(dot: str, shape: Shape, inputs: Inputs) -> Callable[[Results], str | None]:
    parameters = {
        "block_size": shape.block_size, "block_count": shape.block_count, "mode": "fixed",
        "dot": dot,
    }  # fmt: skip

    def differing(results: Results) -> str | None:
        o, lists = results[0][-1:, :_CHECKED], results[1][-1:, :, :_CHECKED]
        compared = judge.differences(_part(inputs), o, lists, parameters)
        return next((str(one) for one in compared if not one.passed), None)

    return differing


def _judge_dense(shape: Shape, inputs: Inputs) -> Callable[[Results], str | None]:
    q, k, v = (t[-1:, :, -1:].double() for t in (inputs["q"], inputs["k"], inputs["v"]))
    expected = [dense_pytorch(q, k, v)]
    return lambda results: difference([results[0][-1:, :, -1:].bfloat16()], expected)


def _sparse(target: str, dot: str) -> Contender:
    def make(shape: Shape, inputs: Inputs) -> Call | str:
        device = inputs["q"].device.type
        try:
            attention = implementation_of(target, device, dot).attention
            call = partial(
                attention, *inputs.values(), block_count=shape.block_count,
                block_size=shape.block_size, mode="fixed",
            )  # fmt: skip
            call()
        except UnavailableError as error:
            return str(error)
        return call

    device = {"cpu": "cpu", "torch": None}.get(target, "cuda")
    ours = target in ("sm80", "cpu")
    return Contender(
        make,
        device,
        kernel=(lambda shape, inputs: f"{target}, {dot}") if ours else None,
        judge=partial(_judge_sparse, dot),
    )


def _compiled(shape: Shape, inputs: Inputs) -> Call:
    function: Any = torch.compile(block_sparse.block_sparse_attention, dynamic=False)
    options = {"block_count": shape.block_count, "block_size": shape.block_size}
    return partial(function, *inputs.values(), **options)


def _dense(dot: str, dtype: torch.dtype) -> Contender:
    def make(shape: Shape, inputs: Inputs) -> Call:
        kernels = importlib.import_module("..block_sparse.triton_kernels", __package__)
        tensors = [inputs[name].to(dtype) for name in "qkv"]
        return partial(kernels.dense_attention, *tensors, dot=dot)

    return Contender(make, "cuda", judge=_judge_dense)


def _dense_in_pytorch(dtype: torch.dtype) -> Contender:
    def make(shape: Shape, inputs: Inputs) -> Call | str:
        if 4.0 * shape.B * shape.H * shape.T**2 > _MOST_DENSE_BYTES:
            return "its matrix of scores has more than 40 GB"
        return partial(dense_pytorch, *(inputs[name].to(dtype) for name in "qkv"))

    return Contender(make, judge=_judge_dense)


_BF16, _F32 = torch.bfloat16, torch.float32
CONTENDERS = {
    "sparse, cpu": _sparse("cpu", "ieee"),
    **{f"sparse, sm80, {dot}": _sparse("sm80", dot) for dot in ("tf32x3", "bf16")},
    **{f"sparse, Triton, {dot}": _sparse("triton", dot) for dot in ("tf32x3", "bf16")},
    "sparse, PyTorch eager": _sparse("torch", "ieee"),
    "sparse, torch.compile": Contender(_compiled, judge=partial(_judge_sparse, "ieee")),
    "dense, Triton, bf16 tensors": _dense("bf16", _BF16),
    **{f"dense, Triton, {dot}": _dense(dot, _F32) for dot in ("bf16", "tf32", "tf32x3")},
    "dense, PyTorch, fp32": _dense_in_pytorch(_F32),
    "dense, PyTorch, bf16 tensors": _dense_in_pytorch(_BF16),
}


def dense_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes dense causal HSTU attention: o = sum over j <= t of SiLU(q·k_j) / T v_j, of shape
    [B, T, H, L]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = F.silu(q @ k.transpose(2, 3)).tril_() / q.shape[2]
    return (weights @ v).transpose(1, 2)


@functools.cache
def copy_bandwidth() -> float:
    """Measures how many bytes a second a large copy reads and writes on the GPU."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    # A kernel's copy: that of the driver, which a captured copy becomes, is slower here.
    replay = captured(lambda: torch.neg(source, out=target))
    assert not isinstance(replay, str), replay
    taken = measure({"": replay}, source.device, 0.2)
    return float(2 * source.numel() * 4 / taken.seconds("").median)
