"""Both sides of the comparison: the simulation's intermediates, and the traced kernel's.

The tensors that both have of each block of keys are the record of the family's `trace:`; `simulate`
in reference.py yields them under the same names, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime import KernelInfo, manifest
from runtime.handle import Kernel

from ...reference import simulate

_AXES = {"B_r": "row", "B_c": "key", "d_head": "d"}
_TRACE = manifest.family("flash_forward").trace
assert _TRACE is not None

STEP = tuple(tensor.name for tensor in _TRACE.record)
FINAL = "O_final"  # after the last block: O / L
DIMS = {t.name: tuple(_AXES[extent] for extent in t.shape) for t in _TRACE.record}
DIMS[FINAL] = ("row", "d")

# How far a maximum may lag in the optimised softmax, in powers of two: kSlack of softmax.cuh.
SLACK = 8.0


@dataclass(frozen=True)
class Step:
    """One tensor of one block of queries, at one block of keys; that is -1 after the last one."""

    block: int
    name: str
    value: Tensor


def softmax_form(info: KernelInfo) -> dict[str, Any]:
    """Returns the form of a kernel's softmax as arguments of `simulate`.

    The GPU's optimised one, sm90a's only one, is fused and lets maxima lag; sm80's other one is the
    classic form; the CPU's is fused, and its maxima are exact.
    """
    if info.target == "cpu":
        return {"fused": True}
    optimized = info.parameters.get("optimized_softmax", True)
    return {"fused": True, "slack": SLACK} if optimized else {"fused": False}


def simulated(
    q: Tensor, k: Tensor, v: Tensor, info: KernelInfo, head: int, query_block: int
) -> list[Step]:
    """Returns every intermediate of a block of queries, in fp64, on the CPU.

    q is [1, Sq, H, D], k and v [1, Sk, Hk, D].
    """
    kv_head = head // (q.shape[2] // k.shape[2])
    steps = simulate(
        q[0, :, head].cpu(),
        k[0, :, kv_head].cpu(),
        v[0, :, kv_head].cpu(),
        B_r=info.parameters["B_r"],
        B_c=info.parameters["B_c"],
        query_block=query_block,
        causal=info.parameters["causal"],
        **softmax_form(info),
    )
    return [Step(*step) for step in steps]


@dataclass(frozen=True)
class Traced:
    """Returns the results of a traced kernel: o [1, Sq, H, D], and its trace, by tensor, as
    `trace()` gives it.

    What it did not write is NaN.
    """

    o: Tensor
    trace: Mapping[str, Tensor]
    B_r: int

    def steps(self, head: int, query_block: int, blocks: list[int]) -> Iterator[Step]:
        """Returns the intermediates of a block of queries, for blocks of keys in this order."""
        for block in blocks:
            for name, tensor in self.trace.items():
                yield Step(block, name, tensor[0, head, query_block, block])
        rows = self.o[0, query_block * self.B_r : (query_block + 1) * self.B_r, head]
        yield Step(-1, FINAL, rows)


def traced(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Traced:
    """Runs a kernel with tracing over a NaN-filled output; everything comes back on the CPU."""
    o, trace = kernel.trace(q, k, v, out=torch.full_like(q, math.nan))
    on_cpu = {name: tensor.cpu() for name, tensor in trace.items()}
    return Traced(o.cpu(), on_cpu, kernel.info.parameters["B_r"])
