"""What is computed: shapes, inputs, and how much arithmetic they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from codegen.core import expressions
from runtime import manifest
from runtime.operators import DTYPES

# Batch and length. On a GPU the number of tokens is about constant, as in FlashAttention's own
# benchmarks; on a CPU one or two sequences are enough for all cores.
GPU_SIZES = ((16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384))
CPU_SIZES = ((2, 512), (1, 1024), (1, 2048), (1, 4096))
_GPU_HIDDEN = 2048  # heads times their dimension, likewise
_CPU_HEADS = 8


def usual_heads(d_head: int, on_gpu: bool) -> int:
    """How many heads of this dimension are measured if nothing else is asked for."""
    return max(1, _GPU_HIDDEN // d_head) if on_gpu else _CPU_HEADS


@dataclass(frozen=True)
class Problem:
    """Self-attention of one size: q, k and v of [batch, seq_len, heads, d_head]."""

    PARAMETERS: ClassVar = ("dtype", "d_head", "causal")  # of the family

    dtype: str
    d_head: int
    causal: bool
    batch: int
    seq_len: int
    heads: int
    kv_heads: int

    @property
    def group(self) -> str:
        """What the problems of one table share."""
        heads = f"{self.heads} heads" + (
            f" over {self.kv_heads}" if self.kv_heads != self.heads else ""
        )
        mask = "causal" if self.causal else "not causal"
        return f"{self.dtype}, d {self.d_head}, {heads}, {mask}"

    @property
    def values(self) -> dict[str, str | int | bool]:
        """These parameters and the family's symbols, by name."""
        return {
            **{name: getattr(self, name) for name in self.PARAMETERS},
            "B": self.batch, "Sq": self.seq_len, "Sk": self.seq_len,
            "H": self.heads, "Hk": self.kv_heads, "D": self.d_head,
        }  # fmt: skip

    @property
    def size(self) -> str:
        """Batch and length, as a column's head."""
        return f"{self.batch}x{self.seq_len}"

    @property
    def extent(self) -> int:
        """On a plot's axis: the sequences' length."""
        return self.seq_len

    @property
    def operations(self) -> float:
        """Multiplications and additions of both products, as family.yaml counts them; half under
        the mask."""
        text = manifest.family("flash_forward").operations
        assert text is not None
        scope = dict.fromkeys(self.values, expressions.INT)
        full = float(expressions.parse(text, scope, "int").evaluate(self.values))
        return full / 2 if self.causal else full

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, normally distributed, [batch, seq_len, heads, d_head], contiguous."""
        generator = torch.Generator(device).manual_seed(0)
        q, k, v = (
            torch.randn(
                self.batch, self.seq_len, heads, self.d_head, generator=generator, device=device
            ).to(DTYPES[self.dtype])
            for heads in (self.heads, self.kv_heads, self.kv_heads)
        )
        return q, k, v
