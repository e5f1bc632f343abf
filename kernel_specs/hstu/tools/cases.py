"""The configurations that implementations are compared on, and their inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from ..hstu_bsa import reference as hstu_bsa
from ..jagged import Jagged, Padded


@dataclass(frozen=True)
class Case:
    """One configuration. T is the padded length n of the jagged function."""

    name: str
    B: int
    T: int
    H: int
    A: int
    L: int
    block_size: int
    block_count: int = 4
    lengths: tuple[int, ...] = ()  # lengths of the jagged sequences; empty: all T
    data: Literal["normal", "ties"] = "normal"
    functions: tuple[str, ...] = field(default=("block_sparse_attn", "hstu_attention_with_bsa"))
    why: str = ""

    def __str__(self) -> str:
        """Returns `B=2, T=128, ...`."""
        text = (
            f"B={self.B}, T={self.T}, H={self.H}, ATTN_DIM={self.A}, LINEAR_DIM={self.L}, "
            f"block_size={self.block_size}, block_count={self.block_count}"
        )
        return text + (f", lengths={list(self.lengths)}" if self.lengths else "")

    @property
    def offsets(self) -> list[int]:
        """Returns where the jagged sequences start and end."""
        ends = [0]
        for length in self.lengths or (self.T,) * self.B:
            ends.append(ends[-1] + length)
        return ends


_JAGGED = ("hstu_attention_with_bsa",)

CASES = {
    case.name: case
    for case in (
        Case("basic", 2, 128, 8, 32, 64, 32),
        Case("small", 1, 64, 4, 16, 32, 16),
        Case("medium", 2, 128, 8, 32, 64, 32),
        Case("large", 4, 256, 8, 32, 64, 32),
        Case("tail", 1, 250, 8, 32, 64, 32, why="T is not a multiple of the block"),
        Case("tail_small", 2, 85, 4, 16, 32, 16, why="T is not a multiple of the block"),
        Case(
            "jagged", 5, 128, 8, 32, 64, 32, lengths=(1, 31, 32, 33, 128), functions=_JAGGED,
            why="lengths 1, BS - 1, BS, BS + 1 and n",
        ),
        Case("t1024", 1, 1024, 4, 32, 64, 32, why="4 of 32 blocks are selected"),
        Case("t4096", 1, 4096, 2, 32, 64, 32, why="4 of 128 blocks are selected"),
        Case(
            "ties", 2, 256, 4, 16, 32, 16, data="ties",
            why="small integers and equal key blocks: many scores tie exactly",
        ),
    )
}  # fmt: skip
SEED_CASES = ("basic", "small", "medium", "large")


@dataclass(frozen=True)
class Inputs:
    """The arguments of both functions in one case, in fp32."""

    case: Case
    padded: Padded
    jagged: Jagged


def draw(case: Case, seed: int, device: str) -> Inputs:
    """Draws fresh standard-normal inputs (or tie-provoking ones), the same on every device."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    B, T, H, A, L = case.B, case.T, case.H, case.A, case.L
    padded = [normal(B, T, H, size) for size in (A, A, L, L)] + [normal(B, T, H)]
    rows = case.offsets[-1]
    jagged = [normal(rows, H * size) for size in (A, A, L, L)]
    if case.data == "ties":
        padded[:2] = [_tied(x, case.block_size) for x in padded[:2]]
        jagged[:2] = [
            _tied(x.reshape(B, T, H, A), case.block_size).reshape(rows, H * A) for x in jagged[:2]
        ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate_model = hstu_bsa.GateMLP(A)
    q, k, v, u = (x.to(device) for x in jagged)
    offsets = torch.tensor(case.offsets, device=device)
    mask = torch.ones(T, T, dtype=torch.bool, device=device).tril()
    gate_model = gate_model.to(device).requires_grad_(False)
    return Inputs(
        case,
        Padded(*(x.to(device) for x in padded)),
        Jagged(H, A, L, q, k, v, u, offsets, mask, gate_model),
    )


def _tied(x: torch.Tensor, block_size: int) -> torch.Tensor:
    # Integers, so that block means, products and their sums are exact in any order and precision
    # of accumulation; every second block repeats the one before.
    x = x.clamp(-2, 2).round()
    B, T, H, D = x.shape
    blocks = x.reshape(B, T // block_size, block_size, H, D)
    blocks[:, 1::2] = blocks[:, 0::2]
    return blocks.reshape(B, T, H, D)
