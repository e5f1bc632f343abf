"""What is computed: packed sequences of mixed lengths, windows, and decoding over a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.operators import DTYPES

_MOST_BYTES = 70e9


@dataclass(frozen=True)
class Problem:
    """Sequences that attend to themselves, packed; or, with `cached`, a few last queries of each
    over a cache that is full."""

    dtype: str
    d_head: int
    heads: int
    kv_heads: int
    causal: bool
    window: int  # keys before a query's own that it sees; -1: all
    lengths: tuple[int, ...]  # keys of each sequence
    cached: int = 0  # queries of each sequence, if its keys are a cache

    @property
    def group(self) -> str:
        """What the problems of one table share."""
        heads = f"{self.heads} heads over {self.kv_heads}"
        said = [self.dtype, f"d {self.d_head}", heads]
        said.append(f"{self.cached} queries over a cache" if self.cached else "packed")
        said += ["causal"] * (self.causal and not self.cached)
        said += [f"window {self.window}"] * (self.window >= 0)
        return ", ".join(said)

    @property
    def size(self) -> str:
        """How many sequences, and their lengths, as a column's head."""
        least, most = min(self.lengths), max(self.lengths)
        return f"{len(self.lengths)}x{most if least == most else f'{least}-{most}'}"

    @property
    def extent(self) -> int:
        """On a plot's axis: all keys."""
        return sum(self.lengths)

    @property
    def pairs(self) -> int:
        """Queries and keys that see each other, of one head."""
        return sum(map(self._pairs, self.lengths))

    def _pairs(self, length: int) -> int:
        queries = self.cached or length
        first = length - queries  # the position of the first query
        after = 0 if self.causal else length
        return sum(
            min(length, i + 1 + after) - (max(0, i - self.window) if self.window >= 0 else 0)
            for i in range(first, length)
        )

    @property
    def operations(self) -> float:
        """Multiplications and additions of both products; of a cache the bytes that are read."""
        if self.cached:
            return 2.0 * 2 * sum(self.lengths) * self.kv_heads * self.d_head
        return 4.0 * self.pairs * self.heads * self.d_head

    @property
    def unit(self) -> str:
        """Of `operations`, a second."""
        return "GB/s" if self.cached else "TFLOP/s"

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, normally distributed: packed, [total, heads, d]; with a cache
        [B, S, heads, d]."""
        generator = torch.Generator(device).manual_seed(0)
        batch = len(self.lengths)

        def made(heads: int, cached: int) -> Tensor:
            rows = (batch, cached) if self.cached else (sum(self.lengths),)
            shape = (*rows, heads, self.d_head)
            return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[self.dtype])

        keys = max(self.lengths)
        return made(self.heads, self.cached), made(self.kv_heads, keys), made(self.kv_heads, keys)


def mixed(count: int = 16, least: int = 128, most: int = 8192) -> tuple[int, ...]:
    """Lengths in a geometric row, in an order that is none."""
    row = [round(least * (most / least) ** (i / (count - 1))) for i in range(count)]
    return tuple(row[(7 * i) % count] for i in range(count))


def packed(d_head: int, on_gpu: bool) -> list[Problem]:
    """Sequences of mixed lengths, and windows of 1,024 in 16k; on a CPU fewer and shorter ones."""
    heads = 2048 // d_head if on_gpu else 4
    shapes = [(heads, heads), (heads, heads // 4)]
    whole = mixed() if on_gpu else mixed(4, 64, 1024)
    windows = ((16384,), (16384,) * 4) if on_gpu else ((4096,),)
    found = [
        Problem("bf16", d_head, *shape, causal, -1, whole)
        for shape in shapes
        for causal in (False, True)
    ]
    found += [
        Problem("bf16", d_head, *shape, True, 1023, lengths)
        for shape in shapes
        for lengths in windows
    ]
    return found


def decoding(d_head: int, on_gpu: bool) -> list[Problem]:
    """One query a head over caches of equal and of mixed lengths; on a GPU up to 128k keys, as far
    as a cache is at most 70 GB."""
    batches, thousands, longest = (
        ((1, 8, 64), (1, 4, 8, 16, 64, 128), 32768) if on_gpu else ((1, 4), (1, 4, 16), 4096)
    )
    lengths = [(keys << 10,) * batch for batch in batches for keys in thousands]
    lengths += [mixed(batch, longest // 128, longest) for batch in batches[1:]]
    found = [
        Problem("bf16", d_head, *heads, False, -1, cached, cached=1)
        for heads in ((32, 8), (64, 8), (32, 32))
        for cached in lengths
    ]
    return [problem for problem in found if problem.operations <= _MOST_BYTES]
